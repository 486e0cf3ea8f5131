package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/paddock-run/paddock/policies"
)

// loadPolicies reads the embedded policies and those of dir, when it is not empty. Who may
// write there writes the lock-down, so neither the directory nor a file in it may be
// another user's or writable by others.
func loadPolicies(dir string) (*policies.Set, error) {
	if dir == "" {
		return policies.Load()
	}
	if err := checkPolicyDir(dir); err != nil {
		return nil, fmt.Errorf("--policy-dir %s: %w", dir, err)
	}
	set, err := policies.LoadWith(os.DirFS(dir))
	if err != nil {
		return nil, fmt.Errorf("--policy-dir %s: %w", dir, err)
	}
	return set, nil
}

func checkPolicyDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return plainPathError(err)
	}
	if !info.IsDir() {
		return errors.New("is not a directory")
	}
	if err := checkOwned(info); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return plainPathError(err)
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), plainPathError(err))
		}
		if err := checkOwned(info); err != nil {
			return fmt.Errorf("%s %w", e.Name(), err)
		}
	}
	return nil
}

// checkOwned refuses what a user other than root and the daemon's own could change.
func checkOwned(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return errors.New("belongs to another user; give it to root with chown")
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("may be written by others (mode %04o); take that away with chmod go-w", info.Mode().Perm())
	}
	return nil
}

// plainPathError leaves out the path, which the caller names.
func plainPathError(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
