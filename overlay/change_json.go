package overlay

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"
)

// plain is Change without its methods.
type plain Change

// changeJSON carries raw names: as text where they are valid UTF-8, else in base64.
type changeJSON struct {
	Path      string `json:"path,omitempty"`
	PathB64   string `json:"path_b64,omitempty"`
	Target    string `json:"target,omitempty"`
	TargetB64 string `json:"target_b64,omitempty"`
	Linked    string `json:"linked_to,omitempty"`
	LinkedB64 string `json:"linked_to_b64,omitempty"`
	plain
}

// MarshalJSON writes a change so that any name survives.
func (c Change) MarshalJSON() ([]byte, error) {
	out := changeJSON{plain: plain(c)}
	out.Path, out.PathB64 = textOf(c.Path)
	out.Target, out.TargetB64 = textOf(c.Target)
	out.Linked, out.LinkedB64 = textOf(c.LinkedTo)
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Change) UnmarshalJSON(data []byte) error {
	in := changeJSON{}
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*c = Change(in.plain)
	for _, f := range []struct {
		into      *string
		text, b64 string
	}{{&c.Path, in.Path, in.PathB64}, {&c.Target, in.Target, in.TargetB64}, {&c.LinkedTo, in.Linked, in.LinkedB64}} {
		*f.into = f.text
		if f.b64 == "" {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(f.b64)
		if err != nil {
			return err
		}
		*f.into = string(raw)
	}
	return nil
}

func textOf(s string) (text, b64 string) {
	if utf8.ValidString(s) {
		return s, ""
	}
	return "", base64.StdEncoding.EncodeToString([]byte(s))
}
