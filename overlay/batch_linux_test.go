package overlay_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/overlay"
)

func TestCaptureOfManyFilesIsWholeAndInOrder(t *testing.T) {
	t.Parallel()
	world, upper := map[string]string{}, map[string]string{}
	var want []string
	for i := range 1500 {
		name := fmt.Sprintf("d%02d/%04d", i%40, i)
		text := strings.Repeat(name, 1+i%50)
		switch i % 5 {
		case 0: // as the world has it
			world[name] = text
			upper[name] = text
			continue
		case 1: // other bytes of the same size
			world[name] = strings.ToUpper(text)
		case 2:
			text = ""
		case 3:
			if i%100 == 3 {
				text = strings.Repeat(name, 60_000) // too large to be read at once
			}
		}
		upper[name] = text
		want = append(want, "/"+name)
	}
	slices.Sort(want)
	f := testWorld(t, world)
	dir := tree(t, upper)
	must(t, os.Link(filepath.Join(dir, "d01/0001"), filepath.Join(dir, "d39/zz")))
	want = append(want, "/d39/zz")
	path := filepath.Join(t.TempDir(), "pack")
	c := capture(t, f, dir, overlay.CaptureInput{Pack: path})
	pack, err := os.ReadFile(path)
	must(t, err)
	var got []string
	for _, ch := range c.Changes {
		if ch.Type == "dir" {
			continue
		}
		got = append(got, ch.Path)
		text := upper[strings.TrimPrefix(ch.Path, "/")]
		if ch.LinkedTo != "" {
			text = upper[strings.TrimPrefix(ch.LinkedTo, "/")]
		}
		if ch.Offset < 0 || ch.Size != int64(len(text)) || !bytes.Equal(pack[ch.Offset:ch.Offset+ch.Size], []byte(text)) ||
			ch.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte(text))) {
			t.Fatalf("%s: not its bytes: %+v", ch.Path, ch)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changed files (-want +got):\n%s", diff)
	}
	if !c.Rescorable || c.Changes[len(c.Changes)-1].LinkedTo != "/d01/0001" {
		t.Errorf("rescorable %v, the last %+v", c.Rescorable, c.Changes[len(c.Changes)-1])
	}
}

func TestCaptureLeavesNoDescriptorOpen(t *testing.T) {
	f := testWorld(t, map[string]string{"a/b/c": "1", "x": "1", "gone/y": "1"})
	upper := tree(t, map[string]string{"a/b/c": "2", "a/b/n/m": "3", "x/now/dir": "4", "gone": "file"})
	before := descriptors(t)
	for _, in := range []overlay.CaptureInput{{}, {MaxEntries: 1}, {Pack: filepath.Join(t.TempDir(), "pack")}, {Pack: "/nowhere/pack"}} {
		dir, err := os.Open(upper)
		must(t, err)
		in.Upper = dir
		if _, err := f.Capture(t.Context(), in); (err != nil) != (in.Pack == "/nowhere/pack") {
			t.Errorf("Capture(%+v) = %v", in, err)
		}
		if _, _, err := f.Track(dir, 0).Changes(t.Context(), 1); err != nil {
			t.Error(err)
		}
		must(t, dir.Close())
	}
	if after := descriptors(t); !slices.Equal(before, after) {
		t.Errorf("open before %q, after %q", before, after)
	}
}

// descriptors are what this process has open, but for what comes and goes by itself.
func descriptors(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var out []string
	for _, e := range list {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		var st unix.Stat_t
		if err == nil && unix.Stat("/proc/self/fd/"+e.Name(), &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFIFO && !strings.HasPrefix(to, "/proc") {
			out = append(out, to)
		}
	}
	slices.Sort(out)
	return out
}
