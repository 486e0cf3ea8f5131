package files

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/sandbox"
)

// entry is one entry of an archive to be made.
type entry struct {
	name, body, link string
	kind             byte
	mode             int64
}

func tarOf(tb testing.TB, entries ...entry) *bytes.Buffer {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.body)), ModTime: time.Unix(1e9, 0)}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return &b
}

// namesIn lists an archive as "type name" (and " -> target").
func namesIn(tb testing.TB, archive []byte) []string {
	tb.Helper()
	var names []string
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			tb.Fatal(err)
		}
		name := fmt.Sprintf("%c %s", h.Typeflag, h.Name)
		if h.Linkname != "" {
			name += " -> " + h.Linkname
		}
		names = append(names, name)
	}
}

func wantNames(tb testing.TB, archive []byte, want []string) {
	tb.Helper()
	if got := namesIn(tb, archive); !slices.Equal(got, want) {
		tb.Errorf("archive holds %q, want %q", got, want)
	}
}

func TestTreeSurvivesDownloadAndUpload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "app/", "", 0o755, 1000)
	f.put(t, "app/bin/", "", 0o511, 1000)
	f.put(t, "app/bin/run", "#!/bin/sh\r\n", 0o755, 1000)
	f.put(t, "app/big", strings.Repeat("0123456789abcdef", 20000), 0o600, 1000)
	f.put(t, "app/empty/", "", 0o700, 1000)
	if err := errors.Join(
		os.Link(filepath.Join(f.dir, "app/big"), filepath.Join(f.dir, "app/bigger")),
		os.Symlink("../../etc/shadow", filepath.Join(f.dir, "app/up")),
		unix.Mkfifo(filepath.Join(f.dir, "app/fifo"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	chownTree(t, filepath.Join(f.dir, "app/fifo"), testIDs.HostID)
	var packed bytes.Buffer
	if err := f.Tar(t.Context(), root, "/app/", &packed); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"5 app/", "0 app/big", "1 app/bigger -> app/big", "5 app/bin/", "0 app/bin/run", "5 app/empty/", "6 app/fifo", "2 app/up -> ../../etc/shadow",
	}
	wantNames(t, packed.Bytes(), want)
	var again bytes.Buffer
	if err := f.Tar(t.Context(), root, "/app", &again); err != nil || !bytes.Equal(packed.Bytes(), again.Bytes()) {
		t.Errorf("a second Tar() differs, %v", err)
	}
	for name, compress := range map[string]func([]byte) []byte{"plain": bytes.Clone, "gzip": gzipped, "two gzip members": twoMembers, "zstd": zstandard} {
		g := newFixture(t)
		n, err := g.Untar(t.Context(), root, "/deep/er", bytes.NewReader(compress(packed.Bytes())), sandbox.TarLimits{})
		if err != nil || n != int64(len(want)) {
			t.Fatalf("%s: Untar() = %d, %v", name, n, err)
		}
		var back bytes.Buffer
		if err := g.Tar(t.Context(), root, "/deep/er/app", &back); err != nil {
			t.Fatal(err)
		}
		wantNames(t, back.Bytes(), want)
		for p, mode := range map[string]uint32{"app/bin": 0o511, "app/bin/run": 0o755, "app/big": 0o600, "app/empty": 0o700} {
			if st := g.hostStat(t, "deep/er/"+p); st.Mode&0o7777 != mode || st.Uid != testIDs.HostID {
				t.Errorf("%s: %s has mode %o, owner %d, want %o", name, p, st.Mode, st.Uid, mode)
			}
		}
		if got, err := g.read(root, "/deep/er/app/bigger"); err != nil || got != strings.Repeat("0123456789abcdef", 20000) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if a, b := g.hostStat(t, "deep/er/app/big"), g.hostStat(t, "deep/er/app/bigger"); a.Ino != b.Ino {
			t.Errorf("%s: the hard link is none", name)
		}
	}
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

func twoMembers(b []byte) []byte {
	half := len(b) / 2
	return append(gzipped(b[:half]), gzipped(b[half:])...)
}

func zstandard(b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	return w.EncodeAll(b, nil)
}

// F11: what is uploaded belongs to whom it is uploaded for.
func TestUploadBelongsToTheUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "home/", "", 0o755, 1000)
	archive := tarOf(t, entry{name: "repo/.git/", kind: tar.TypeDir}, entry{name: "repo/.git/config", body: "[core]"},
		entry{name: "repo/link", kind: tar.TypeSymlink, link: "x"}, entry{name: "repo/su", body: "x", mode: 0o6755}, entry{name: "repo/t/", kind: tar.TypeDir, mode: 0o1777})
	if _, err := f.Untar(t.Context(), user, "/home/src", archive, sandbox.TarLimits{}); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]uint32{
		"src": 0o755, "src/repo": 0o755, "src/repo/.git": 0o755, "src/repo/.git/config": 0o644, "src/repo/link": 0o777, "src/repo/su": 0o755, "src/repo/t": 0o1777,
	} {
		st := f.hostStat(t, "home/"+name)
		if st.Uid != testIDs.HostID+1000 || st.Gid != testIDs.HostID+1000 || st.Mode&0o7777 != mode {
			t.Errorf("%s: %d:%d %o, want mode %o", name, st.Uid, st.Gid, st.Mode, mode)
		}
	}
	_, err := f.Untar(t.Context(), user, "/elsewhere", tarOf(t, entry{name: "x"}), sandbox.TarLimits{})
	wantKind(t, "upload to root's directory", err, "permission_denied")
}

// X-F10.
func TestHostileArchivesAreRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n/", 3000) + "x"
	for _, c := range []struct {
		name    string
		entries []entry
		kind    string
		// path that must be named, and how many entries came before.
		path string
		done int64
	}{
		{"absolute", []entry{{name: "a"}, {name: "/etc/passwd"}}, "outside_root", "/etc/passwd", 1},
		{"dot dot", []entry{{name: "a/../../x"}}, "outside_root", "a/../../x", 0},
		{"dot dot that stays", []entry{{name: "a/../x"}}, "outside_root", "a/../x", 0},
		{"hard link up", []entry{{name: "l", kind: tar.TypeLink, link: "../secret"}}, "outside_root", "l", 0},
		{"absolute hard link", []entry{{name: "l", kind: tar.TypeLink, link: "/secret"}}, "outside_root", "l", 0},
		{"hard link to nothing", []entry{{name: "l", kind: tar.TypeLink, link: "nothing"}}, "not_found", "l", 0},
		{"through an absolute link", []entry{{name: "d", kind: tar.TypeSymlink, link: "/etc"}, {name: "d/passwd", body: "evil"}}, "outside_root", "d/passwd", 1},
		{"through a climbing link", []entry{{name: "d", kind: tar.TypeSymlink, link: "../../etc"}, {name: "d/passwd", body: "evil"}}, "outside_root", "d/passwd", 1},
		{"hard link through a link", []entry{{name: "d", kind: tar.TypeSymlink, link: "/etc"}, {name: "l", kind: tar.TypeLink, link: "d/passwd"}}, "outside_root", "l", 1},
		{"directory through a link", []entry{{name: "d", kind: tar.TypeSymlink, link: "/etc"}, {name: "d/new/", kind: tar.TypeDir}}, "outside_root", "d/new/", 1},
		{"two files of one name", []entry{{name: "a", body: "1"}, {name: "a", body: "2"}}, "invalid_archive", "a", 1},
		{"two spellings of one name", []entry{{name: "a/b", body: "1"}, {name: "./a//b", body: "2"}}, "invalid_archive", "./a//b", 1},
		{"file over directory", []entry{{name: "a/", kind: tar.TypeDir}, {name: "a"}}, "is_directory", "a", 1},
		{"directory over file", []entry{{name: "a"}, {name: "a/", kind: tar.TypeDir}}, "already_exists", "a/", 1},
		{"below a file", []entry{{name: "a"}, {name: "a/b"}}, "not_a_directory", "a/b", 1},
		{"character device", []entry{{name: "null", kind: tar.TypeChar}}, "invalid_archive", "null", 0},
		{"block device", []entry{{name: "disk", kind: tar.TypeBlock}}, "invalid_archive", "disk", 0},
		{"unknown type", []entry{{name: "z", kind: 'Z'}}, "invalid_archive", "z", 0},
		{"the directory as a file", []entry{{name: "."}}, "invalid_archive", ".", 0},
		{"long name", []entry{{name: long}}, "name_too_long", clipName(long), 0},
		{"deep name", []entry{{name: strings.Repeat("n/", 600) + "x"}}, "too_large", clipName(strings.Repeat("n/", 600)), 0},
		{"long element", []entry{{name: strings.Repeat("n", 300)}}, "name_too_long", clipName(strings.Repeat("n", 300)), 0},
		{"empty link", []entry{{name: "l", kind: tar.TypeSymlink, link: ""}}, "not_found", "l", 0},
	} {
		f := newFixture(t)
		f.put(t, "etc/", "", 0o755, 0)
		f.put(t, "etc/passwd", "root", 0o644, 0)
		f.put(t, "secret", "s", 0o644, 0)
		n, err := f.Untar(t.Context(), root, "/up/load", tarOf(t, c.entries...), sandbox.TarLimits{})
		wantKind(t, c.name, err, c.kind)
		if e, ok := errors.AsType[*sandbox.FileError](err); !ok || e.Path != c.path || n != c.done {
			t.Errorf("%s: Untar() = %d, %v, want %d entries before %q", c.name, n, err, c.done, c.path)
		}
		if got, err := f.read(root, "/etc/passwd"); err != nil || got != "root" {
			t.Errorf("%s: /etc/passwd = %q, %v", c.name, got, err)
		}
		if st := f.hostStat(t, "secret"); st.Nlink != 1 {
			t.Errorf("%s: /secret got a link", c.name)
		}
		if left := f.residue(t); len(left) > 0 {
			t.Errorf("%s: left %v", c.name, left)
		}
	}
}

// X-F11.
func TestBombsAreRefused(t *testing.T) {
	t.Parallel()
	bomb := func(header []byte, repeat int) io.Reader {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		for range repeat {
			if _, err := w.Write(header); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	block := func(h tar.Header) []byte {
		var b bytes.Buffer
		if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	many := func(n int) io.Reader {
		var es []entry
		for i := range n {
			es = append(es, entry{name: fmt.Sprint(i)})
		}
		return tarOf(t, es...)
	}
	limits := sandbox.TarLimits{Bytes: 1 << 20, Entries: 100}
	// A 'L' header whose name is a megabyte, again and again: entries that never come.
	longName := block(tar.Header{Typeflag: tar.TypeReg, Name: "././@LongLink", Size: 1 << 20, Format: tar.FormatUSTAR})
	longName[156] = 'L'
	fixChecksum(longName)
	for name, c := range map[string]struct {
		archive io.Reader
		kind    string
	}{
		"10 GB that a header claims": {bytes.NewReader(block(tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: 10 << 30})), "too_large"},
		"many small files":           {many(101), "too_large"},
		"as many as there may be":    {many(100), ""},
		"zeros without end":          {bomb(make([]byte, 1<<20), 20), "too_large"},
		"long names without end":     {bomb(append(longName, make([]byte, 1<<20)...), 20), "too_large"},
		"sparse": {bytes.NewReader(block(tar.Header{
			Typeflag: tar.TypeReg, Name: "sparse", Format: tar.FormatPAX,
			PAXRecords: map[string]string{"COMMENT.x": "y"}, Size: 1 << 40,
		})), "too_large"},
		"huge pax header": {bytes.NewReader(append(paxHeader(8<<20), make([]byte, 9<<20)...)), "invalid_archive"},
	} {
		f := newFixture(t)
		within(t, 20*time.Second, name, func() {
			_, err := f.Untar(t.Context(), root, "/x", c.archive, limits)
			wantKind(t, name, err, c.kind)
		})
		if left := f.residue(t); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

func fixChecksum(block []byte) {
	copy(block[148:156], "        ")
	sum := 0
	for _, b := range block[:512] {
		sum += int(b)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

func paxHeader(size int) []byte {
	b := make([]byte, 512)
	copy(b, "pax")
	copy(b[100:], "0000644\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", size))
	b[156] = 'x'
	copy(b[257:], "ustar\x0000")
	fixChecksum(b)
	return b
}

func TestSparseFilesStaySparse(t *testing.T) {
	t.Parallel()
	tarCommand := need.Command(t, "tar", "tar")
	dir := t.TempDir()
	src := filepath.Join(dir, "hole")
	if err := os.WriteFile(src, []byte("head"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(src, 64<<20); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"gnu", "pax"} {
		packed := runCommand(t, tarCommand, "-C", dir, "--sparse", "--format="+format, "-cf", "-", "hole")
		fd := detached(t, "tmpfs", map[string]string{"size": "4m"})
		f := fixtureAt(t, fmt.Sprintf("/proc/self/fd/%d", fd.Fd()))
		f.Tree = New(fd, testIDs)
		if _, err := f.Untar(t.Context(), root, "/", bytes.NewReader(packed), sandbox.TarLimits{}); err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		var b bytes.Buffer
		info, err := f.Read(t.Context(), root, "/hole", &b, 0, 8)
		if err != nil || info.Size != 64<<20 || b.String() != "head\x00\x00\x00\x00" {
			t.Errorf("%s: %+v, %q, %v", format, info, b.String(), err)
		}
		_, err = f.Untar(t.Context(), root, "/b", bytes.NewReader(packed), sandbox.TarLimits{Bytes: 1 << 20})
		wantKind(t, format+" beyond the limit", err, "too_large")
	}
}

func TestDamagedArchivesAreRefused(t *testing.T) {
	t.Parallel()
	random := make([]byte, 300<<10)
	_, _ = rand.Read(random)
	whole := tarOf(t, entry{name: "a", body: "1"}, entry{name: "b", body: string(random)}).Bytes()
	flipped := gzipped(whole)
	flipped[len(flipped)-6] ^= 1 // in the checksum
	for name, archive := range map[string][]byte{
		"nothing": {}, "text": []byte("this is no archive at all"), "one byte": {0}, "noise": random[:4096],
		"cut in a header": whole[:100], "cut after a header": whole[:512], "cut in a body": whole[:5000],
		"cut between entries": whole[:1024], "cut before the end mark": whole[:len(whole)-1024],
		"cut gzip": gzipped(whole)[:2000], "gzip checksum": flipped, "gzip of nothing": gzipped(nil),
		"cut zstd": zstandard(whole)[:2000], "gzip magic only": {0x1f, 0x8b}, "zstd magic only": {0x28, 0xb5, 0x2f, 0xfd},
	} {
		f := newFixture(t)
		_, err := f.Untar(t.Context(), root, "/x", bytes.NewReader(archive), sandbox.TarLimits{})
		wantKind(t, name, err, "invalid_archive")
		if left := f.residue(t); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// F15 for archives.
func TestBrokenArchiveUploadKeepsTheOldFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "f", "old", 0o644, 0)
	whole := tarOf(t, entry{name: "f", body: strings.Repeat("x", 1<<20)}).Bytes()
	lost := errors.New("connection lost")
	_, err := f.Untar(t.Context(), root, "/", io.MultiReader(bytes.NewReader(whole[:len(whole)/2]), iotest.ErrReader(lost)), sandbox.TarLimits{})
	wantKind(t, "broken upload", err, "io")
	if !errors.Is(err, lost) {
		t.Errorf("%v does not carry the reader's error", err)
	}
	if got, err := f.read(root, "/f"); err != nil || got != "old" {
		t.Errorf("/f = %.10q, %v, want old", got, err)
	}
	if left := f.residue(t); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	_, err = f.Untar(ctx, root, "/", bytes.NewReader(whole), sandbox.TarLimits{})
	if wantKind(t, "cancelled upload", err, "io"); !errors.Is(err, lost) {
		t.Errorf("%v does not carry the cause", err)
	}
}

func TestUploadReplacesWhatIsThere(t *testing.T) {
	t.Parallel()
	f := overlayFixture(t, func(dir string) {
		if err := errors.Join(
			os.MkdirAll(filepath.Join(dir, "usr/lib"), 0o755),
			os.Symlink("/usr/lib", filepath.Join(dir, "lib")),
			os.WriteFile(filepath.Join(dir, "usr/lib/old"), []byte("old old"), 0o600),
			os.Symlink("/etc/shadow", filepath.Join(dir, "usr/lib/link")),
			os.Mkdir(filepath.Join(dir, "usr/lib/dir"), 0o700),
		); err != nil {
			t.Fatal(err)
		}
	})
	archive := tarOf(t, entry{name: "lib/", kind: tar.TypeDir}, entry{name: "lib/old", body: "new"}, entry{name: "lib/link", body: "file"},
		entry{name: "lib/dir/", kind: tar.TypeDir, mode: 0o777}, entry{name: "lib/hard", kind: tar.TypeLink, link: "lib/old"}, entry{name: "usr/lib/again", body: "x"})
	if _, err := f.Untar(t.Context(), root, "/", archive, sandbox.TarLimits{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"/usr/lib/old": "new", "/usr/lib/link": "file", "/usr/lib/hard": "new", "/lib/again": "x"} {
		if got, err := f.read(root, name); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
	if st := f.hostStat(t, "usr/lib/dir"); st.Mode&0o7777 != 0o700 {
		t.Errorf("a directory that was there has mode %o, want 700", st.Mode)
	}
	if st := f.hostStat(t, "usr/lib/old"); st.Uid != testIDs.HostID || st.Mode&0o7777 != 0o644 {
		t.Errorf("the replaced file: owner %d, mode %o", st.Uid, st.Mode)
	}
	if left := f.residue(t); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// F07.
func TestDownloadKeepsLinksAsLinks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "out/", "", 0o755, 0)
	for link, target := range map[string]string{"r": "/proc/self/root/etc/shadow", "h": "../../../../etc/hostname", "n": "\xff\xfe\n"} {
		if err := os.Symlink(target, filepath.Join(f.dir, "out", link)); err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	if err := f.Tar(t.Context(), root, "/out", &packed); err != nil {
		t.Fatal(err)
	}
	wantNames(t, packed.Bytes(), []string{
		"5 out/", "2 out/h -> ../../../../etc/hostname", "2 out/n -> \xff\xfe\n", "2 out/r -> /proc/self/root/etc/shadow",
	})
	for _, link := range []string{"/out/r", "/out/h"} {
		_, err := f.read(root, link)
		wantKind(t, "read "+link, err, "not_found")
	}
	packed.Reset()
	if err := f.Tar(t.Context(), root, "/out/h", &packed); err != nil {
		t.Fatal(err)
	}
	wantNames(t, packed.Bytes(), []string{"2 h -> ../../../../etc/hostname"})
}

// X-F17.
func TestManyHardLinksAreWrittenOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "d/", "", 0o755, 0)
	f.put(t, "d/0", strings.Repeat("x", 100000), 0o644, 0)
	for i := 1; i < 2000; i++ {
		if err := os.Link(filepath.Join(f.dir, "d/0"), filepath.Join(f.dir, fmt.Sprintf("d/%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	if err := f.Tar(t.Context(), root, "/d", &packed); err != nil {
		t.Fatal(err)
	}
	if packed.Len() > 4<<20 {
		t.Errorf("archive of %d bytes", packed.Len())
	}
	if n, err := f.Untar(t.Context(), root, "/e", &packed, sandbox.TarLimits{}); err != nil || n != 2001 {
		t.Fatalf("Untar() = %d, %v", n, err)
	}
	if st := f.hostStat(t, "e/d/1999"); st.Nlink != 2000 {
		t.Errorf("%d links, want 2000", st.Nlink)
	}
}

func TestDownloadWriterErrorIsTheCallers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "f", strings.Repeat("x", 1<<20), 0o644, 0)
	gone := errors.New("reader gone")
	n := 0
	err := f.Tar(t.Context(), root, "/f", writerFunc(func(b []byte) (int, error) {
		if n += len(b); n > 5000 {
			return 0, gone
		}
		return len(b), nil
	}))
	if wantKind(t, "download", err, "io"); !errors.Is(err, gone) {
		t.Errorf("%v does not carry the writer's error", err)
	}
}

// X-F12: a plain tar's AUFS names are names.
func TestWhiteoutNamesAreLiteral(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "x", "keep", 0o644, 0)
	if _, err := f.Untar(t.Context(), root, "/", tarOf(t, entry{name: ".wh.x", body: "w"}, entry{name: ".wh..wh..opq"}), sandbox.TarLimits{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"/x": "keep", "/.wh.x": "w", "/.wh..wh..opq": ""} {
		if got, err := f.read(root, name); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
}

func FuzzUntar(f *testing.F) {
	need.Root(f)
	f.Add(tarOf(f, entry{name: "a/", kind: tar.TypeDir}, entry{name: "a/b", body: "x"}, entry{name: "l", kind: tar.TypeSymlink, link: "/etc"}).Bytes())
	f.Add(gzipped(tarOf(f, entry{name: "../x"}, entry{name: "/y"}).Bytes()))
	f.Add(zstandard(tarOf(f, entry{name: "h", kind: tar.TypeLink, link: "a"}).Bytes()))
	f.Add(tarOf(f, entry{name: "l", kind: tar.TypeSymlink, link: "../outside"}, entry{name: "l/x", body: "x"}).Bytes())
	f.Fuzz(func(t *testing.T, archive []byte) {
		f := newFixture(t)
		f.put(t, "outside/", "", 0o777, 0)
		_, err := f.Untar(t.Context(), root, "/in", bytes.NewReader(archive), sandbox.TarLimits{Bytes: 1 << 20, Entries: 200})
		if _, ok := errors.AsType[*sandbox.FileError](err); err != nil && !ok {
			t.Fatalf("%v is no *FileError", err)
		}
		top, err := os.ReadDir(f.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range top {
			if e.Name() != "in" && e.Name() != "outside" {
				t.Fatalf("%q was made outside", e.Name())
			}
		}
		if made, err := os.ReadDir(filepath.Join(f.dir, "outside")); err != nil || len(made) > 0 {
			t.Fatalf("outside holds %v, %v", made, err)
		}
		if left := f.residue(t); len(left) > 0 {
			t.Fatalf("left %v", left)
		}
	})
}
