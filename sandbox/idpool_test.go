package sandbox

import (
	"errors"
	"strings"
	"sync"
	"testing"
)

func TestIDPoolRangesAreDisjoint(t *testing.T) {
	t.Parallel()
	p, err := NewIDPool(300000, 100)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[uint32]bool{}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			m, err := p.Acquire()
			mu.Lock()
			defer mu.Unlock()
			if err != nil || m.Size != IDRangeSize || seen[m.HostID] || (m.HostID-300000)%IDRangeSize != 0 {
				t.Errorf("Acquire() = %v, %v; given out before: %v", m, err, seen[m.HostID])
			}
			seen[m.HostID] = true
		})
	}
	wg.Wait()
	if _, err := p.Acquire(); !errors.Is(err, ErrNoIDs) {
		t.Errorf("Acquire() of an empty pool = %v, want ErrNoIDs", err)
	}
}

func TestIDPoolReusesTheRangeReleasedFirst(t *testing.T) {
	t.Parallel()
	p, err := NewIDPool(300000, 2)
	if err != nil {
		t.Fatal(err)
	}
	acquire := func() IDMap {
		t.Helper()
		m, err := p.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	a, b := acquire(), acquire()
	p.Release(b)
	p.Release(a)
	if got := acquire(); got != b {
		t.Errorf("Acquire() = %v, want %v", got, b)
	}
	if p.Free() != 1 {
		t.Errorf("Free() = %d, want 1", p.Free())
	}
}

func TestIDPoolReleaseOfAForeignRangePanics(t *testing.T) {
	t.Parallel()
	p, err := NewIDPool(300000, 2)
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	p.Release(m)
	for _, bad := range []IDMap{m, {HostID: 1, Size: IDRangeSize}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Release(%v) did not panic", bad)
				}
			}()
			p.Release(bad)
		}()
	}
}

func TestIDPoolKeepsClearOfSubordinateIDs(t *testing.T) {
	t.Parallel()
	subuid := "# people\n\nalice:100000:65536\nbob:365536:65536\ncarol:500000:1\nnobody:1:0\n"
	p, err := NewIDPool(300000, 5, strings.NewReader(subuid), strings.NewReader("dave:4294967295:1\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for p.Free() > 0 {
		m, err := p.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.HostID)
	}
	// 300000 ends just below bob's; 365536 is bob's; 431072 is free; 496608 holds carol's.
	want := []uint32{300000, 431072, 562144, 627680, 693216}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("ranges start at %v, want %v", got, want)
		}
	}
}

func TestIDPoolEndsBelowSignedInts(t *testing.T) {
	t.Parallel()
	p, err := NewIDPool(1<<31-2*IDRangeSize-1, 10)
	if err != nil {
		t.Fatal(err)
	}
	if p.Free() != 2 {
		t.Errorf("Free() = %d, want 2", p.Free())
	}
	if _, err := NewIDPool(0, 10, strings.NewReader("all:0:4294967296\n")); !errors.Is(err, ErrNoIDs) {
		t.Errorf("NewIDPool() with everything taken = %v, want ErrNoIDs", err)
	}
	if _, err := NewIDPool(0, 0); !errors.Is(err, ErrNoIDs) {
		t.Errorf("NewIDPool() of no ranges = %v, want ErrNoIDs", err)
	}
}

func TestIDPoolRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"alice:1", "alice:x:1", "alice:1:x", "alice:-1:5", "a:1:2:3", "alice:1:99999999999"} {
		if _, err := NewIDPool(300000, 1, strings.NewReader(bad)); err == nil {
			t.Errorf("NewIDPool() with %q is accepted", bad)
		}
	}
}

func TestHostIDPoolExists(t *testing.T) {
	t.Parallel()
	p, err := HostIDPool(4)
	if err != nil {
		t.Fatal(err)
	}
	if p.Free() != 4 {
		t.Errorf("Free() = %d, want 4", p.Free())
	}
}
