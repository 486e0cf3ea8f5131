package native

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-run/paddock/internal/need"
)

// Sandboxes stand behind the rest of the host as long as one computes and the rest leaves
// them CPUs.
func TestSandboxesStandBehindACalmHostWhileOneComputes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, share, behind := time.Now(), 0.1, false
		var spent time.Duration // of the others, until began
		c := &courtesy{
			used: func() (host, own time.Duration) {
				own = time.Since(began)
				return spent + own + time.Duration(share*float64(runtime.NumCPU())*float64(time.Since(began))), own
			},
			put: func(b bool) error { behind = b; return nil },
		}
		to := func(s float64) { // the others want another share from now on
			spent += time.Duration(share * float64(runtime.NumCPU()) * float64(time.Since(began)))
			began, share = time.Now(), s
		}
		want := func(when string, wanted bool) {
			t.Helper()
			time.Sleep(2 * courtesyLook)
			synctest.Wait()
			if behind != wanted {
				t.Errorf("%s: behind the host %v, want %v", when, behind, wanted)
			}
		}
		want("nothing computes", false)
		c.computes(1)
		want("one computes on a calm host", true)
		c.computes(1)
		to(0.9)
		want("the host is busy", false)
		to(0.3)
		want("the host is calm again", true)
		c.computes(-1)
		want("another still computes", true)
		c.computes(-1)
		want("none computes any more", false)
		c.computes(1)
		want("one computes", true)
		c.close()
		want("after the end", false)
		c.computes(1)
		want("after the end one computes", false)
	})
}

// What is written is what the kernel does, and the weight is there again afterwards.
func TestStandingBehindIsTheKernels(t *testing.T) {
	need.Root(t)
	tr, err := openTree(fmt.Sprintf("paddock-test-courtesy-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.removeParent(); err != nil {
			t.Error(err)
		}
	}()
	weight := "cpu.shares"
	if tr.v2 {
		weight = "cpu.weight"
	}
	look := func() string {
		return strings.Join([]string{read(tr.top("cpu"), "cpu.idle"), read(tr.top("cpu"), weight)}, " ")
	}
	c, before := newCourtesy(tr), look()
	c.setLocked(true)
	if !strings.HasPrefix(look(), "1 ") {
		t.Errorf("behind: %s, want SCHED_IDLE", look())
	}
	c.setLocked(false)
	if look() != before {
		t.Errorf("afterwards %s, before %s", look(), before)
	}
	if host, own := c.used(); host <= 0 || own < 0 || own > host {
		t.Errorf("the host has used %s, sandboxes %s of it", host, own)
	}
}
