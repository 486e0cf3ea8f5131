package daemon

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

// create makes a live episode.
func (f *front) create(tb testing.TB, id string) api.Key {
	tb.Helper()
	c, err := f.client.Create(tb.Context(), api.EpisodeSpec{ID: id, World: world})
	if err != nil {
		tb.Fatalf("create %s: %v", id, err)
	}
	if c.Kept {
		tb.Fatalf("create %s: it was there already", id)
	}
	return c.Episode.Key()
}

func sh(script string) api.CallSpec {
	return api.CallSpec{Tool: "exec", Argv: []string{"sh", "-c", script}}
}

func (f *front) mustCall(tb testing.TB, k api.Key, spec api.CallSpec) api.CallResult {
	tb.Helper()
	r, err := f.client.Call(tb.Context(), k, spec)
	if err != nil {
		tb.Fatalf("call %v: %v", spec.Argv, err)
	}
	return r
}

func wantKind(tb testing.TB, err error, kind api.Kind) *api.Error {
	tb.Helper()
	p, ok := errors.AsType[*api.Error](err)
	if !ok || p.Kind != kind {
		tb.Fatalf("error = %v, want kind %s", err, kind)
	}
	return p
}

func TestEpisodeFromCreateToDelete(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "it0/task-1/s0")
	r := f.mustCall(t, k, sh("echo out; echo err >&2; exit 3"))
	if r.ExitCode == nil || *r.ExitCode != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" || r.Seq != 1 || r.Attempt != 1 {
		t.Errorf("result = %+v", r)
	}
	ep, err := f.client.Finish(t.Context(), k, api.FinishSpec{Answer: []byte(`{"a":1}`), Payload: []byte("\x00\xffpayload")})
	if err != nil {
		t.Fatal(err)
	}
	last := ep.Last()
	if last == nil || last.End == nil || last.End.Status != "ok" || last.End.Cause != "agent" || string(last.Answer) != `{"a":1}` {
		t.Fatalf("after finish: %+v", ep)
	}
	var payload bytes.Buffer
	if err := f.client.Payload(t.Context(), k, 0, &payload); err != nil || payload.String() != "\x00\xffpayload" {
		t.Errorf("Payload() = %q, %v", payload.Bytes(), err)
	}
	var calls bytes.Buffer
	if err := f.client.Trajectory(t.Context(), k, 1, &calls); err != nil || strings.Count(calls.String(), "\n") != 1 {
		t.Errorf("Trajectory() = %s, %v", calls.String(), err)
	}
	if _, err := f.client.Changes(t.Context(), k, 0); err != nil {
		t.Errorf("Changes() = %v", err)
	}
	page, err := f.client.Episodes(t.Context(), api.ListOptions{Prefix: "it0"})
	if err != nil || len(page.Episodes) != 1 || page.Episodes[0].ID != k.ID || page.More {
		t.Errorf("Episodes() = %+v, %v", page, err)
	}
	if err := f.client.Delete(t.Context(), k); err != nil {
		t.Errorf("Delete() = %v", err)
	}
	_, err = f.client.Episode(t.Context(), k)
	wantKind(t, err, api.NotFound)
}

func TestBadEpisodesAreRefusedAndNothingIsMade(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	for name, c := range map[string]struct {
		spec  api.EpisodeSpec
		kind  api.Kind
		field string
	}{
		"unknown world":    {api.EpisodeSpec{ID: "x", World: "atlantis"}, api.UnknownWorld, "/world"},
		"no world":         {api.EpisodeSpec{ID: "x"}, api.BadRequest, "/world"},
		"unknown policy":   {api.EpisodeSpec{ID: "x", World: world, Policy: "lax"}, api.UnknownPolicy, "/policy"},
		"id out of form":   {api.EpisodeSpec{ID: "../x", World: world}, api.BadRequest, "/id"},
		"id too long":      {api.EpisodeSpec{ID: strings.Repeat("x", 513), World: world}, api.BadRequest, "/id"},
		"negative memory":  {api.EpisodeSpec{ID: "x", World: world, Limits: api.Limits{Memory: -1}}, api.BadRequest, "/limits/memory"},
		"negative budget":  {api.EpisodeSpec{ID: "x", World: world, Budgets: api.Budgets{AgentS: -1}}, api.BadRequest, "/budgets/agent_s"},
		"unknown lease":    {api.EpisodeSpec{ID: "x", World: world, Lease: api.Lease{Kind: "eternal"}}, api.BadRequest, "/lease/kind"},
		"lease not open":   {api.EpisodeSpec{ID: "x", World: world, Lease: api.Lease{Kind: "connection", Conn: "none"}}, api.BadRequest, "/lease/conn"},
		"unknown conflict": {api.EpisodeSpec{ID: "x", World: world, OnConflict: "fight"}, api.BadRequest, "/on_conflict"},
		"bad environment":  {api.EpisodeSpec{ID: "x", World: world, Env: map[string]string{"A=B": "c"}}, api.BadRequest, "/env"},
		"unknown run":      {api.EpisodeSpec{Run: "nowhere", ID: "x", World: world}, api.NotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := f.client.Create(t.Context(), c.spec)
			p := wantKind(t, err, c.kind)
			if c.field != "" && !strings.HasPrefix(p.Field, c.field) {
				t.Errorf("field = %q, want %q (%s)", p.Field, c.field, p.Detail)
			}
			if c.kind == api.UnknownWorld && !strings.Contains(p.Detail+p.Hint, "paddock world build") {
				t.Errorf("an unknown world's error does not say how to get it: %s %s", p.Detail, p.Hint)
			}
			if _, err := f.client.Episode(t.Context(), api.Key{ID: "x"}); !errors.Is(err, &api.Error{Kind: api.NotFound}) {
				t.Errorf("something was made: %v", err)
			}
		})
	}
}

func TestBadCallsAreRefusedOrAreValues(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	for name, c := range map[string]struct {
		spec  api.CallSpec
		kind  api.Kind // of an error
		fault string   // of a result
	}{
		"unknown tool":    {api.CallSpec{Tool: "teleport"}, api.UnknownTool, ""},
		"no command":      {api.CallSpec{Tool: "exec"}, api.BadRequest, ""},
		"NUL":             {api.CallSpec{Tool: "exec", Argv: []string{"a\x00b"}}, api.BadRequest, ""},
		"relative cwd":    {api.CallSpec{Tool: "exec", Argv: []string{"true"}, Cwd: "x"}, api.BadRequest, ""},
		"negative time":   {api.CallSpec{Tool: "exec", Argv: []string{"true"}, TimeoutS: -1}, api.BadRequest, ""},
		"unknown command": {api.CallSpec{Tool: "exec", Argv: []string{"no-such-program"}}, "", "command_not_found"},
		"unknown cwd":     {api.CallSpec{Tool: "exec", Argv: []string{"true"}, Cwd: "/no/such"}, "", "cwd_not_found"},
		"unknown user":    {api.CallSpec{Tool: "exec", Argv: []string{"true"}, User: "nobody-of-that-name"}, "", "user_not_found"},
		"unknown path":    {api.CallSpec{Tool: "read_file", Path: "/no/such"}, "", "not_found"},
		"unknown session": {api.CallSpec{Tool: "session", Session: "none", Shell: "true"}, "", "session_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := f.client.Call(t.Context(), k, c.spec)
			if c.kind != "" {
				wantKind(t, err, c.kind)
				return
			}
			if err != nil || r.Fault == nil || r.Fault.Kind != c.fault || r.ExitCode != nil {
				t.Errorf("result = %+v, %v; want fault %s", r, err, c.fault)
			}
		})
	}
	_, err := f.client.Call(t.Context(), api.Key{ID: "none"}, sh("true"))
	wantKind(t, err, api.NotFound)
}

// X-A07, create: after a lost reply the same request finds the same episode, and another
// one under the id is told what differs.
func TestCreateIsIdempotent(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	spec := api.EpisodeSpec{ID: "e", World: world, Weights: "v1"}
	first, err := f.client.Create(t.Context(), spec)
	if err != nil || first.Kept {
		t.Fatalf("Create() = %+v, %v", first, err)
	}
	again, err := f.client.Create(t.Context(), spec)
	if err != nil || !again.Kept || len(again.Episode.Attempts) != 1 || again.Episode.SpecDigest != first.Episode.SpecDigest {
		t.Errorf("again: %+v, %v", again, err)
	}
	spec.Weights = "v2"
	_, err = f.client.Create(t.Context(), spec)
	p := wantKind(t, err, api.SpecConflict)
	if len(p.Pointers) != 1 || p.Pointers[0].Pointer != "/weights" || p.Pointers[0].Old != "v1" || p.Pointers[0].New != "v2" {
		t.Errorf("pointers = %+v", p.Pointers)
	}
	if p.Status != http.StatusConflict {
		t.Errorf("status = %d", p.Status)
	}
}

// X-A07, exec: a repeated number gives the kept answer and runs nothing.
func TestCallIsIdempotentByItsNumber(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	spec := sh("echo x >> /tmp/count; cat /tmp/count")
	spec.Seq = 1
	first := f.mustCall(t, k, spec)
	again := f.mustCall(t, k, spec)
	if first.Stdout != "x\n" || again.Stdout != "x\n" || first.Kept || !again.Kept {
		t.Errorf("first = %+v\nagain = %+v", first, again)
	}
	other := sh("true")
	other.Seq = 1
	_, err := f.client.Call(t.Context(), k, other)
	wantKind(t, err, api.CallConflict)
}

// X-A07, exec: a numbered call outlives its connection, so its client ends it by its number.
func TestCancelledCallIsKilled(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	long := sh("echo begun > /tmp/begun; sleep 600")
	long.Seq = 800 // beyond those that the daemon gives out meanwhile
	ended := make(chan error, 1)
	go func() {
		r, err := f.client.Call(t.Context(), k, long)
		if err == nil && r.Signal != 9 {
			err = fmt.Errorf("the cancelled call = %+v, want it killed", r)
		}
		ended <- err
	}()
	for f.mustCall(t, k, api.CallSpec{Tool: "stat", Path: "/tmp/begun", Parallel: true}).Fault != nil {
	}
	for _, seq := range []int64{800, 1 << 40} { // one that runs, one that comes later
		if err := f.client.CancelCall(t.Context(), k, api.CancelCall{Seq: seq}); err != nil {
			t.Fatalf("cancel call %d: %v", seq, err)
		}
	}
	if err := <-ended; err != nil { // cut off as it started
		wantKind(t, err, api.CallCancelled)
	}
	late := sh("echo late > /tmp/late")
	late.Seq = 1 << 40
	_, err := f.client.Call(t.Context(), k, late)
	wantKind(t, err, api.CallCancelled)
	done := sh("ls /tmp; pgrep sleep")
	done.Seq = 1<<40 + 1
	first := f.mustCall(t, k, done)
	if first.Stdout != "begun\n" {
		t.Errorf("after the cancelled calls: %q, want neither the late file nor sleep", first.Stdout)
	}
	if err := f.client.CancelCall(t.Context(), k, api.CancelCall{Seq: 1<<40 + 1}); err != nil {
		t.Errorf("cancel an answered call: %v", err)
	}
	if again := f.mustCall(t, k, done); !again.Kept || again.Stdout != first.Stdout {
		t.Errorf("an answered call after its cancel = %+v, want the kept answer", again)
	}
	wantKind(t, f.client.CancelCall(t.Context(), k, api.CancelCall{}), api.BadRequest)
}

func TestLaterDriverFencesTheEarlier(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	first, err := f.client.OpenRun(t.Context(), api.RunSpec{Name: "r"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.client.OpenRun(t.Context(), api.RunSpec{Name: "r"})
	wantKind(t, err, api.RunExists)
	second, err := f.client.OpenRun(t.Context(), api.RunSpec{Name: "r", Resume: "resume"})
	if err != nil || second.Generation <= first.Generation {
		t.Fatalf("OpenRun(resume) = %+v, %v", second, err)
	}
	_, err = f.client.WithGeneration(first.Generation).Create(t.Context(), api.EpisodeSpec{Run: "r", ID: "e", World: world})
	wantKind(t, err, api.Fenced)
	if _, err := f.client.WithGeneration(second.Generation).Create(t.Context(), api.EpisodeSpec{Run: "r", ID: "e", World: world}); err != nil {
		t.Error(err)
	}
}

// X-A05: two calls at once are served one after another and never mix.
func TestCallsAtOnceAreServedOneAfterAnother(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			want := strings.Repeat(fmt.Sprintf("%d\n", i), 200)
			r, err := f.client.Call(t.Context(), k, sh(fmt.Sprintf("mkdir /tmp/busy || exit 9; for i in $(seq 200); do echo %d; done; rmdir /tmp/busy", i)))
			if err != nil || r.ExitCode == nil || *r.ExitCode != 0 || r.Stdout != want {
				t.Errorf("call %d: %v, exit %v, %d bytes", i, err, r.ExitCode, len(r.Stdout))
			}
		})
	}
	wg.Wait()
}

// X-A06: delete while a call runs, delete again, call after delete.
func TestDeleteEndsWhatRunsAndIsIdempotent(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	began := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		r, err := f.client.Stream(t.Context(), k, sh("echo began; sleep 1000"), api.CallIO{Stdout: &signalWriter{c: began}})
		if err == nil && r.End == nil {
			err = fmt.Errorf("the call ended by itself: %+v", r)
		}
		done <- err
	}()
	<-began
	if err := f.client.Delete(t.Context(), k); err != nil {
		t.Fatalf("Delete() = %v", err)
	}
	if err := <-done; err != nil {
		p, ok := errors.AsType[*api.Error](err)
		if !ok || p.Kind != api.EpisodeEnded && p.Kind != api.NotFound && p.Kind != api.EpisodeDeleted {
			t.Errorf("the call: %v", err)
		}
	}
	if err := f.client.Delete(t.Context(), k); err != nil && !errors.Is(err, &api.Error{Kind: api.NotFound}) {
		t.Errorf("second Delete() = %v", err)
	}
	_, err := f.client.Call(t.Context(), k, sh("true"))
	wantKind(t, err, api.NotFound)
}

// signalWriter closes c with its first byte.
type signalWriter struct {
	once sync.Once
	c    chan struct{}
}

func (s *signalWriter) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.c) })
	return len(p), nil
}

// X-A08 and A06: a client that goes away in mid-call finds the call's answer under its
// number.
func TestAnswerOfALostClientIsKept(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	ctx, cancel := context.WithCancelCause(t.Context())
	began := make(chan struct{})
	spec := sh("echo began; read x < /tmp/gate; echo $x")
	spec.Seq = 2
	f.mustCall(t, k, api.CallSpec{Tool: "exec", Seq: 1, Argv: []string{"mkfifo", "/tmp/gate"}})
	done := make(chan error, 1)
	go func() {
		_, err := f.client.Stream(ctx, k, spec, api.CallIO{Stdout: &signalWriter{c: began}})
		done <- err
	}()
	<-began
	cancel(errors.New("the client died"))
	if err := <-done; err == nil {
		t.Error("the lost client got an answer")
	}
	open := sh("echo finished > /tmp/gate")
	open.Parallel = true
	opened := make(chan error, 1)
	go func() {
		_, err := f.client.Call(t.Context(), k, open)
		opened <- err
	}()
	r, err := f.client.Call(t.Context(), k, spec)
	if err != nil || r.Stdout != "began\nfinished\n" {
		t.Errorf("asked again: %+v, %v", r, err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// X-A09: a thousand creates at once all succeed, or are told to come back.
func TestManyCreatesAtOnce(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			k := api.Key{ID: fmt.Sprintf("many/%d", i)}
			_, err := f.client.Create(t.Context(), api.EpisodeSpec{ID: k.ID, World: world, Requests: api.Requests{CPUs: 0.001, Memory: 1 << 20}})
			if err != nil {
				if p := wantKind(t, err, api.OverCapacity); p.RetryAfter <= 0 {
					t.Errorf("no retry_after: %v", err)
				}
				return
			}
			if err := f.client.Delete(t.Context(), k); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A01: looking renews nothing; a call and keepalive do.
func TestLookingRenewsNoLease(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	c, err := f.client.Create(t.Context(), api.EpisodeSpec{ID: "e", World: world, Lease: api.Lease{Kind: "ttl", TTLS: 60}})
	if err != nil {
		t.Fatal(err)
	}
	k, before := c.Episode.Key(), c.Episode.Lease.Deadline
	for range 3 {
		ep, err := f.client.Episode(t.Context(), k)
		if err != nil || !ep.Lease.Deadline.Equal(before) {
			t.Errorf("deadline after a look = %v, %v; want %v", ep.Lease.Deadline, err, before)
		}
		if _, err := f.client.Episodes(t.Context(), api.ListOptions{}); err != nil {
			t.Error(err)
		}
	}
	ep, err := f.client.KeepAlive(t.Context(), k)
	if err != nil || !ep.Lease.Deadline.After(before) {
		t.Errorf("deadline after keepalive = %v, %v; want after %v", ep.Lease.Deadline, err, before)
	}
}

// E12 and E10: bytes that are no UTF-8 arrive as they are, whole, before the result.
func TestOutputOfAnyBytesIsExact(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	const want = "caf\xc3\xa9 \xff\xfe"
	spec := sh(`printf 'caf\303'; sleep .2; printf '\251 \377\376'; exit 7`)
	r := f.mustCall(t, k, spec)
	if string(r.StdoutRaw()) != want || r.Stdout != "caf\u00e9 \uFFFD" || r.StdoutBytes != int64(len(want)) || r.StdoutSHA256 != hash(want) {
		t.Errorf("unary: %+v", r)
	}
	var out bytes.Buffer
	r, err := f.client.Stream(t.Context(), k, spec, api.CallIO{Stdout: &out})
	if err != nil || out.String() != want || r.ExitCode == nil || *r.ExitCode != 7 {
		t.Errorf("streamed: %q, %+v, %v", out.Bytes(), r, err)
	}
	spec.MaxStdout = 4 // cuts the character
	r = f.mustCall(t, k, spec)
	kept := int64(len(r.StdoutRaw()) + len(api.Bytes(r.StdoutTail, r.StdoutTailB64)))
	if r.StdoutDropped == 0 || kept+r.StdoutDropped != int64(len(want)) || r.StdoutSHA256 != hash(want) {
		t.Errorf("cut: %+v", r)
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestLargeStdinIsStreamed(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	const size = 50 << 20
	sum := sha256.New()
	stdin := io.TeeReader(io.LimitReader(&pattern{}, size), sum)
	r, err := f.client.Stream(t.Context(), k, api.CallSpec{Tool: "exec", Argv: []string{"sha256sum"}}, api.CallIO{Stdin: stdin})
	if want := hex.EncodeToString(sum.Sum(nil)); err != nil || !strings.HasPrefix(r.Stdout, want) {
		t.Errorf("sha256sum of stdin = %s, %v; want %s", r.Stdout, err, want)
	}
	// Input and output at the same time, neither waiting for the end of the other.
	sum.Reset()
	back := sha256.New()
	_, err = f.client.Stream(t.Context(), k, api.CallSpec{Tool: "exec", Argv: []string{"cat"}}, api.CallIO{
		Stdin: io.TeeReader(io.LimitReader(&pattern{}, 4<<20), sum), Stdout: back,
	})
	if err != nil || !bytes.Equal(sum.Sum(nil), back.Sum(nil)) {
		t.Errorf("cat: %v, same = %v", err, bytes.Equal(sum.Sum(nil), back.Sum(nil)))
	}
}

// pattern is endless bytes that are no UTF-8.
type pattern struct{ n byte }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = p.n
		p.n += 7
	}
	return len(b), nil
}

func TestFilesAndArchives(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	content := []byte("a\x00\xff")
	if r := f.mustCall(t, k, api.CallSpec{Tool: "write_file", Path: "/tmp/f", Content: content, Mode: 0o640}); r.Fault != nil {
		t.Fatalf("write_file: %+v", r.Fault)
	}
	if r := f.mustCall(t, k, api.CallSpec{Tool: "read_file", Path: "/tmp/f"}); !bytes.Equal(r.StdoutRaw(), content) {
		t.Errorf("read_file = %q", r.StdoutRaw())
	}
	if r := f.mustCall(t, k, api.CallSpec{Tool: "stat", Path: "/tmp/f"}); r.Info == nil || r.Info.Size != 3 || r.Info.Mode != 0o640 {
		t.Errorf("stat = %+v", r.Info)
	}
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	_ = w.WriteHeader(&tar.Header{Name: "d/x", Mode: 0o644, Size: 1, Typeflag: tar.TypeReg})
	_, _ = w.Write([]byte("x"))
	_ = w.Close()
	if r, err := f.client.Upload(t.Context(), k, "/tmp/up", "", &in); err != nil || r.Fault != nil || r.Count == 0 {
		t.Errorf("Upload() = %+v, %v", r, err)
	}
	var out bytes.Buffer
	if err := f.client.Download(t.Context(), k, "/tmp/up/d", "", &out); err != nil {
		t.Fatal(err)
	}
	names := ""
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names += h.Name + " "
	}
	if !strings.Contains(names, "d/x") {
		t.Errorf("downloaded %q", names)
	}
	err := f.client.Download(t.Context(), k, "/no/such", "", io.Discard)
	wantKind(t, err, api.NotFound)
	if r, err := f.client.Upload(t.Context(), k, "/tmp/up", "", strings.NewReader("no tar at all")); err == nil && (r.Fault == nil || r.Fault.Kind != "invalid_archive") {
		t.Errorf("a bad archive: %+v", r)
	}
}

// What an agent leaves in its tree is told as the call's fault: an answer that broke off
// would say that the daemon is gone, and so void the sample.
func TestATreeCannotBreakADownloadOff(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	for name, script := range map[string]string{
		"unreadable": "mkdir d; head -c 3000000 /dev/urandom >d/a; echo x >d/b; chmod 0 d/b",
		"deep":       "for i in $(seq 600); do mkdir d; cd d || exit 1; done",
		"long":       "head -c 4000000 /dev/zero >f; head -c 2000000 /dev/urandom >>f",
	} {
		user := "1000:1000"
		if r := f.mustCall(t, k, api.CallSpec{Tool: "exec", User: user, Argv: []string{"sh", "-c", "umask 022; mkdir -p /tmp/" + name + " && cd /tmp/" + name + " && " + script}}); r.ExitCode == nil || *r.ExitCode != 0 {
			t.Fatalf("%s: %+v", name, r)
		}
		var out bytes.Buffer
		err := f.client.Download(t.Context(), k, "/tmp/"+name, user, &out)
		if name != "long" {
			wantKind(t, err, api.NotFound)
			continue
		}
		r := tar.NewReader(&out)
		for range 2 {
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
		}
		got, errR := io.ReadAll(r)
		want := f.mustCall(t, k, api.CallSpec{Tool: "exec", Argv: []string{"sh", "-c", "sha256sum </tmp/long/f"}})
		if sum := sha256.Sum256(got); err != nil || errR != nil || !strings.HasPrefix(string(want.StdoutRaw()), hex.EncodeToString(sum[:])) {
			t.Errorf("%d bytes with other content, %v, %v", len(got), err, errR)
		}
	}
	ep, err := f.client.Finish(t.Context(), k, api.FinishSpec{})
	if err != nil || ep.Attempts[len(ep.Attempts)-1].End.Cause != "agent" {
		t.Errorf("Finish() = %+v, %v", ep, err)
	}
}

func TestWorldsAreListedAndGuarded(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	all, err := f.client.Worlds(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatalf("Worlds() = %+v, %v", all, err)
	}
	if w, err := f.client.World(t.Context(), world); err != nil || w.ID == "" {
		t.Errorf("World() = %+v, %v", w, err)
	}
	_, err = f.client.World(t.Context(), "atlantis")
	wantKind(t, err, api.UnknownWorld)
	k := f.create(t, "holds-it")
	wantKind(t, f.client.RemoveWorld(t.Context(), world), api.InUse)
	if err := f.client.Delete(t.Context(), k); err != nil {
		t.Error(err)
	}
}

func TestPayloadBeyondTheBoundIsRefused(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	_, err := f.client.Finish(t.Context(), k, api.FinishSpec{Payload: make([]byte, api.MaxPayload+1)})
	wantKind(t, err, api.TooLarge)
	ep, err := f.client.Finish(t.Context(), k, api.FinishSpec{Payload: bytes.Repeat([]byte{0xfe}, 1<<20)})
	if err != nil || ep.Last().Payload == nil || ep.Last().Payload.Bytes != 1<<20 {
		t.Errorf("after the refusal: %+v, %v", ep.Last(), err)
	}
}

func TestEpisodesOfOthersAreNotSeen(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	_, err := f.run.Get(t.Context(), runner.Key{Owner: "4711", Run: k.Run, ID: k.ID})
	if runner.KindOf(err) != runner.KindNotFound {
		t.Errorf("Get() as another owner = %v", err)
	}
}

// E10: the result is last, after all of the output, however many calls there are at once.
func TestResultComesAfterAllOfTheOutput(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	slots := make(chan struct{}, 32)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			spec := sh(`head -c 300000 /dev/zero | tr '\0' a; exit 7`)
			spec.Parallel, spec.MaxStdout = true, 1<<20
			var out bytes.Buffer
			var r api.CallResult
			var err error
			if i%2 == 0 {
				r, err = f.client.Stream(t.Context(), k, spec, api.CallIO{Stdout: &out})
			} else {
				r, err = f.client.Call(t.Context(), k, spec)
				out.Write(r.StdoutRaw())
			}
			if err != nil || r.ExitCode == nil || *r.ExitCode != 7 || out.Len() != 300000 || r.StdoutBytes != 300000 {
				t.Errorf("call %d: %v, exit %v, %d bytes of %d", i, err, r.ExitCode, out.Len(), r.StdoutBytes)
			}
		})
	}
	wg.Wait()
}

func BenchmarkCallOverTheSocket(b *testing.B) {
	f := serveEpisodes(b)
	k := f.create(b, "e")
	spec := api.CallSpec{Tool: "exec", Argv: []string{"/bin/true"}}
	for b.Loop() {
		f.mustCall(b, k, spec)
	}
}

func BenchmarkEpisodeOverTheSocket(b *testing.B) {
	f := serveEpisodes(b)
	n := 0
	for b.Loop() {
		n++
		k := f.create(b, fmt.Sprintf("e/%d", n))
		f.mustCall(b, k, api.CallSpec{Tool: "exec", Argv: []string{"/bin/true"}})
		if _, err := f.client.Finish(b.Context(), k, api.FinishSpec{}); err != nil {
			b.Fatal(err)
		}
		if err := f.client.Delete(b.Context(), k); err != nil {
			b.Fatal(err)
		}
	}
}
