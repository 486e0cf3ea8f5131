package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

// world is the name of the one world that there is.
const world = "busybox"

// serveEpisodes is a server on real sandboxes and a real record. Only the store of worlds
// is a small stand-in, which has one world and captures nothing.
func serveEpisodes(tb testing.TB, changes ...func(*Config)) *front {
	tb.Helper()
	need.Root(tb)
	dir := need.Tmpfs(tb)
	rec, err := record.Open(tb.Context(), dir)
	if err != nil {
		tb.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	if err := os.MkdirAll(run, 0o700); err != nil {
		tb.Fatal(err)
	}
	l, err := native.New(native.Config{Dir: run, CgroupParent: "paddock-test/" + filepath.Base(socketDir(tb))})
	if err != nil {
		tb.Fatal(err)
	}
	pool, err := ids()
	if err != nil {
		tb.Fatal(err)
	}
	f := serve(tb, func(c *Config) {
		host := policies.Host{CPUs: 64, MemoryBytes: 64 << 30}
		r, err := runner.New(tb.Context(), runner.Config{
			Root: dir, Launcher: launcher{l}, Worlds: &oneWorld{dir: tree(tb), used: map[*oneFork]bool{}}, Record: rec,
			Policies: c.Policies, Host: host, IDs: pool, Log: c.Log, Egress: egress.NewHost(nil, c.Log),
		})
		if err != nil {
			tb.Fatal(err)
		}
		c.Runner, c.Launcher = r, l
		for _, change := range changes {
			change(c)
		}
		// After the server, whose clean-up is registered later and so runs first.
		tb.Cleanup(func() {
			if err := errors.Join(r.Close(context.WithoutCancel(tb.Context())), l.Close(), rec.Close()); err != nil {
				tb.Errorf("close: %v", err)
			}
		})
		c.Apps = openApps(tb, r, rec)
	})
	return f
}

var ids = sync.OnceValues(func() (*sandbox.IDPool, error) { return sandbox.HostIDPool(1 << 12) })

type launcher struct{ *native.Launcher }

func (l launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return box{s}, nil
}

type box struct{ *native.Sandbox }

func (b box) Files() runner.Files { return b.Sandbox.Files() }

// tree makes the world's only layer. It is on no tmpfs of its own accord: before 6.3 the
// kernel cannot idmap one.
func tree(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	busybox, err := os.ReadFile(need.Busybox(tb))
	if err != nil {
		tb.Fatal(err)
	}
	for _, d := range []string{"bin", "dev", "proc", "sys", "etc", "root", "tmp", "home"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		tb.Fatal(err)
	}
	for name, text := range map[string]string{
		"bin/busybox": string(busybox), "etc/passwd": "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home:/bin/sh\n", "etc/group": "root:x:0:\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	list, err := exec.CommandContext(tb.Context(), need.Busybox(tb), "--list").Output()
	if err != nil {
		tb.Fatal(err)
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			_ = os.Symlink("busybox", filepath.Join(dir, "bin", applet))
		}
	}
	return dir
}

// oneWorld is a store of one world.
type oneWorld struct {
	dir string

	mu   sync.Mutex
	used map[*oneFork]bool
}

var theWorld = overlay.World{ID: "sha256:" + strings.Repeat("ab", 32), Layers: []string{"sha256:" + strings.Repeat("cd", 32)}, Names: []string{world}}

func (o *oneWorld) World(_ context.Context, ref string) (overlay.World, error) {
	if ref != world && ref != theWorld.ID {
		return overlay.World{}, &overlay.NotFoundError{Ref: ref}
	}
	return theWorld, nil
}

func (o *oneWorld) Unname(context.Context, string) error { return nil }

func (o *oneWorld) List(context.Context) ([]overlay.World, error) {
	return []overlay.World{theWorld}, nil
}

// Build tells of progress, then does what the recipe's name asks for.
func (o *oneWorld) Build(_ context.Context, r overlay.Recipe, p overlay.Progress) (overlay.Built, error) {
	if r.Dir == "" && r.Tar == "" && !r.Busybox {
		return overlay.Built{}, &overlay.RecipeError{Kind: "bad_recipe", Detail: "nothing to build from"}
	}
	p("copy", 1, 2)
	if r.Name == "broken" {
		return overlay.Built{}, &overlay.RecipeError{Kind: "build_failed", Path: "debian:sid", Detail: "exit status 1: E: no mirror"}
	}
	if r.Name == "bad" {
		return overlay.Built{}, &overlay.RecipeError{Kind: "outside_root", Path: "../x"}
	}
	p("copy", 2, 2)
	w := theWorld
	if r.Tar != "" {
		text, err := os.ReadFile(r.Tar)
		if err != nil {
			return overlay.Built{}, err
		}
		w.Recipe = string(text)
	}
	return overlay.Built{World: w}, nil
}

func (o *oneWorld) Fork(context.Context, string) (runner.Fork, error) {
	f := &oneFork{store: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used[f] = true
	return f, nil
}

func (o *oneWorld) Remove(ctx context.Context, ref string) error {
	if _, err := o.World(ctx, ref); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.used) > 0 {
		return overlay.ErrInUse
	}
	return nil
}

func (o *oneWorld) Import(_ context.Context, from overlay.Source, _ string, _ overlay.Progress) (overlay.World, error) {
	if from.Stream == nil {
		return theWorld, nil
	}
	_, err := io.Copy(io.Discard, from.Stream)
	return theWorld, err
}

func (o *oneWorld) Export(ctx context.Context, ref string, w io.Writer) error {
	if _, err := o.World(ctx, ref); err != nil {
		return err
	}
	_, err := io.WriteString(w, "an image")
	return err
}

func (o *oneWorld) Push(_ context.Context, _ string, to overlay.Remote, _ overlay.Progress) (string, error) {
	if to.Ref == "down/app:1" {
		return "", &overlay.RegistryError{Kind: overlay.RegistryUnavailable, Ref: to.Ref, Detail: "no answer"}
	}
	return to.Ref + " by " + to.Username, nil
}

func (o *oneWorld) Name(ctx context.Context, name, ref string) (overlay.World, error) {
	w, err := o.World(ctx, ref)
	w.Names = []string{name}
	return w, err
}

func (o *oneWorld) Collect(ctx context.Context, in overlay.Collection) (overlay.Collected, error) {
	needed, err := in.Needed(ctx)
	return overlay.Collected{Removed: []overlay.World{theWorld}, FreedBytes: in.MaxBytes, Needed: len(needed)}, err
}

type oneFork struct{ store *oneWorld }

func (f *oneFork) World() overlay.World { return theWorld }

func (f *oneFork) Lowers() []string { return []string{f.store.dir} }

func (f *oneFork) Capture(context.Context, overlay.CaptureInput) (overlay.Capture, error) {
	return overlay.Capture{State: "sha256:0", StateFull: "sha256:0", Rescorable: true}, nil
}

func (f *oneFork) Track(*os.File, uint32) runner.Tracker { return noTracker{} }

func (f *oneFork) Restore(context.Context, overlay.Capture, string, *os.File, uint32) error {
	return errors.New("nothing is kept")
}

func (f *oneFork) Seal(context.Context, overlay.SealInput) (overlay.World, error) {
	return theWorld, nil
}

func (f *oneFork) Compact(context.Context) error { return nil }

func (f *oneFork) Release() {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	delete(f.store.used, f)
}

type noTracker struct{}

func (noTracker) Changes(context.Context, int) ([]overlay.Change, bool, error) {
	return nil, false, nil
}

func newRequest(tb testing.TB, body string) *http.Request {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, "/", strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}
