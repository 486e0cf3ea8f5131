package sandbox

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
)

// ErrNoIDs says that every range of ids is in use; try again when a sandbox has ended.
var ErrNoIDs = errors.New("no free range of user ids")

const (
	// IDRangeSize is the number of ids of one sandbox.
	IDRangeSize = 65536
	// firstHostID is where the host's pool starts: above the ids of people and services,
	// and of the first users that adduser gives subordinate ids to.
	firstHostID = 300000
	// lastHostID keeps clear of ids that are negative in a signed reading.
	lastHostID = 1<<31 - 1
)

// IDPool hands out disjoint ranges of host ids. Its methods may be called from any
// goroutine.
type IDPool struct {
	mu sync.Mutex
	// free is in the order of release: the range that was given back last is used last,
	// so that a late user of an old range meets nobody for as long as possible.
	free []uint32
	held map[uint32]bool
}

// NewIDPool returns a pool of at most max ranges from the host id first on. Ranges that
// touch one named in reserved (the contents of /etc/subuid and /etc/subgid) are left out.
func NewIDPool(first uint32, max int, reserved ...io.Reader) (*IDPool, error) {
	var taken []hostRange
	for _, r := range reserved {
		more, err := parseSubIDs(r)
		if err != nil {
			return nil, err
		}
		taken = append(taken, more...)
	}
	p := &IDPool{held: map[uint32]bool{}}
	for id := uint64(first); len(p.free) < max && id+IDRangeSize-1 <= lastHostID; {
		if end, ok := overlap(taken, id); ok {
			// Go on behind what is in the way, in step with the grid.
			id += (end - id + IDRangeSize - 1) / IDRangeSize * IDRangeSize
			continue
		}
		p.free = append(p.free, uint32(id))
		id += IDRangeSize
	}
	if len(p.free) == 0 {
		return nil, fmt.Errorf("user ids from %d: %w", first, ErrNoIDs)
	}
	return p, nil
}

// HostIDPool is the pool of this host: up to max ranges clear of /etc/subuid and
// /etc/subgid.
func HostIDPool(max int) (*IDPool, error) {
	var reserved []io.Reader
	for _, name := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		reserved = append(reserved, bytes.NewReader(data))
	}
	return NewIDPool(firstHostID, max, reserved...)
}

// Acquire returns a range that nobody else holds, or ErrNoIDs.
func (p *IDPool) Acquire() (IDMap, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return IDMap{}, ErrNoIDs
	}
	id := p.free[0]
	p.free = p.free[1:]
	p.held[id] = true
	return IDMap{HostID: id, Size: IDRangeSize}, nil
}

// Release gives a range back. The caller has proved that no process and no file of it is
// left. Releasing a range that is not held panics: two sandboxes would share one.
func (p *IDPool) Release(m IDMap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Size != IDRangeSize || !p.held[m.HostID] {
		panic(fmt.Sprintf("sandbox: release of ids %d+%d, which are not held", m.HostID, m.Size))
	}
	delete(p.held, m.HostID)
	p.free = append(p.free, m.HostID)
}

// Free is how many ranges are left.
func (p *IDPool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// hostRange is ids from first to end, end not included.
type hostRange struct{ first, end uint64 }

// overlap returns the end of a range in taken that a pool range from id on would touch.
func overlap(taken []hostRange, id uint64) (end uint64, ok bool) {
	for _, t := range taken {
		if t.first < id+IDRangeSize && id < t.end {
			return t.end, true
		}
	}
	return 0, false
}

// parseSubIDs reads "name:first:count" lines. A line it cannot read is an error: ids that
// somebody was promised must not be guessed at.
func parseSubIDs(r io.Reader) ([]hostRange, error) {
	var all []hostRange
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, ":")
		if len(fields) != 3 {
			return nil, fmt.Errorf("subordinate ids, line %d: want name:first:count", n)
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("subordinate ids, line %d: %w", n, err)
		}
		count, err := strconv.ParseUint(fields[2], 10, 33)
		if err != nil {
			return nil, fmt.Errorf("subordinate ids, line %d: %w", n, err)
		}
		if count > 0 {
			all = append(all, hostRange{first, first + count})
		}
	}
	return all, lines.Err()
}
