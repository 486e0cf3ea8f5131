package overlay

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// busybox is the base recipe of one static program: instant, and enough for a shell.
type busybox struct {
	limits  Limits
	program []byte
	applets []string // paths without a leading slash
}

func newBusybox(s *Store) (*busybox, error) {
	p := s.opts.Busybox
	if p == "" {
		var err error
		if p, err = exec.LookPath("busybox"); err != nil {
			return nil, refuse("missing_tool", "busybox", "install the package busybox-static")
		}
	}
	program, err := os.ReadFile(p)
	if err != nil {
		return nil, fmt.Errorf("read busybox: %w", err)
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, refuse("missing_tool", p, "not an ELF program: %v", err)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, refuse("missing_tool", p, "is not static; install the package busybox-static")
	}
	b := &busybox{limits: s.opts.Limits, program: program}
	if b.applets, err = applets(p); err != nil {
		return nil, refuse("missing_tool", p, "list applets: %v", err)
	}
	return b, nil
}

func applets(program string) ([]string, error) {
	//nolint:noctx // answers at once and takes no input
	out, err := exec.Command(program, "--list-full").Output()
	if err != nil {
		return nil, err
	}
	list := strings.Fields(string(out))
	if len(list) == 0 || len(list) > 2000 {
		return nil, fmt.Errorf("%d applets", len(list))
	}
	for i, p := range list {
		if !strings.Contains(p, "/") {
			list[i] = "bin/" + p
		}
	}
	return list, nil
}

func (b *busybox) kind() string                                    { return "busybox" }
func (b *busybox) name() string                                    { return "busybox" }
func (b *busybox) network() bool                                   { return false }
func (b *busybox) close()                                          {}
func (b *busybox) input(context.Context, Progress) (string, error) { return sum(b.program), nil }

// Users of the base recipes. agent is who commands run as unless told otherwise.
const (
	passwd = "root:x:0:0:root:/root:/bin/sh\n" +
		"agent:x:1000:1000:agent:/home/agent:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
	group = "root:x:0:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n"
)

func (b *busybox) fill(ctx context.Context, root int, p Progress) (layer, error) {
	t := newTree(root, b.limits)
	c := newCanon(nil)
	counter := &counting{sink: &layerSink{tree: t, tar: c}, limits: b.limits, progress: p, step: "copy"}
	err := b.write(ctx, counter)
	if err = errors.Join(err, t.close()); err != nil {
		return layer{}, err
	}
	return counter.finish(c)
}

func (b *busybox) write(ctx context.Context, out sink) error {
	files := map[string]string{"bin/busybox": string(b.program), "etc/passwd": passwd, "etc/group": group}
	all := map[string]*entry{}
	dir := func(p string, mode, owner uint32) {
		all[p] = &entry{path: p, kind: typeDir, mode: mode, uid: owner, gid: owner}
	}
	for _, p := range []string{"bin", "sbin", "usr", "usr/bin", "usr/sbin", "etc", "home", "var", "var/log"} {
		dir(p, 0o755, 0)
	}
	dir("home/agent", 0o755, 1000)
	dir("tmp", 0o1777, 0)
	dir("var/tmp", 0o1777, 0)
	dir("root", 0o700, 0)
	for p, text := range files {
		all[p] = &entry{path: p, kind: typeFile, mode: 0o644, size: int64(len(text))}
	}
	all["bin/busybox"].mode = 0o755
	for _, p := range b.applets {
		if err := checkPath(p); err != nil {
			return err
		}
		if parent := path.Dir(p); parent != "." && all[parent] == nil {
			dir(parent, 0o755, 0)
		}
		if all[p] == nil {
			all[p] = &entry{path: p, kind: typeSymlink, mode: 0o777, target: "/bin/busybox"}
		}
	}
	var paths []string
	for p := range all {
		paths = append(paths, p)
	}
	slices.SortFunc(paths, before)
	for _, p := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := all[p]
		e.mtime = epoch
		var body io.Reader
		if e.kind == typeFile {
			body = strings.NewReader(files[p])
		}
		if err := out.add(e, body); err != nil {
			return err
		}
	}
	return nil
}
