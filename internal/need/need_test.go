package need

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// recorder is a testing.TB that notes a failure and ends the goroutine, as T does.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatal(args ...any) {
	r.failed, _ = args[0].(string)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, _ ...any) { r.Fatal(format) }

func TestMissingNeedFailsAndSaysHowToGetIt(t *testing.T) {
	t.Parallel()
	gates := map[string]struct {
		gate func(tb testing.TB)
		says string
	}{
		"command": {func(tb testing.TB) { tb.Helper(); Command(tb, "no-such-program", "no-such-package") }, "apt-get install"},
		"guest":   {func(tb testing.TB) { tb.Helper(); GuestBuilt(tb, nil) }, "make guest"},
	}
	for name, c := range gates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.gate(r)
			}()
			<-done
			if !strings.Contains(r.failed, c.says) {
				t.Errorf("failure = %q, want it to say %q", r.failed, c.says)
			}
		})
	}
}

func TestTmpfsIsATmpfsAndWritable(t *testing.T) {
	t.Parallel()
	dir := Tmpfs(t)
	if !onTmpfs(dir) && !strings.HasPrefix(dir, "/dev/shm") {
		t.Errorf("%s is on no tmpfs", dir)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
}

func TestOverlayAndBusyboxAreHere(t *testing.T) {
	t.Parallel()
	Overlay(t)
	if path := Busybox(t); !filepath.IsAbs(path) {
		t.Errorf("Busybox() = %q, want an absolute path", path)
	}
}
