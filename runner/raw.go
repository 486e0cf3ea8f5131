package runner

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Raw is text that may hold any bytes, such as a file's name. In JSON it is a string
// where it is valid UTF-8, else {"b64": "..."}.
type Raw string

type rawBytes struct {
	B64 []byte `json:"b64"`
}

// MarshalJSON implements json.Marshaler.
func (r Raw) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(r)) {
		return json.Marshal(string(r))
	}
	return json.Marshal(rawBytes{[]byte(r)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Raw) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var b rawBytes
		if err := json.Unmarshal(data, &b); err != nil {
			return fmt.Errorf("raw text: %w", err)
		}
		*r = Raw(b.B64)
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("raw text: %w", err)
	}
	*r = Raw(s)
	return nil
}
