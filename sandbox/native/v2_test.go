//go:build v2

package native_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/disk"
)

// X-F14, X-F18, U: sandboxes whose layers are bounded by project quotas.
func TestLayersWithProjectQuota(t *testing.T) {
	for _, dir := range need.ProjectQuota(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			full := "No space left"
			if filepath.Base(dir) == "ext4" {
				full = "Disk quota exceeded"
			}
			layersOn(t, disk.Project, need.Below(t, dir), full)
		})
	}
}

func TestLauncherWithProjectQuota(t *testing.T) {
	contractOn(t, disk.Project, need.Below(t, need.ProjectQuota(t)[0]))
}

// X-F20: what escapes a quota, or makes a file stay, is refused inside: project ids, however
// the command is written, and the flags immutable and append-only. The quota still holds.
func TestNoProgramChangesItsProject(t *testing.T) {
	program := escape(t)
	for _, dir := range need.ProjectQuota(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			l := newLauncherOn(t, disk.Project, need.Below(t, dir))
			for _, policy := range []string{"default", "strict"} {
				s, err := l.Launcher.Start(t.Context(), onDisk(policy, policies.Limits{DiskBytes: 16 << 20, Inodes: 500})(t, "escape-"+policy))
				if err != nil {
					t.Fatal(err)
				}
				user := sandbox.User{}
				if policy == "strict" {
					user = sandbox.User{UID: 1000, GID: 1000}
				}
				if _, err := s.Files().Write(t.Context(), sandbox.User{}, "/tmp/escape", bytes.NewReader(program), 0o755); err != nil {
					t.Fatal(err)
				}
				r := run(t, s, sandbox.Command{Argv: []string{"/tmp/escape", "/tmp/f"}, Dir: "/", User: user})
				if want := "project EPERM\nproject-high EPERM\nflags EPERM\n"; r.out != want {
					t.Errorf("%s: %q %q, want %q", policy, r.out, r.err, want)
				}
				cmd := script("dd if=/dev/zero of=/tmp/f bs=1M count=64")
				cmd.User = user
				if r := run(t, s, cmd); code(r) == 0 || r.Full != sandbox.FullDisk {
					t.Errorf("%s: then 64 MiB went in: %q", policy, r.err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// escape compiles the attack.
func escape(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	text := `#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static void say(const char *what, long n) { printf("%s %s\n", what, n == 0 ? "ok" : errno == EPERM ? "EPERM" : "other"); }
int main(int c, char **v) {
	unsigned char attr[28] = {0};
	long flags = 0x10;
	int fd = open(v[1], O_CREAT | O_RDWR, 0644);
	if (fd < 0) return 1;
	say("project", syscall(SYS_ioctl, fd, 0x401c5820ul, attr));
	say("project-high", syscall(SYS_ioctl, fd, 0x1401c5820ul, attr));
	say("flags", syscall(SYS_ioctl, fd, 0x40086602ul, &flags));
	return 0;
}
`
	source, binary := filepath.Join(dir, "escape.c"), filepath.Join(dir, "escape")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), need.Command(t, "gcc", "gcc"), "-static", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// X-F25, U: with its quota used up when the overlay is mounted the kernel would mount it
// read-only and say nothing; that start is refused, and nothing is left of it.
func TestQuotaThatIsUsedUpIsNoReadOnlySandbox(t *testing.T) {
	for _, dir := range need.ProjectQuota(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			l := newLauncherOn(t, disk.Project, need.Below(t, dir))
			refused := 0
			for inodes := int64(1); inodes <= 8; inodes++ {
				spec := onDisk("default", policies.Limits{})(t, "used-up")
				spec.Root.Upper.Inodes = inodes
				s, err := l.Launcher.Start(t.Context(), spec)
				if err != nil {
					refused++
					if !strings.Contains(err.Error(), "no space left") && !strings.Contains(err.Error(), "read-only") {
						t.Errorf("%d inodes: %v, want that there is no space", inodes, err)
					}
					continue
				}
				if r := run(t, s, script(": >/tmp/f; echo $?; grep ' / ' /proc/mounts | cut -d' ' -f4 | cut -d, -f1")); !strings.HasSuffix(r.out, "rw\n") {
					t.Errorf("%d inodes: the root is %q %q, want rw", inodes, r.out, r.err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			if refused == 0 {
				t.Error("no quota was too small")
			}
		})
	}
}
