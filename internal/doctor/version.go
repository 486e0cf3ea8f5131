package doctor

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// version is major, minor, patch.
type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

func (v version) less(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

var versionPattern = regexp.MustCompile(`(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?`)

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
	return v, true
}

// floors are the first versions, per series, with the fixes of known ways out of a
// container; a newer series than the last has them too.
type floors []version

// runcFloors: CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881.
var runcFloors = floors{{1, 2, 8}, {1, 3, 3}, {1, 4, 0}}

// dockerFloors: the first Docker release that ships such a runc.
var dockerFloors = floors{{28, 5, 2}, {29, 0, 0}}

// hold says whether v is fixed.
func (f floors) hold(v version) bool {
	for _, floor := range f {
		if v[0] == floor[0] && v[1] == floor[1] {
			return !v.less(floor)
		}
	}
	return !v.less(f[len(f)-1])
}

// runtimeVersion looks at an optional container runtime. The native launcher needs none.
func runtimeVersion(ctx context.Context, name string, fixed floors) Check {
	path, err := exec.LookPath(name)
	if err != nil {
		return ok("not installed; only `paddock bench` compares with it")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return warn("repair or remove it", "%s --version: %v", path, err)
	}
	v, found := parseVersion(string(out))
	if !found {
		return warn("repair or remove it", "%s --version names no version", path)
	}
	if !fixed.hold(v) {
		return warn(fmt.Sprintf("update to %v or newer before untrusted code runs under it; the native launcher does not use it", fixed[len(fixed)-1]),
			"%s %v lacks fixes of known breakouts", name, v)
	}
	return ok("%s %v", name, v)
}
