package overlay

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
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
	// XattrsB64 are those whose names, here in base64, are no text.
	XattrsB64 map[string][]byte `json:"xattrs_b64,omitempty"`
	plain
}

// MarshalJSON writes a capture without reflection: it may have a million changes.
func (c Capture) MarshalJSON() ([]byte, error) { return c.AppendJSON(nil) }

// AppendJSON appends what MarshalJSON writes: encoding/json would look through it again.
func (c *Capture) AppendJSON(b []byte) ([]byte, error) {
	type plain Capture
	rest, err := json.Marshal(struct {
		plain
		Changes *int `json:"changes,omitempty"`
	}{plain: plain(*c)})
	if err != nil {
		return nil, err
	}
	b = append(slices.Grow(b, 256*len(c.Changes)+len(rest)), `{"changes":[`...)
	for i := range c.Changes {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.Changes[i].append(b)
	}
	return append(append(b, `],`...), rest[1:]...), nil
}

// MarshalJSON writes a change so that any name survives.
func (c Change) MarshalJSON() ([]byte, error) { return c.append(nil), nil }

// append appends what MarshalJSON writes.
func (c *Change) append(b []byte) []byte {
	text := func(name, v string) { // v is valid UTF-8
		if v != "" {
			b = append(append(b, name...), ':')
			b, _ = jsontext.AppendQuote(b, v)
			b = append(b, ',')
		}
	}
	number := func(name string, v uint64, always bool) {
		if v != 0 || always {
			b = append(strconv.AppendUint(append(append(b, name...), ':'), v, 10), ',')
		}
	}
	raw := func(name, b64, v string) {
		t, e := textOf(v)
		text(name, t)
		text(b64, e)
	}
	b = append(b, '{')
	raw(`"path"`, `"path_b64"`, c.Path)
	raw(`"target"`, `"target_b64"`, c.Target)
	raw(`"linked_to"`, `"linked_to_b64"`, c.LinkedTo)
	b = append(b, `"kind":`...)
	b, _ = jsontext.AppendQuote(b, string(c.Kind))
	b = append(b, ',')
	text(`"type"`, c.Type)
	number(`"mode"`, uint64(c.Mode), false)
	number(`"uid"`, uint64(c.UID), true)
	number(`"gid"`, uint64(c.GID), true)
	number(`"size"`, uint64(max(0, c.Size)), false)
	text(`"sha256"`, c.SHA256)
	if c.Opaque {
		b = append(b, `"opaque":true,`...)
	}
	number(`"rdev"`, c.Rdev, false)
	if !c.ModTime.IsZero() {
		b = append(c.ModTime.AppendFormat(append(b, `"mtime":"`...), time.RFC3339Nano), `",`...)
	}
	b = appendXattrs(b, c.Xattrs)
	return append(strconv.AppendInt(append(b, `"offset":`...), c.Offset, 10), '}')
}

func appendXattrs(b []byte, all map[string][]byte) []byte {
	if len(all) == 0 {
		return b
	}
	text, raw := map[string][]byte{}, map[string][]byte{}
	for name, v := range all {
		if utf8.ValidString(name) {
			text[name] = v
		} else {
			raw[base64.StdEncoding.EncodeToString([]byte(name))] = v
		}
	}
	for _, x := range []struct {
		member string
		all    map[string][]byte
	}{{`"xattrs":`, text}, {`"xattrs_b64":`, raw}} {
		if len(x.all) > 0 {
			members, _ := json.Marshal(x.all) // names and bytes have a text
			b = append(append(append(b, x.member...), members...), ',')
		}
	}
	return b
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
	for b64, v := range in.XattrsB64 {
		name, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			return err
		}
		if c.Xattrs == nil {
			c.Xattrs = map[string][]byte{}
		}
		c.Xattrs[string(name)] = v
	}
	return nil
}

func textOf(s string) (text, b64 string) {
	if utf8.ValidString(s) {
		return s, ""
	}
	return "", base64.StdEncoding.EncodeToString([]byte(s))
}
