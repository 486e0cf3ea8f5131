package overlay_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/overlay"
)

// X-F17: ten thousands of names of one file are captured as one file, its bytes once, and a
// link to a file of the world as what it is.
func TestManyNamesOfOneFileAreKeptOnce(t *testing.T) {
	t.Parallel()
	const names = 60_000
	f := testWorld(t, map[string]string{"d/lower": "of the world"})
	upper := t.TempDir()
	must(t, os.WriteFile(filepath.Join(upper, "n00000"), []byte("once"), 0o644))
	for i := 1; i < names; i++ {
		must(t, os.Link(filepath.Join(upper, "n00000"), filepath.Join(upper, fmt.Sprintf("n%05d", i))))
	}
	pack := filepath.Join(t.TempDir(), "pack")
	c := capture(t, f, upper, overlay.CaptureInput{Pack: pack})
	linked := 0
	for _, ch := range c.Changes {
		if ch.LinkedTo == "/n00000" {
			linked++
		}
	}
	if len(c.Changes) != names || linked != names-1 || c.Stored != 4 || !c.Rescorable {
		t.Errorf("%d changes, %d of them links, %d bytes kept; want %d, %d, 4", len(c.Changes), linked, c.Stored, names, names-1)
	}
	if info, err := os.Stat(pack); err != nil || info.Size() != 4 {
		t.Errorf("pack: %v, %v; want 4 bytes", info, err)
	}
	other := t.TempDir()
	mounted(t, f.Lowers(), other, "ln d/lower d/second")
	got := strings.Join(brief(capture(t, f, other, overlay.CaptureInput{})), ", ")
	if !strings.HasSuffix(got, "created file /d/second = /d/lower") {
		t.Errorf("a link to the world's file: %s", got)
	}
}

// X-F06, X-F08: capabilities, set-id bits and attributes as large as there are stay in the
// capture; those that steer overlayfs do not.
func TestAttributesOfAnUpperAreKeptOrLeftOut(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "f"})
	upper := t.TempDir()
	p := filepath.Join(upper, "program")
	must(t, os.WriteFile(p, []byte("x"), 0o755))
	must(t, unix.Chmod(p, 0o7755))
	// cap_net_raw+ep, version 2
	capability := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	must(t, unix.Setxattr(p, "security.capability", capability, 0))
	must(t, unix.Setxattr(p, "user.overlay.redirect", []byte("/etc"), 0))
	must(t, unix.Setxattr(p, "trusted.overlay.metacopy", nil, 0))
	must(t, unix.Setxattr(p, "user.big", make([]byte, 3000), 0))
	c := capture(t, f, upper, overlay.CaptureInput{})
	if len(c.Changes) != 1 || c.Changes[0].Mode != 0o7755 {
		t.Fatalf("changes = %+v", c.Changes)
	}
	got := c.Changes[0].Xattrs
	if len(got["user.big"]) != 3000 || string(got["security.capability"]) != string(capability) {
		t.Errorf("attributes %v, want the capability and user.big", got)
	}
	for name := range got {
		if strings.Contains(name, "overlay") {
			t.Errorf("%s is kept", name)
		}
	}
}

// X-F06: what an agent left becomes a world without set-id bits and capabilities, a build's
// step with them.
func TestSealedAttributesAreTheBuildersNotTheAgents(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	built, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"f": "f"})}, nil)
	must(t, err)
	f, err := s.Fork(t.Context(), built.World.ID)
	must(t, err)
	defer f.Release()
	upper := t.TempDir()
	program, link, dir := filepath.Join(upper, "program"), filepath.Join(upper, "same"), filepath.Join(upper, "dir")
	must(t, os.WriteFile(program, []byte("x"), 0o755))
	must(t, os.Link(program, link))
	must(t, unix.Chmod(program, 0o7755))
	must(t, unix.Setxattr(program, "security.capability", []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	must(t, unix.Setxattr(program, "user.kept", []byte("y"), 0))
	must(t, os.Mkdir(dir, 0o777))
	must(t, unix.Chmod(dir, 0o3777))
	for _, c := range []struct {
		harmless   bool
		mode       uint32
		capability bool
	}{{harmless: true, mode: 0o1755}, {harmless: false, mode: 0o7755, capability: true}} {
		of, err := os.Open(upper)
		must(t, err)
		w, err := f.Seal(t.Context(), overlay.SealInput{Upper: of, Recipe: "branch", Harmless: c.harmless})
		must(t, errors.Join(err, of.Close()))
		on, err := s.Fork(t.Context(), w.ID)
		must(t, err)
		top := on.Lowers()[0]
		for _, name := range []string{"program", "same"} {
			var st unix.Stat_t
			must(t, unix.Lstat(filepath.Join(top, name), &st))
			_, missing := unix.Getxattr(filepath.Join(top, name), "security.capability", make([]byte, 64))
			if st.Mode&0o7777 != c.mode || (missing == nil) != c.capability {
				t.Errorf("harmless %v: %s has mode %o, capability %v", c.harmless, name, st.Mode&0o7777, missing)
			}
			if _, err := unix.Getxattr(filepath.Join(top, name), "user.kept", make([]byte, 8)); err != nil {
				t.Errorf("harmless %v: %s has lost user.kept: %v", c.harmless, name, err)
			}
		}
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(top, "dir"), &st))
		if st.Mode&0o7777 != 0o3777 {
			t.Errorf("harmless %v: the directory has mode %o", c.harmless, st.Mode&0o7777)
		}
		on.Release()
	}
}
