package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// debian is the base recipe of mmdebstrap.
type debian struct {
	Debian
	store   *Store
	program string
}

var (
	suiteForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	packageForm = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,127}$`)
)

func newDebian(s *Store, d Debian) (*debian, error) {
	if !suiteForm.MatchString(d.Suite) {
		return nil, refuse("bad_recipe", "", "debian suite %q", d.Suite)
	}
	d.Packages = slices.Compact(slices.Sorted(slices.Values(d.Packages)))
	if len(d.Packages) > 1000 {
		return nil, refuse("bad_recipe", "", "more than 1000 packages")
	}
	for _, p := range d.Packages {
		if !packageForm.MatchString(p) {
			return nil, refuse("bad_recipe", "", "package %q", p)
		}
	}
	program := s.opts.Mmdebstrap
	if program == "" {
		var err error
		if program, err = exec.LookPath("mmdebstrap"); err != nil {
			return nil, refuse("missing_tool", "mmdebstrap", "install the package mmdebstrap")
		}
	}
	return &debian{Debian: d, store: s, program: program}, nil
}

func (d *debian) kind() string  { return "debian" }
func (d *debian) name() string  { return "debian:" + d.Suite }
func (d *debian) network() bool { return true }
func (d *debian) close()        {}

func (d *debian) input(context.Context, Progress) (string, error) {
	return strings.Join(append([]string{d.Suite}, d.Packages...), " "), nil
}

// addAgent makes the user that commands run as.
const addAgent = `chroot "$1" useradd --create-home --user-group --uid 1000 --shell /bin/bash agent`

func (d *debian) args() []string {
	out := []string{
		"--mode=root", "--variant=minbase", "--format=tar", "--quiet", "--skip=output/dev",
		"--customize-hook=" + addAgent,
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*/*",
	}
	if len(d.Packages) > 0 {
		out = append(out, "--include="+strings.Join(d.Packages, ","))
	}
	return append(out, d.Suite, "-")
}

// buildTail is how much of the tool's words an error repeats.
const buildTail = 2 << 10

func (d *debian) fill(ctx context.Context, root int, p Progress) (layer, error) {
	p("mmdebstrap", 0, 0)
	scratch, err := os.MkdirTemp(d.store.path("tmp"), tmpPrefix+"debian-*")
	if err != nil {
		return layer{}, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, d.program, d.args()...)
	// mmdebstrap mounts /proc and others for its chroot; in a namespace of its own, so that
	// its death unmounts them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch.Unix()), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	words := &tail{max: buildTail}
	cmd.Stderr = words
	out, err := cmd.StdoutPipe()
	if err != nil {
		return layer{}, err
	}
	if err := cmd.Start(); err != nil {
		return layer{}, fmt.Errorf("start mmdebstrap: %w", err)
	}
	unpacked := d.unpack(ctx, root, out, p)
	if unpacked != nil {
		cancel(unpacked)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil && (unpacked == nil || len(words.last) > 0) {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, unpacked) {
			return layer{}, cause
		}
		return layer{}, refuse("build_failed", d.name(), "mmdebstrap: %v: %s", err, strings.TrimSpace(string(words.last)))
	}
	if unpacked != nil {
		return layer{}, unpacked
	}
	return measure(ctx, root, p)
}

func (d *debian) unpack(ctx context.Context, root int, r io.Reader, p Progress) error {
	t := newTree(root, d.store.opts.Limits)
	u := &unpacking{tree: t, step: "unpack", edit: func(e *entry) (bool, error) {
		e.mtime = epoch
		return d.drop(e), nil
	}}
	return errors.Join(u.unpack(ctx, r, p), t.close())
}

// drop leaves out what differs from build to build or is this host's.
func (d *debian) drop(e *entry) bool {
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "var/cache", "var/log", "var/lib/apt/lists", "var/lib/dpkg/updates"} {
		if strings.HasPrefix(e.path, dir+"/") {
			return e.kind != typeDir || !strings.HasPrefix(dir, "var")
		}
	}
	switch e.path {
	case "etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/hosts", "var/lib/dbus/machine-id", "etc/passwd-", "etc/group-",
		"etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "var/lib/dpkg/status-old", "etc/.pwd.lock":
		return true
	}
	return false
}

// tail keeps the last bytes written to it. It has no other methods of a buffer: by its
// ReadFrom a copy would go past the bound.
type tail struct {
	last []byte
	max  int
}

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p[max(0, len(p)-t.max):]...)
	t.last = slices.Delete(t.last, 0, max(0, len(t.last)-t.max))
	return len(p), nil
}
