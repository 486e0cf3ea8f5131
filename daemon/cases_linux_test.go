package daemon

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
)

// E08: a flood of one stream takes nothing from the other, and what is dropped is counted.
func TestFloodOfOneStreamLeavesTheOther(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	spec := sh("head -c 3000000 /dev/zero; echo boom >&2; exit 3")
	spec.MaxStdout = 1 << 20
	r := f.mustCall(t, k, spec)
	kept := int64(len(r.StdoutRaw()) + len(api.Bytes(r.StdoutTail, r.StdoutTailB64)))
	if r.ExitCode == nil || *r.ExitCode != 3 || r.Stderr != "boom\n" || r.StderrDropped != 0 || r.StdoutBytes != 3000000 || kept+r.StdoutDropped != 3000000 || kept > 1<<20 {
		t.Errorf("code %v, stderr %q, %d bytes of stdout, %d kept, %d dropped", r.ExitCode, r.Stderr, r.StdoutBytes, kept, r.StdoutDropped)
	}
}

// E14: a command that is given no input reads the end of a file.
func TestInputThatIsNotGivenIsEmpty(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	if r := f.mustCall(t, f.create(t, "e"), sh("cat; echo done")); r.Stdout != "done\n" || r.TimedOut {
		t.Errorf("result = %+v", r)
	}
}

// E17, E19, E21 in a real sandbox: sessions keep state, every byte and every code, and say
// how they end.
func TestSessionsInASandbox(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	open := func(name string) {
		t.Helper()
		if r := f.mustCall(t, k, api.CallSpec{Tool: "session_open", Session: name}); r.Fault != nil || r.Session != name {
			t.Fatalf("session_open = %+v", r)
		}
	}
	say := func(name, text string) api.CallResult {
		t.Helper()
		return f.mustCall(t, k, api.CallSpec{Tool: "session", Session: name, Shell: text, TimeoutS: 10})
	}
	open("a")
	for _, c := range []struct {
		text, out string
		code      int
	}{
		{"cd /tmp; export V=kept; false", "", 1},
		{"pwd; echo $V", "/tmp\nkept\n", 0},
		{"cat <<'EOF'\n$V\nEOF", "$V\n", 0},
		{"cat - <<A; cat <<B\n1\nA\n2\nB", "1\n2\n", 0},
		{"echo hi # note", "hi\n", 0},
		{"echo one \\\n two", "one two\n", 0},
		{`printf '\n\nx\n\n\n'`, "\n\nx\n\n\n", 0},
		{"printf '  x'", "  x", 0},
		{"echo -n y", "y", 0},
	} {
		if r := say("a", c.text); r.ExitCode == nil || *r.ExitCode != c.code || r.Stdout != c.out || r.Stderr != "" {
			t.Errorf("%q = code %v, out %q, err %q, fault %+v; want %d, %q", c.text, r.ExitCode, r.Stdout, r.Stderr, r.Fault, c.code, c.out)
		}
		if r := f.mustCall(t, k, sh(c.text)); strings.HasPrefix(c.text, "printf") && r.Stdout != c.out {
			t.Errorf("exec of %q = %q, want %q", c.text, r.Stdout, c.out)
		}
	}
	open("b")
	for _, c := range []struct{ session, text, detail string }{{"a", "set -e; false", "1"}, {"b", "exit 5", "5"}} {
		r := say(c.session, c.text)
		if r.TimedOut || r.Fault == nil || r.Fault.Kind != "session_ended" || !strings.Contains(r.Fault.Detail, c.detail) {
			t.Errorf("%q = %+v, fault %+v; want session_ended with code %s", c.text, r, r.Fault, c.detail)
		}
		if r := say(c.session, "echo more"); r.Fault == nil {
			t.Errorf("after %q the session goes on: %+v", c.text, r)
		}
	}
}

// F02 over HTTP: a name of any bytes is listed, read, changed and removed.
func TestNamesOfAnyBytesRoundTripOverHTTP(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	names := []string{"🤣.txt", "a b", "-rf", "x\ny", "%2e%2e", "\xff\xfe", strings.Repeat("n", 255), " lead", "trail "}
	call := func(tool, name string) api.CallResult {
		t.Helper()
		spec := api.CallSpec{Tool: tool, PathB64: []byte("/tmp/n/" + name)}
		if tool == "write_file" {
			spec.Content = []byte(name)
		}
		r := f.mustCall(t, k, spec)
		if r.Fault != nil {
			t.Fatalf("%s %q: %+v", tool, name, r.Fault)
		}
		return r
	}
	f.mustCall(t, k, sh("mkdir /tmp/n"))
	for _, n := range names {
		call("write_file", n)
	}
	seen := map[string]bool{}
	for _, e := range f.mustCall(t, k, api.CallSpec{Tool: "list_dir", Path: "/tmp/n"}).Entries {
		seen[string(api.Bytes(e.Name, e.NameB64))] = true
	}
	for _, n := range names {
		if r := call("read_file", n); string(r.StdoutRaw()) != n {
			t.Errorf("read_file %q = %q", n, r.StdoutRaw())
		}
		if !seen[n] {
			t.Errorf("list_dir does not name %q", n)
		}
		call("remove", n)
	}
	if left := f.mustCall(t, k, api.CallSpec{Tool: "list_dir", Path: "/tmp/n"}).Entries; len(seen) != len(names) || len(left) > 0 {
		t.Errorf("%d names listed of %d, %d left", len(seen), len(names), len(left))
	}
}

// F04: a path that climbs is refused, in every direction.
func TestPathsThatClimbAreRefused(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	for _, path := range []string{"../../x", ".", "tmp", "/tmp/x\x00y"} {
		if r, err := f.client.Upload(t.Context(), k, path, "", oneFile(t, "f", "x")); err == nil && r.Fault == nil {
			t.Errorf("upload to %q: %+v", path, r)
		}
		if err := f.client.Download(t.Context(), k, path, "", io.Discard); err == nil {
			t.Errorf("download of %q went on", path)
		}
		r, err := f.client.Call(t.Context(), k, api.CallSpec{Tool: "read_file", Path: path})
		if err == nil && (r.Fault == nil || r.Fault.Kind != "invalid_path") {
			t.Errorf("read_file %q: %+v", path, r)
		}
	}
	if r, err := f.client.Upload(t.Context(), k, "/tmp", "", oneFile(t, "../../x", "x")); err == nil && r.Fault == nil {
		t.Errorf("an archive that climbs: %+v", r)
	}
}

func oneFile(tb testing.TB, name, text string) io.Reader {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
		tb.Fatal(err)
	}
	_, err := w.Write([]byte(text))
	if err := errors.Join(err, w.Close()); err != nil {
		tb.Fatal(err)
	}
	return &b
}

// F15 over HTTP: an upload that is cut off in the middle leaves the old file, and nothing
// beside it.
func TestUploadThatIsCutOffLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	f.mustCall(t, k, sh("mkdir /tmp/d; echo old > /tmp/d/big"))
	whole, err := io.ReadAll(oneFile(t, "big", strings.Repeat("x", 50<<20)))
	if err != nil {
		t.Fatal(err)
	}
	cut := io.MultiReader(bytes.NewReader(whole[:len(whole)/2]), &brokenReader{})
	if r, err := f.client.Upload(t.Context(), k, "/tmp/d", "", cut); err == nil && r.Fault == nil {
		t.Errorf("an upload that was cut off: %+v", r)
	}
	// The daemon sees the cut after the client; calls are served one after another.
	if r := f.mustCall(t, k, sh("cat /tmp/d/big; ls -A /tmp/d /tmp")); r.Stdout != "old\n/tmp:\nd\n\n/tmp/d:\nbig\n" {
		t.Errorf("afterwards: %q", r.Stdout)
	}
}

type brokenReader struct{}

func (*brokenReader) Read([]byte) (int, error) { return 0, errors.New("the connection is cut") }

// A client that stops sending in the midst of an upload holds up nothing: the episode ends
// when its time is over.
func TestUploadThatStallsDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stalled, send := io.Pipe()
	uploading := make(chan struct{})
	go func() {
		defer close(uploading)
		_, _ = f.client.Upload(ctx, k, "/tmp", "", stalled)
	}()
	if _, err := send.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.Abort(t.Context(), k, "enough"); err != nil {
		t.Errorf("Abort beside a stalled upload: %v", err)
	}
	cancel()
	_ = send.Close()
	<-uploading
}
