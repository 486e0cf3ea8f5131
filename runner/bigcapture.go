package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/overlay"
)

const (
	// bigCapture is from how many entries on a capture waits for its turn: a list of
	// hundreds of thousands takes the daemon some 200 MB while it is made and written.
	bigCapture = 20_000
	// largeCapture is from how many bytes on it waits, too: hashing them takes the CPUs.
	largeCapture = 32 << 20
	// bigCaptures is how many of them are made at a time, whatever the number of agents
	// that fill their disks.
	bigCaptures = 2
)

// captureUpper reads and keeps the end state. What it returns of a big one lists only the
// changes that the attempt's graders look at, as it is held until the last has ended.
func (a *attempt) captureUpper(ctx context.Context) (overlay.Capture, error) {
	upper := a.sb.Upper()
	inodes, bytes := used(upper)
	big := inodes > bigCapture
	if big || bytes > largeCapture {
		release, err := a.r.captures.acquire(ctx)
		if err != nil {
			return overlay.Capture{}, err
		}
		defer release()
	}
	if big {
		defer debug.FreeOSMemory()
	}
	c, err := a.fork.Capture(ctx, overlay.CaptureInput{Upper: upper, HostID: a.ids.HostID, Pack: filepath.Join(a.dir, packFile)})
	if err == nil {
		err = saveCapture(a.dir, c)
	}
	if err != nil {
		return overlay.Capture{}, fmt.Errorf("end state: %w", err)
	}
	a.noteCapture(c)
	if big {
		c.Changes = a.protectedOnly(ctx, c.Changes)
	}
	return c, nil
}

// noteCapture puts the numbers of a capture on record.
func (a *attempt) noteCapture(c overlay.Capture) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rec.Digests.State, a.rec.Digests.StateFull = digestVersion+c.State, digestVersion+c.StateFull
	a.rec.Capture = &CaptureSummary{
		Changes: len(c.Changes), Bytes: c.Bytes, Stored: c.Stored, Rescorable: c.Rescorable,
		Truncated: c.Truncated, Seconds: c.Took.Seconds(),
	}
}

// protectedOnly are the changes to paths that a grader of the attempt protects, as many
// for each as a score reports.
func (a *attempt) protectedOnly(ctx context.Context, changes []overlay.Change) []overlay.Change {
	kept := []overlay.Change{}
	for _, g := range a.plan.Spec.Graders {
		if isClientGrader(g.Grader) {
			continue
		}
		spec, err := a.r.Grader(ctx, g.Grader)
		if err != nil {
			continue // its score will be that it is not to be had
		}
		kept = append(kept, tamperings(changes, spec.guarded())...)
	}
	return kept
}

// tamperings are the first changes, as many as a score reports, to protected paths.
func tamperings(changes []overlay.Change, protected []string) []overlay.Change {
	var found []overlay.Change
	for i := range changes {
		if len(found) >= maxTampered {
			break
		}
		if slices.ContainsFunc(protected, func(p string) bool { return tampers(&changes[i], p) }) {
			found = append(found, changes[i])
		}
	}
	return found
}

// used is how many inodes and bytes the file system of an upper directory has; zeros where
// that cannot be known.
func used(upper *os.File) (inodes, bytes uint64) {
	var st unix.Statfs_t
	if upper == nil || unix.Fstatfs(int(upper.Fd()), &st) != nil {
		return 0, 0
	}
	return st.Files - min(st.Ffree, st.Files), (st.Blocks - min(st.Bfree, st.Blocks)) * uint64(max(st.Bsize, 0)) //nolint:gosec // not negative
}
