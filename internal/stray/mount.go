package stray

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mountLine is one line of /proc/PID/mountinfo.
type mountLine struct {
	root, point, fsType, source, options string
}

// parseMounts reads mountinfo: ID parent major:minor root point options [optional...] -
// type source superoptions. Lines that it cannot read are left out.
func parseMounts(file string) []mountLine {
	var mounts []mountLine
	for line := range strings.Lines(file) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		left, right := strings.Split(before, " "), strings.Split(after, " ")
		if !ok || len(left) < 6 || len(right) < 3 {
			continue
		}
		mounts = append(mounts, mountLine{
			root: unescape(left[3]), point: unescape(left[4]),
			fsType: right[0], source: unescape(right[1]), options: unescape(right[2]),
		})
	}
	return mounts
}

// unescape undoes the kernel's \ooo for space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// ofStore says whether a mount was made for the store: it lies below it, shows a
// directory of it, or is an overlay of paddock's.
func (m mountLine) ofStore(store string) bool {
	if m.fsType == "overlay" && mentions(m.options, store) {
		return true
	}
	below := within(m.point, store) && m.point != store
	return below || within(m.source, store)
}

// mentions says whether a directory of store stands in an overlay's options.
func mentions(options, store string) bool {
	for option := range strings.SplitSeq(options, ",") {
		_, dirs, _ := strings.Cut(option, "=")
		for dir := range strings.SplitSeq(dirs, ":") {
			if within(dir, store) {
				return true
			}
		}
	}
	return false
}

// mounts looks into every mount namespace once, through one of its processes.
func (s *search) mounts() error {
	s.mountHolders = map[int]bool{}
	own, err := os.Readlink(filepath.Join(s.host.Proc, "self/ns/mnt"))
	if err != nil {
		return err
	}
	holders := map[string][]int{}
	for pid, p := range s.all {
		if p.mountNS != "" {
			holders[p.mountNS] = append(holders[p.mountNS], pid)
		}
	}
	for ns, pids := range holders {
		if s.anyLive(pids) {
			continue
		}
		info, ok := s.mountsOf(pids)
		if !ok {
			continue
		}
		for _, m := range parseMounts(info) {
			if !m.ofStore(s.scope.Store) {
				continue
			}
			s.add(Mount, ns+" "+m.point, "%s from %s", m.fsType, m.source)
			// The host's own namespace is everybody's; another is held by its processes.
			for _, pid := range pids {
				s.mountHolders[pid] = s.mountHolders[pid] || ns != own
			}
		}
	}
	return nil
}

func (s *search) anyLive(pids []int) bool {
	// The daemon may share the host's mount namespace with everybody: mounts of the store
	// in it are its own then, and a second look is not possible from outside.
	for _, pid := range pids {
		if s.live[pid] {
			return true
		}
	}
	return false
}

func (s *search) mountsOf(pids []int) (string, bool) {
	for _, pid := range pids {
		if info, err := os.ReadFile(filepath.Join(s.host.Proc, strconv.Itoa(pid), "mountinfo")); err == nil {
			return string(info), true
		}
	}
	return "", false
}
