package runner

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestFramesAreCutWhereverTheWritesFall(t *testing.T) {
	t.Parallel()
	raw := string([]byte{0, '\n', 255, '\n'})
	text := `{"a":1}` + "\n" + `{"frames":[3,1]}` + "\n" + raw + `{"b":"frames"}` + "\n"
	for size := 1; size <= len(text); size++ {
		f := newFrameReader(1 << 10)
		var got []string
		for at := 0; at < len(text); at += size {
			_, _ = f.Write([]byte(text[at:min(at+size, len(text))]))
			select {
			case m := <-f.out:
				got = append(got, fmt.Sprintf("%s|%q", m.Line, m.Raw))
			default:
			}
			if size > 8 { // two messages at once are one too many
				break
			}
		}
		want := []string{`{"a":1}|""`, fmt.Sprintf(`{"frames":[3,1]}|%q`, raw), `{"b":"frames"}|""`}
		if size <= 8 && strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("in writes of %d bytes: %q, want %q", size, got, want)
		}
	}
}

func TestFramesThatBreakTheFormAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}\n{}\n":                  "bad_reply",
		strings.Repeat("x", 101):    "reply_too_large",
		`{"frames":[101]}` + "\n":   "reply_too_large",
		`{"frames":[60,60]}` + "\n": "reply_too_large",
		`{"frames":[-1]}` + "\n":    "reply_too_large",
	} {
		f := newFrameReader(100)
		_, _ = f.Write([]byte(text))
		if f.why == nil || f.why.Kind != want {
			t.Errorf("%.20q: %+v, want %s", text, f.why, want)
		}
		if !stopped(f.bad) {
			t.Errorf("%.20q: nobody is told", text)
		}
		_, _ = f.Write(bytes.Repeat([]byte("y"), 1<<20))
		if len(f.buf) > 0 {
			t.Errorf("%.20q: what comes after is kept", text)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("{\"frames\":[2]}\nab{}\n"), 3)
	f.Add([]byte("{\"frames\":[9223372036854775807,1]}\n"), 1)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		size = max(1, size%64)
		r := newFrameReader(256)
		for at := 0; at < len(text); at += size {
			if n, err := r.Write(text[at:min(at+size, len(text))]); err != nil || n == 0 {
				t.Fatalf("Write() = %d, %v", n, err)
			}
			select {
			case m := <-r.out:
				if len(m.Line) > 256+64 || len(m.Raw) > 256 || bytes.ContainsRune(m.Line, '\n') {
					t.Fatalf("message of %d and %d bytes", len(m.Line), len(m.Raw))
				}
			default:
			}
			if len(r.buf) > 256+64 {
				t.Fatalf("%d bytes are held", len(r.buf))
			}
		}
	})
}
