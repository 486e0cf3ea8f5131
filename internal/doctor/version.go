package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// version is major, minor, patch, and the number of a release candidate; a release is
// newer than all of its candidates.
type version [4]int

const release = 1 << 20

func (v version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
	if v[3] != release {
		s += fmt.Sprintf("-rc.%d", v[3])
	}
	return s
}

func (v version) less(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

var versionPattern = regexp.MustCompile(`(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:-rc\.?(\d{1,6}))?`)

// parseVersion finds the first version number in a text.
func parseVersion(text string) (version, bool) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return version{}, false
	}
	var v version
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // digits or empty
	}
	if m[4] == "" {
		v[3] = release
	}
	return v, true
}

// floors are the first versions, per series, with a fix; a newer series than the last has
// it too.
type floors []version

// fixed says whether v has the fix.
func (f floors) fixed(v version) bool {
	for _, floor := range f {
		if v[0] == floor[0] && v[1] == floor[1] {
			return !v.less(floor)
		}
	}
	return !v.less(f[len(f)-1])
}

func (f floors) String() string {
	var all []string
	for _, v := range f {
		all = append(all, v.String())
	}
	return strings.Join(all, ", ")
}

// fixes are the known ways out of a container by a fault of its runtime, and the first
// versions without them. Docker is here by the runc that its releases bring along; a
// distribution's own packages may differ.
var fixes = []struct {
	program string
	cve     string
	from    floors
}{
	{"runc", "CVE-2024-21626", floors{{1, 1, 12, release}}},
	{"runc", "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", floors{{1, 2, 8, release}, {1, 3, 3, release}, {1, 4, 0, 3}}},
	{"docker", "CVE-2024-21626", floors{{24, 0, 9, release}, {25, 0, 2, release}}},
	{"docker", "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", floors{{28, 5, 2, release}, {29, 0, 0, release}}},
}

// Unfixed says which fixes a version of a program lacks, going by its number alone: a
// distribution may have fixed it without a new one.
func Unfixed(program, text string) []string {
	v, ok := parseVersion(text)
	var lacks []string
	for _, f := range fixes {
		if ok && f.program == program && !f.from.fixed(v) {
			lacks = append(lacks, fmt.Sprintf("%s (fixed in %s)", f.cve, f.from))
		}
	}
	return lacks
}

// Launcher is one launcher as it was tried on this host.
type Launcher struct {
	// Name is how it is asked for, Program what it calls with its version as printed.
	Name, Program, Version string
	// Absent: the program is not installed, or the engine does not answer.
	Absent error
	// Err is why a trial failed.
	Err error
	// Says is what is to be known of one that works.
	Says string
}

// Check is a line of the report. Only native has to work.
func (l Launcher) Check() Check {
	c := ok("works%s", l.Says)
	switch lacks := Unfixed(l.Program, l.Version); {
	case l.Absent != nil && l.Program == "":
		c = fail("see the lines above", "%v", l.Absent)
	case l.Absent != nil:
		c = ok("not here: %v", l.Absent)
	case l.Err != nil && l.Program == "":
		c = fail("see the lines above", "a trial failed: %v", l.Err)
	case l.Err != nil:
		c = warn("use another launcher here", "%s %s: a trial failed: %v", l.Program, l.Version, l.Err)
	case len(lacks) > 0:
		c = warn("update it before untrusted code runs under it, unless your distribution says that it has the fixes",
			"works, but %s %s lacks, by its number, the fixes of %s", l.Program, l.Version, strings.Join(lacks, "; "))
	case l.Program != "":
		c = ok("works: %s %s%s", l.Program, l.Version, l.Says)
	}
	c.Name = "launcher " + l.Name
	return c
}
