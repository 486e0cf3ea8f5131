package disk

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/paddock-run/paddock/internal/mount"
)

// plain makes directories without a limit.
type plain struct {
	cfg     Config
	remover *remover
}

func openPlain(cfg Config) (Backend, error) { return &plain{cfg, newRemover(cfg.Dir)}, nil }

func (p *plain) Kind() Kind { return None }

func (p *plain) Close() error {
	p.remover.close()
	return nil
}

// New implements Backend; it bounds nothing.
func (p *plain) New(_ context.Context, name string, _ Size) (*Volume, error) {
	path := filepath.Join(p.cfg.Dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	m, err := mount.ClonePath(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &Volume{mount: m, used: func() int64 { return 0 }, remove: func() error {
		return p.remover.remove(path, func(err error) {
			if err != nil {
				p.cfg.Log.Error("a writable layer is left on the disk", slog.Any("error", err))
			}
		})
	}}, nil
}
