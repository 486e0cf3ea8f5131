package native

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-run/paddock/guest"
)

// slots hands out the call cgroups of one sandbox. A slot is used again once nothing
// lives in it: a cgroup for each call would leave one dead memory cgroup per call that
// wrote a file.
type slots struct {
	tree *tree
	name string
	// shared: the whole sandbox is in the first slot, whose counters are then every call's.
	shared bool

	mu   sync.Mutex
	free []*slot
	next int

	// seen is the highest peak of the whole sandbox's memory that was read before a call set
	// it back, in a flat tree.
	seen atomic.Int64
}

// slot is one call cgroup and the counters at the start of its call.
type slot struct {
	tree *tree
	path string // below the tree's parent
	mem  string // the same for memory
	acct string // the same for cpuacct on v1
	n    int
	// seen, of the slot whose memory is the whole sandbox's, keeps its peaks.
	seen *atomic.Int64

	cpu0  time.Duration
	mem0  int64
	oom0  int64
	pids0 int64

	made bool
	// sweep, where the slot is shared, asks the guest what is left of the call.
	sweep func(kill bool) int
	// handed: the guest has the tasks files.
	handed bool
	// quiet: the last call left nothing in it, and noted the counters at its end.
	quiet bool
	// fresh: there was no call in it yet.
	fresh bool
}

// acquire returns an empty slot, ready for a call.
func (s *slots) acquire() (*slot, error) {
	s.mu.Lock()
	var sl *slot
	if s.shared {
		sl = newSlot(s.tree, s.name, 0)
		sl.made, sl.handed, sl.sweep = true, true, func(bool) int { return 0 }
		s.mu.Unlock()
		return sl, sl.prepare()
	}
	for i, f := range s.free {
		if f.quiet || f.population() == 0 {
			sl = f
			s.free = append(s.free[:i], s.free[i+1:]...)
			break
		}
	}
	if sl == nil {
		sl = s.newLocked()
	}
	s.mu.Unlock()
	if err := sl.prepare(); err != nil {
		return nil, err
	}
	return sl, nil
}

// ahead makes the first slot while the caller is still being told that the sandbox is
// there. A call that comes sooner makes one of its own; a slot that cannot be made here is
// made, or fails, in a call.
func (s *slots) ahead() {
	s.mu.Lock()
	sl := s.newLocked()
	s.mu.Unlock()
	if sl.make() == nil {
		sl.rest(0, 0, 0)
		sl.fresh = true
	}
	s.release(sl)
}

// given notes the first slot, which the launcher made.
func (s *slots) given() {
	s.mu.Lock()
	sl := s.newLocked()
	s.mu.Unlock()
	sl.made, sl.fresh = true, true
	sl.rest(0, 0, 0)
	s.release(sl)
}

func (s *slots) newLocked() *slot {
	sl := newSlot(s.tree, s.name, s.next)
	if sl.mem == s.name {
		sl.seen = &s.seen
	}
	s.next++
	return sl
}

func newSlot(t *tree, name string, n int) *slot {
	number := "/" + strconv.Itoa(n)
	sl := &slot{tree: t, path: name + "/c" + number, acct: name + number, n: n}
	switch sl.mem = sl.path; {
	case t.flat && n == 0:
		sl.mem = name
	case t.flat:
		sl.mem = name + number
	}
	return sl
}

// release gives a slot back; processes may still live in it.
func (s *slots) release(sl *slot) {
	if sl.sweep != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, sl)
}

func (s *slot) dirs() []string {
	if s.tree.v2 {
		return []string{s.tree.at("", s.path)}
	}
	return []string{s.tree.at("memory", s.mem), s.tree.at("pids", s.path), s.tree.at("cpuacct", s.acct)}
}

// prepare makes the cgroups where needed and notes the counters.
func (s *slot) prepare() error {
	if err := s.make(); err != nil {
		return err
	}
	if !s.fresh {
		s.resetPeak()
	}
	if !s.quiet {
		s.cpu0, s.oom0 = s.cpu(), s.ooms()
	}
	if !s.quiet || s.tree.sharedHits {
		s.pids0 = s.pidsHits()
	}
	s.quiet, s.fresh = false, false
	return nil
}

// resetPeak has the kernel's peak begin anew.
func (s *slot) resetPeak() {
	if s.tree.v2 {
		_ = write(s.tree.at("", s.path), "memory.peak", "0") // from Linux 6.12 on
	} else {
		if s.seen != nil && !s.quiet { // else the last call's end has noted it
			s.peak()
		}
		_ = write(s.tree.at("memory", s.mem), "memory.max_usage_in_bytes", "0")
	}
	s.mem0 = s.memory()
}

func (s *slot) make() error {
	if s.made {
		return nil
	}
	for _, d := range s.dirs() {
		if err := os.Mkdir(d, 0o755); err != nil && !os.IsExist(err) { //nolint:forbidigo // the error is the kernel's own
			return fmt.Errorf("make call cgroup: %w", err)
		}
	}
	s.made = true
	return nil
}

// rest notes the counters at the end of a call that left nothing behind.
func (s *slot) rest(cpu time.Duration, ooms, pids int64) {
	s.cpu0, s.oom0, s.pids0, s.quiet = cpu, ooms, pids, true
}

// number is the slot's in the guest's protocol: 0 where the guest is to keep nothing.
func (s *slot) number() uint32 {
	if s.n >= guest.MaxSlots || s.sweep != nil {
		return 0
	}
	return uint32(s.n + 1)
}

// tasks opens the files that a child writes "0" to; none when the guest has them.
func (s *slot) tasks() ([]*os.File, error) {
	if s.handed {
		return nil, nil
	}
	file := "tasks"
	if s.tree.v2 {
		file = "cgroup.procs"
	}
	var all []*os.File
	for _, d := range s.dirs() {
		f, err := os.OpenFile(filepath.Join(d, file), os.O_WRONLY, 0)
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("open call cgroup: %w", err)
		}
		all = append(all, f)
	}
	return all, nil
}

func (s *slot) cpu() time.Duration {
	if s.tree.v2 {
		return time.Duration(field(s.tree.at("", s.path), "cpu.stat", "usage_usec")) * time.Microsecond
	}
	return time.Duration(readInt(s.tree.at("cpuacct", s.acct), "cpuacct.usage"))
}

func (s *slot) memory() int64 {
	if s.tree.v2 {
		return readInt(s.tree.at("", s.path), "memory.current")
	}
	return readInt(s.tree.at("memory", s.mem), "memory.usage_in_bytes")
}

func (s *slot) peak() int64 {
	if s.tree.v2 {
		return readInt(s.tree.at("", s.path), "memory.peak")
	}
	n := readInt(s.tree.at("memory", s.mem), "memory.max_usage_in_bytes")
	if s.seen != nil && n > s.seen.Load() { // one call at a time has the slot
		s.seen.Store(n)
	}
	return n
}

func (s *slot) ooms() int64 {
	if s.tree.v2 {
		return field(s.tree.at("", s.path), "memory.events", "oom_kill")
	}
	return field(s.tree.at("memory", s.mem), "memory.oom_control", "oom_kill")
}

// pidsHits counts failed forks: in the call's own cgroup or, on some kernels, in the one
// whose limit it was.
func (s *slot) pidsHits() int64 {
	dir := s.tree.at("pids", s.path)
	hits := field(dir, "pids.events", "max")
	if s.tree.sharedHits {
		hits = max(hits, field(filepath.Dir(dir), "pids.events", "max"))
	}
	return hits
}

func (s *slot) procsDir() string { return s.tree.at("pids", s.path) }

// population is the number of processes in the slot.
func (s *slot) population() int {
	if s.sweep != nil {
		return s.sweep(false)
	}
	return len(strings.Fields(read(s.procsDir(), "cgroup.procs")))
}

// killPatience bounds how long a kill waits for the kernel.
const killPatience = 2 * time.Second

// kill ends every process of the slot and returns how many it found. Bounded: after the
// deadline what still lives (a process stuck in the kernel) is left to the sandbox's end.
func (s *slot) kill() int {
	if s.sweep != nil {
		return s.killSwept()
	}
	dir := s.procsDir()
	found := s.population()
	if found == 0 {
		return 0
	}
	if !s.tree.v2 {
		_ = write(dir, "pids.max", "0") // no new forks while the list is walked
		defer func() { _ = write(dir, "pids.max", "max") }()
	}
	deadline := time.Now().Add(killPatience)
	for wait := 200 * time.Microsecond; time.Now().Before(deadline); wait = min(2*wait, 20*time.Millisecond) {
		if !s.tree.v2 || write(dir, "cgroup.kill", "1") != nil {
			killProcs(dir)
		}
		if s.population() == 0 {
			break
		}
		<-time.After(wait)
	}
	return found
}

// killSwept is kill by the guest.
func (s *slot) killSwept() int {
	found := s.sweep(true)
	deadline := time.Now().Add(killPatience)
	for wait := time.Millisecond; found > 0 && time.Now().Before(deadline); wait = min(2*wait, 20*time.Millisecond) {
		if s.sweep(true) == 0 {
			break
		}
		<-time.After(wait)
	}
	return found
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// populated says whether an ended call left processes.
func (s *slots) populated() bool {
	if s.shared { // the sandbox itself is in it
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.free {
		if !sl.quiet && sl.population() > 0 {
			return true
		}
	}
	return false
}

// all are the slots that no call holds.
func (s *slots) all() []*slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*slot(nil), s.free...)
}
