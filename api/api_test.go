package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSizesAreNumbersOrTexts(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Size{
		`0`: 0, `1024`: 1024, `"2GiB"`: 2 << 30, `"512M"`: 512 << 20, `"1.5KiB"`: 1536, `"1GB"`: 1e9, `"10 MiB"`: 10 << 20, `1e3`: 1000, `"7"`: 7,
		`9007199254740993`: 9007199254740993, `-1`: -1, `null`: 0,
	} {
		var s Size
		if err := json.Unmarshal([]byte(in), &s); err != nil || s != want {
			t.Errorf("%s = %d, %v; want %d", in, s, err, want)
		}
	}
	for _, in := range []string{`"x"`, `"2 parsecs"`, `true`, `{}`, `[1]`, `""`, `1e300`, `"GiB"`, `"NaN"`, `"99999999999TiB"`} {
		var s Size
		if err := json.Unmarshal([]byte(in), &s); err == nil {
			t.Errorf("%s = %d, want an error", in, s)
		}
	}
}

func TestSizeReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	for _, s := range []Size{0, 1, 1023, 1 << 10, 5 << 20, 3 << 30, 1 << 40} {
		if got, err := ParseSize(s.String()); err != nil || got != s {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", s, got, err, s)
		}
	}
}

// E12: the text view replaces only the bytes that are invalid, and nothing is lost.
func TestTextIsValidAndLosslessForAnyBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in, text string
		twin     bool
	}{
		{"", "", false},
		{"caf\u00e9", "caf\u00e9", false},
		{"caf\xc3\xa9 \xff\xfe", "caf\u00e9 \uFFFD", true},
		{"cut\xc3", "cut\uFFFD", true},
		{"nul\x00", "nul\x00", false},
		{strings.Repeat("\x00", 4095), strings.Repeat("\x00", 4095), false},
		{strings.Repeat("\x00", 4096), "\uFFFD", true},
		{"a" + strings.Repeat("\x00\xff", 4096) + "\x1bb", "a\uFFFDb", true},
		{strings.Repeat("1234567\x00", 1000), strings.Repeat("1234567\x00", 1000), false},
		{strings.Repeat("\n\t", 4096), strings.Repeat("\n\t", 4096), false},
	} {
		text, twin := Text([]byte(c.in))
		if text != c.text || (twin != nil) != c.twin || !utf8.ValidString(text) || string(Bytes(text, twin)) != c.in {
			t.Errorf("Text(%q) = %q, %q", c.in, text, twin)
		}
	}
}

func TestHeadersCarryAnyJSONAsASCII(t *testing.T) {
	t.Parallel()
	in := CallSpec{Tool: "exec", Argv: []string{"echo", "\u00fc \U0001F600 \n\t\x00"}, Env: map[string]string{"K": "\u4e16"}}
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	text := ascii(body)
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("ascii() = %q", text)
	}
	var out CallSpec
	if err := json.Unmarshal([]byte(text), &out); err != nil || out.Argv[1] != in.Argv[1] || out.Env["K"] != in.Env["K"] {
		t.Errorf("read back: %+v, %v", out, err)
	}
}

func TestMissingDaemonIsUnavailableAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	_, err := NewClient(filepath.Join(t.TempDir(), "none")).Version(t.Context())
	p, ok := errors.AsType[*Error](err)
	if !ok || p.Kind != Unavailable || !strings.Contains(p.Hint, "paddock serve") {
		t.Errorf("Version() = %v", err)
	}
	if !errors.Is(err, &Error{Kind: Unavailable}) || errors.Is(err, &Error{Kind: Fenced}) {
		t.Error("errors.Is does not ask for the kind")
	}
}

func TestAnswersThatAreNoProblemAreTypedToo(t *testing.T) {
	t.Parallel()
	resp := &http.Response{StatusCode: http.StatusBadGateway, Status: "502 Bad Gateway", Body: readCloser{bytes.NewReader([]byte("<html>"))}}
	p, ok := errors.AsType[*Error](readProblem(resp))
	if !ok || p.Kind != Internal || p.Status != http.StatusBadGateway {
		t.Errorf("readProblem() = %+v", p)
	}
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

func TestSocketIsFoundInTheOrderOfFlagEnvironmentDefault(t *testing.T) {
	t.Setenv(SocketEnv, "/env")
	if got := SocketPath("/flag"); got != "/flag" {
		t.Errorf("with a flag: %s", got)
	}
	if got := SocketPath(""); got != "/env" {
		t.Errorf("with %s: %s", SocketEnv, got)
	}
	if err := os.Unsetenv(SocketEnv); err != nil {
		t.Fatal(err)
	}
	if got := SocketPath(""); got != DefaultSocket {
		t.Errorf("without both: %s", got)
	}
}

// A01 and A03: null is not 0, and an absent exit code is not a good one.
func TestNullsStayNull(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(struct {
		Result  CallResult
		Attempt Attempt
	}{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"exit_code":null`, `"reward":null`, `"end":null`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%s lacks %s", body, want)
		}
	}
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"1", "2GiB", "1.5 MB", "-3K", "NaN", "1e9", ""} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		_, _ = ParseSize(s)
		var size Size
		_ = size.UnmarshalJSON([]byte(s))
	})
}
