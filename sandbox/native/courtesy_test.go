package native

import (
	"errors"
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
		if c.crowded() {
			t.Error("one that computes is a crowd")
		}
		c.computes(runtime.NumCPU())
		if !c.crowded() {
			t.Error("more than there are CPUs are no crowd")
		}
		c.computes(-runtime.NumCPU())
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

// A sandbox computes while a call of it does, or what one left; that it did once counts for
// nothing while it waits for the next.
func TestASandboxComputesOnlyWhileSomethingRuns(t *testing.T) {
	need.Root(t)
	tr, err := openTree(fmt.Sprintf("paddock-test-computes-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	const name = "box"
	if err := tr.create(name); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(tr.remove(name), tr.removeParent()); err != nil {
			t.Error(err)
		}
	}()
	left := false
	c := &courtesy{used: func() (host, own time.Duration) { return 0, 0 }, put: func(bool) error { return nil }}
	h := &hog{tree: tr, name: name, courtesy: c, leftovers: func() bool { return left }}
	becomes := func(p pace) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.setLocked(p)
	}
	want := func(when string, busy int) {
		t.Helper()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.busy != busy {
			t.Errorf("%s: %d compute, want %d", when, c.busy, busy)
		}
	}
	h.begin()
	want("a call began", 0)
	becomes(light)
	becomes(idle)
	want("the call is a hog", 1)
	h.die()
	want("its processes are being killed", 1)
	h.end(false)
	want("the call has ended", 0)
	h.begin()
	becomes(idle)
	left = true
	h.end(true)
	want("a call left a hog", 1)
	left = false
	h.look()
	want("what was left is gone", 0)
	h.begin()
	becomes(idle)
	h.close()
	h.close()
	want("the sandbox is closed", 0)
}
