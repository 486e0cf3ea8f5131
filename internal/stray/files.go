package stray

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// cgroups lists the store's cgroup directories; with a live daemon only those of
// sandboxes that it does not know.
func (s *search) cgroups() error {
	if s.scope.Cgroup == "" {
		return nil
	}
	for _, hierarchy := range s.host.Cgroups {
		top := filepath.Join(hierarchy, s.scope.Cgroup)
		entries, err := os.ReadDir(top)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list cgroups: %w", err)
		}
		if s.scope.Live.PID == 0 {
			s.add(Cgroup, top, "no daemon lives")
		}
		for _, e := range entries {
			if e.IsDir() && !s.known(e.Name()) {
				s.add(Cgroup, filepath.Join(top, e.Name()), "of a sandbox that no daemon knows")
			}
		}
	}
	return nil
}

// loops lists loop devices whose file lies in the store.
func (s *search) loops() error {
	files, err := filepath.Glob(filepath.Join(s.host.Block, "loop*/loop/backing_file"))
	if err != nil {
		return fmt.Errorf("list loop devices: %w", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // detached since the glob
		}
		file := strings.TrimSuffix(string(data), "\n")
		if within(strings.TrimSuffix(file, " (deleted)"), s.scope.Store) && s.scope.Live.PID == 0 {
			s.add(Loop, "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(f))), "backed by %s", file)
		}
	}
	return nil
}

// scratch are the directories of a store that hold nothing once its daemon is gone. They
// themselves stay.
var scratch = []string{"run", "run/launcher", "run/launcher/stage", "run/sockets", "run/disk", "run/scratch", "tmp"}

// directories lists entries of the scratch directories that no live daemon made.
func (s *search) directories() error {
	for _, name := range scratch {
		dir := filepath.Join(s.scope.Store, name)
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for _, e := range entries {
			if e.IsDir() && slices.Contains(scratch, name+"/"+e.Name()) {
				continue
			}
			info, err := e.Info()
			if err != nil || (s.scope.Live.PID != 0 && !info.ModTime().Before(s.scope.Live.Started)) {
				continue
			}
			s.add(Directory, filepath.Join(dir, e.Name()), "last changed %s", info.ModTime().UTC().Format(time.RFC3339))
		}
	}
	return nil
}
