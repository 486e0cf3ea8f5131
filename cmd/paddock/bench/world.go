package bench

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/klauspost/compress/zstd"
)

// bulk describes a world of many files that differ from each other. No file is sparse:
// a world of 2 GB takes 2 GB in the store.
type bulk struct {
	Files     int
	FileBytes int
}

func (b bulk) bytes() int64 { return int64(b.Files) * int64(b.FileBytes) }

// The two worlds whose forks are compared.
var (
	bulk10M = bulk{Files: 100, FileBytes: 100_000}
	bulk2G  = bulk{Files: 20_000, FileBytes: 100_000}
)

// writeTar makes a zstd tar of the files. The contents are one block of noise behind some
// of the file's own, so that the archive is small and quick to make (but not so small that
// it looks like a bomb) while every file unpacked is whole and different.
func (b bulk) writeTar(path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return err
	}
	if err := b.writeEntries(z); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return z.Close()
}

func (b bulk) writeEntries(w io.Writer) error {
	noise := make([]byte, b.FileBytes)
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // noise, not a secret
	fill := func(b []byte) {
		for i := 0; i+8 <= len(b); i += 8 {
			binary.LittleEndian.PutUint64(b[i:], r.Uint64())
		}
	}
	fill(noise)
	t := tar.NewWriter(w)
	const perDir, own = 200, 2048
	for i := range b.Files {
		if i%perDir == 0 {
			dir := &tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("bulk/%04d/", i/perDir), Mode: 0o755}
			if err := t.WriteHeader(dir); err != nil {
				return err
			}
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: fmt.Sprintf("bulk/%04d/%05d", i/perDir, i),
			Mode: 0o644, Size: int64(b.FileBytes),
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		fill(noise[:own])
		if _, err := t.Write(noise); err != nil {
			return err
		}
	}
	return t.Close()
}

// smallRoot is a tar of a root file system with busybox alone.
func smallRoot(busybox []byte) (*bytes.Buffer, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	entries := []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755, Size: int64(len(busybox))},
		{Typeflag: tar.TypeSymlink, Name: "bin/true", Linkname: "busybox", Mode: 0o777},
	}
	for _, h := range entries {
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := t.Write(busybox); err != nil {
				return nil, err
			}
		}
	}
	return &b, t.Close()
}
