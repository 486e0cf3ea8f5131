//go:build v2

package disk_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/sandbox/disk"
)

// scripts/test-v2.sh mounts file systems with project quotas, which other hosts rarely have.
func TestProjectQuotaKeepsItsLimits(t *testing.T) {
	for _, dir := range need.ProjectQuota(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			scratch := need.Below(t, dir)
			full := unix.ENOSPC
			if filepath.Base(dir) == "ext4" {
				full = unix.EDQUOT
			}
			contract(t, disk.Project, scratch, full)
			b := open(t, disk.Auto, need.Below(t, scratch))
			if b.Kind() != disk.Project {
				t.Errorf("auto is %s, want project", b.Kind())
			}
		})
	}
}

func BenchmarkProjectVolume(b *testing.B) {
	for _, dir := range need.ProjectQuota(b) {
		b.Run(filepath.Base(dir), func(b *testing.B) {
			d := open(b, disk.Project, need.Below(b, dir))
			for b.Loop() {
				v, err := d.New(b.Context(), "v", disk.Size{Bytes: 64 << 20, Inodes: 1000})
				if err != nil {
					b.Fatal(err)
				}
				if err := v.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
