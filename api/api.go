// Package api is what travels between paddock's daemon and its clients: wire types,
// kinds of error, the Go client, and the OpenAPI document made from the types.
//
// Bytes that need not be UTF-8 (output, paths) travel twice where they must: as text with
// U+FFFD in place of what is no UTF-8, and, only then, losslessly in a twin field whose
// name ends in _b64. So does what is 4 KiB and more, an eighth of it control characters.
package api

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Version is the version of the routes under /v1.
const Version = "v1"

// DefaultSocket is where the daemon listens unless told otherwise.
const DefaultSocket = "/run/paddock/paddock.sock"

// SocketEnv names the environment variable that holds the socket's path.
const SocketEnv = "PADDOCK_SOCKET"

// HeaderGeneration carries the generation of a run that a driver was given; a request
// with an older one is refused as fenced.
const HeaderGeneration = "Paddock-Generation"

// HeaderCall carries a CallSpec as ASCII JSON when the body is the call's raw stdin.
const HeaderCall = "Paddock-Call"

// HeaderFinish carries a FinishSpec as ASCII JSON when the body is the raw payload.
const HeaderFinish = "Paddock-Finish"

// HeaderRecipe carries a Recipe as ASCII JSON when the body is the world's tar.
const HeaderRecipe = "Paddock-Recipe"

// Media types of bodies.
const (
	MediaJSON    = "application/json"
	MediaStream  = "application/x-ndjson"
	MediaBytes   = "application/octet-stream"
	MediaTar     = "application/x-tar"
	MediaProblem = "application/problem+json"
)

// MaxPayload bounds the payload of finish, in bytes.
const MaxPayload = 64 << 20

// Text returns b as valid UTF-8, each run of bytes that is none replaced by U+FFFD, and b
// itself when that lost something. Of what is long and largely control characters, as a flood
// of zeros, they are replaced, too: in JSON each would be six bytes, which costs both sides
// more than to have run the program.
func Text(b []byte) (text string, lossless []byte) {
	if isControl(b) {
		return replaceControl(b), b
	}
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), b
}

const (
	// longText is from where on control characters count, largely the part that they are then.
	longText = 4 << 10
	largely  = 1. / 8
)

// control are the characters that JSON has no short form of.
var control = func() (is [256]bool) {
	for c := range byte(' ') {
		is[c] = strings.IndexByte("\b\t\n\f\r", c) < 0
	}
	return is
}()

// isControl says whether b is long and largely control characters.
func isControl(b []byte) bool {
	if len(b) < longText {
		return false
	}
	left := int(largely * float64(len(b)))
	for _, c := range b {
		if control[c] {
			if left--; left < 0 {
				return true
			}
		}
	}
	return false
}

// replaceControl has U+FFFD in place of each run of control characters and of bytes that are
// no UTF-8.
func replaceControl(b []byte) string {
	var out []byte
	for len(b) > 0 {
		n := 0
		for n < len(b) && control[b[n]] {
			n++
		}
		if n == 0 {
			r, size := utf8.DecodeRune(b)
			if r != utf8.RuneError || size > 1 {
				out, b = append(out, b[:size]...), b[size:]
				continue
			}
			n = 1
		}
		if !bytes.HasSuffix(out, []byte("\uFFFD")) {
			out = utf8.AppendRune(out, utf8.RuneError)
		}
		b = b[n:]
	}
	return string(out)
}

// Bytes is the inverse of Text.
func Bytes(text string, lossless []byte) []byte {
	if lossless != nil {
		return lossless
	}
	return []byte(text)
}

// Size is a number of bytes. In JSON it is a number, or a text such as "2GiB", "512M" or
// "1.5GB"; K, M, G, T and P alone are powers of 1024, KB, MB, GB, TB and PB of 1000.
type Size int64

var units = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
	"p": 1 << 50, "pib": 1 << 50, "pb": 1e15,
}

// ParseSize reads a size as people write it.
func ParseSize(s string) (Size, error) {
	t := strings.TrimSpace(s)
	split := strings.IndexFunc(t, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '-' && r != '+' })
	if split < 0 {
		split = len(t)
	}
	factor, known := units[strings.ToLower(strings.TrimSpace(t[split:]))]
	if n, err := strconv.ParseInt(t[:split], 10, 64); err == nil && known && factor == 1 {
		return Size(n), nil
	}
	n, err := strconv.ParseFloat(t[:split], 64)
	if err != nil || !known || math.IsNaN(n) || math.Abs(n*factor) >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q: want bytes as a number, or a number with KiB, MiB, GiB, TiB, PiB, KB, MB, GB, TB or PB", s)
	}
	return Size(n * factor), nil
}

// UnmarshalJSON reads a number or a text.
func (s *Size) UnmarshalJSON(b []byte) error {
	text := string(b)
	if text == "null" {
		return nil
	}
	if strings.HasPrefix(text, `"`) {
		unquoted, err := strconv.Unquote(text)
		if err != nil {
			return fmt.Errorf("size %s: not a size", text)
		}
		text = unquoted
	} else if strings.ContainsAny(text, "[{tf") {
		return fmt.Errorf("size: want a number or a text such as \"2GiB\"")
	}
	n, err := ParseSize(expand(text))
	if err != nil {
		return err
	}
	*s = n
	return nil
}

// expand writes a number with an exponent out: ParseSize would read the e as a unit.
func expand(text string) string {
	if f, err := strconv.ParseFloat(text, 64); err == nil && strings.ContainsAny(text, "eE") && !math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return text
}

// String writes the size in the largest unit that loses nothing much.
func (s Size) String() string {
	for _, u := range []struct {
		name string
		n    Size
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= u.n {
			return strings.TrimSuffix(strconv.FormatFloat(float64(s)/float64(u.n), 'f', 1, 64), ".0") + " " + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + " B"
}
