package need

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// lacks are the answers outside of any sandbox of a kernel that has no IPv6, or no 32-bit
// system calls. User-Mode Linux is one: it takes int 0x80 for a call of the 64-bit table, and
// 20 is writev there.
var lacks = map[string]string{"inet6": "inet6 EAFNOSUPPORT", "int80": "int80 EBADF"}

// masked are the answers inside of files that not every kernel has, where it has them; the
// golden files are of one that has not.
var masked = map[string]string{"sysrq": "sysrq EACCES", "kcore": "kcore ENODATA"}

// ProbeTable is what a probe (sandbox/native/testdata) must find in a sandbox: the lines of a
// golden file. What the kernel lacks altogether, as the probe sees outside of any sandbox, it
// lacks inside, too, with the same answer; anything else that the kernel does not do outside
// fails the test.
func ProbeTable(tb testing.TB, probe, golden string) string {
	tb.Helper()
	table, err := os.ReadFile(golden)
	if err != nil {
		tb.Fatal(err)
	}
	out, err := exec.CommandContext(tb.Context(), probe, "inet6", "int80", "sysrq", "kcore").CombinedOutput()
	if err != nil {
		tb.Fatalf("the probe outside of a sandbox: %v\n%s", err, out)
	}
	lines := strings.Split(string(table), "\n")
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		name, answer, _ := strings.Cut(line, " ")
		inside, isFile := masked[name]
		switch {
		case isFile && answer == "ENOENT", !isFile && answer == "ok":
			continue
		case isFile:
			line = inside
		case line != lacks[name]:
			tb.Fatalf("the probe outside of a sandbox: %q, want %q or that it is ok", line, lacks[name])
		}
		for i := range lines {
			if strings.HasPrefix(lines[i], name+" ") {
				lines[i] = line
			}
		}
	}
	return strings.Join(lines, "\n")
}
