package overlay_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
)

// fakeMmdebstrap is a program that answers with a tar, so that tests need no network.
func fakeMmdebstrap(t *testing.T, script string) string {
	t.Helper()
	need.Root(t)
	p := filepath.Join(t.TempDir(), "mmdebstrap")
	must(t, os.WriteFile(p, []byte("#!/bin/sh\n"+script), 0o755))
	return p
}

func TestDebianLeavesOutWhatDiffersByHostAndDay(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"etc/hostname": "builder", "etc/passwd": "root:x:0:0::/root:/bin/bash\n", "var/log/apt/history.log": "x",
		"var/cache/apt/pkgcache.bin": "x", "var/lib/apt/lists/x": "x", "usr/bin/tool": "tool", "bin": "->usr/bin", "dev/null": "x",
	})
	s := openStore(t, overlay.Options{Mmdebstrap: fakeMmdebstrap(t, `echo "$@" >&2; exec tar -c -C `+root+` .`)})
	b, err := s.Build(t.Context(), overlay.Recipe{Debian: &overlay.Debian{Suite: "bookworm", Packages: []string{"python3", "git", "git"}}}, nil)
	must(t, err)
	if b.World.Recipe != "debian:bookworm" || !b.Network {
		t.Errorf("built %+v", b)
	}
	f, err := s.Fork(t.Context(), b.World.ID)
	must(t, err)
	defer f.Release()
	for p, want := range map[string]bool{
		"etc/hostname": false, "etc/passwd": true, "var/log/apt": true, "var/log/apt/history.log": false, "var/cache/apt/pkgcache.bin": false,
		"var/lib/apt/lists/x": false, "usr/bin/tool": true, "bin/tool": true, "dev/null": false,
	} {
		if _, err := os.Stat(filepath.Join(f.Lowers()[0], p)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", p, err, want)
		}
	}
	again, err := s.Build(t.Context(), overlay.Recipe{Debian: &overlay.Debian{Suite: "bookworm", Packages: []string{"git", "python3"}}}, nil)
	if err != nil || !again.Hit {
		t.Errorf("the same packages in another order: hit %v, %v", again.Hit, err)
	}
}

func TestDebianFailureSaysWhatTheToolSaid(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{Mmdebstrap: fakeMmdebstrap(t, `echo first words >&2; seq 2000 >&2; echo "E: no such suite" >&2; exit 25`)})
	_, err := s.Build(t.Context(), overlay.Recipe{Debian: &overlay.Debian{Suite: "bookworm"}}, nil)
	wantKind(t, err, "build_failed")
	if err == nil || !strings.HasSuffix(err.Error(), "E: no such suite") || strings.Contains(err.Error(), "first words") {
		t.Errorf("error %v", err)
	}
	nothingLeft(t, s)
}
