package native

import (
	"testing"
	"time"
)

// A launcher that reaps what runtimes leave behind meets their numbers again: an end from
// before a child was started is not the child's.
func TestEndsOfStrangersAreNotTakenForAChilds(t *testing.T) {
	t.Parallel()
	began := time.Now()
	l := &launcher{early: map[int]gone{7: {0x0900, began.Add(-time.Second)}, 8: {0x0300, began.Add(time.Second)}}}
	if status, ended := l.earlyLocked(7, began); ended {
		t.Errorf("the end of an earlier process 7 is taken for the child's: %#x", status)
	}
	if status, ended := l.earlyLocked(8, began); !ended || status != 0x0300 {
		t.Errorf("the child's own end = %#x, %v, want 0x300", status, ended)
	}
	if len(l.early) != 0 {
		t.Errorf("kept: %v, want nothing that was asked for", l.early)
	}
	for pid := range 1000 {
		l.early[pid] = gone{0, began.Add(-time.Hour)}
	}
	l.forgetOldLocked()
	if len(l.early) != 0 {
		t.Errorf("%d ends that nobody asks for are kept for ever", len(l.early))
	}
}
