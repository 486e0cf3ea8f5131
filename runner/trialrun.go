package runner

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// trial is one TrialSpec on its way.
type trial struct {
	g    *Ground
	spec TrialSpec
	seal bool

	eff    policies.Limits
	inside []byte // tar of the files in Dir
	others []byte // tar of the files elsewhere
}

func (t *trial) check() error {
	s := &t.spec
	if !path.IsAbs(s.Dir) || path.Clean(s.Dir) != s.Dir || s.Dir == "/" || !shortNames(s.Dir) || strings.ContainsRune(s.Dir, 0) {
		return badField("dir", "%q is not a clean absolute path below /", s.Dir)
	}
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return badField("argv", "names no program")
	}
	if err := checkEnv("env", s.Env); err != nil {
		return err
	}
	for field, v := range map[string]float64{"limits/cpu_s": s.Limits.CPUSeconds, "limits/wall_s": s.WallS} {
		if !(v >= 0 && v <= maxSeconds) {
			return badField(field, "%v is not in 0 to %d seconds", v, int(maxSeconds))
		}
	}
	if s.Limits.OutputBytes < 0 || s.Limits.OutputBytes > MaxTrialOutput {
		return badField("limits/output", "%d is not in 0 to %d", s.Limits.OutputBytes, MaxTrialOutput)
	}
	if s.Limits.OutputBytes == 0 {
		s.Limits.OutputBytes = MaxTrialOutput
	}
	if s.WallS == 0 {
		s.WallS = DefaultCallS
	}
	if len(s.Fetch) > MaxTrialFiles {
		return badField("fetch", "has %d, at most %d are allowed", len(s.Fetch), MaxTrialFiles)
	}
	eff, _, err := t.g.policy.Effective(policies.Limits{
		CPUs: s.Limits.CPUs, MemoryBytes: s.Limits.MemoryBytes, DiskBytes: s.Limits.DiskBytes, Inodes: s.Limits.Inodes, Pids: s.Limits.Pids,
	}, t.g.r.cfg.Host)
	if le, ok := errors.AsType[*policies.LimitError](err); ok {
		return badField("limits/"+le.Field, "%s", le.Detail)
	}
	if err != nil {
		return fmt.Errorf("effective limits: %w", err)
	}
	t.eff = eff
	return t.pack()
}

// pack puts the files into two archives, which are unpacked faster than one file after
// another is written, and with their directories.
func (t *trial) pack() error {
	if n := len(t.spec.Files); n > MaxTrialFiles {
		return badField("files", "has %d, at most %d are allowed", n, MaxTrialFiles)
	}
	total := len(t.spec.Stdin)
	var in, out bytes.Buffer
	inside, others := tar.NewWriter(&in), tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(t.spec.Files)) {
		f := t.spec.Files[name]
		if total += len(f.Bytes); total > MaxTrialBytes {
			return badField("files", "come to more than %d bytes, stdin included", MaxTrialBytes)
		}
		if err := checkTrialPath(name); err != nil {
			return err
		}
		to := inside
		if path.IsAbs(name) {
			to, name = others, strings.TrimPrefix(path.Clean(name), "/")
		}
		mode := int64(f.Mode & 0o777)
		if mode == 0 {
			mode = 0o644
		}
		err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Clean(name), Mode: mode, Size: int64(len(f.Bytes)), Format: tar.FormatPAX})
		if err == nil {
			_, err = to.Write(f.Bytes)
		}
		if err != nil {
			return badField("files", "%q: %v", name, err)
		}
	}
	if err := errors.Join(inside.Close(), others.Close()); err != nil {
		return fmt.Errorf("pack files: %w", err)
	}
	t.inside = in.Bytes()
	if out.Len() > 2*512 {
		t.others = out.Bytes()
	}
	return nil
}

func checkTrialPath(name string) error {
	clean := path.Clean(name)
	if name == "" || clean == "." || clean == "/" || clean == ".." || strings.HasPrefix(clean, "../") ||
		strings.ContainsRune(name, 0) || len(name) > 1024 || !shortNames(name) || strings.HasSuffix(name, "/") {
		return badField("files", "%q is no path of a file", name)
	}
	return nil
}

// once runs the trial. An error is the platform's fault.
func (t *trial) once(ctx context.Context, turn *turn) (TrialResult, *Prepared, error) {
	b, err := t.box(ctx)
	if err != nil {
		return TrialResult{}, nil, err
	}
	// Who waits for the result does not wait for the kernel to clear away; the place among
	// the running ones is kept until then, so that clearing away cannot fall behind.
	turn.hold()
	defer func() {
		go func() { // counted by the turn, for which Close waits
			defer turn.done()
			t.g.r.stock.drop(b)
			t.g.r.stock.more()
		}()
	}()
	res, err := t.conduct(ctx, b.sb)
	if err != nil || !t.seal || !res.OK() {
		return res, nil, err
	}
	prepared, err := t.sealed(ctx, &b)
	return res, prepared, err
}

// box takes a sandbox from stock, or starts one.
func (t *trial) box(ctx context.Context) (box, error) {
	k := kind{world: t.g.World(), policy: t.g.policy.Hash(), workdir: t.spec.Dir, limits: t.eff}
	if t.g.layer != nil {
		k.layer = t.g.layer.dir.path
	}
	fill := func(ctx context.Context, b box) (box, error) { return t.g.r.fill(ctx, k, t.g.policy, b) }
	b, err := t.g.r.stock.take(k, fill)
	if err != nil {
		return box{}, fmt.Errorf("user ids: %w", err)
	}
	if b.sb != nil {
		return b, nil
	}
	// What was begun is finished, so that it can be ended, whoever has gone meanwhile.
	begun, cancel := context.WithTimeout(context.WithoutCancel(ctx), stockPatience)
	defer cancel()
	if b, err = fill(begun, b); err != nil {
		if begun.Err() == nil { // else the launcher may still be at it, and the ids stay in use
			t.g.r.stock.drop(b)
		}
		return box{}, err
	}
	return b, nil
}

// conduct writes the files, runs the program and reads files back.
func (t *trial) conduct(ctx context.Context, sb Sandbox) (TrialResult, error) {
	res := TrialResult{WallS: t.spec.WallS, Limits: Limits{
		CPUs: t.eff.CPUs, MemoryBytes: t.eff.MemoryBytes, DiskBytes: t.eff.DiskBytes, Inodes: t.eff.Inodes, Pids: t.eff.Pids,
		CPUSeconds: t.spec.Limits.CPUSeconds, OutputBytes: t.spec.Limits.OutputBytes,
	}}
	err := t.write(ctx, sb)
	if fe, ok := errors.AsType[*sandbox.FileError](err); ok {
		if fe.Kind == "no_space" {
			res.NoSpace = true
			return res, nil
		}
		return res, badField("files", "%v", fe)
	}
	if err != nil {
		return res, fmt.Errorf("write files: %w", err)
	}
	if err := t.program(ctx, sb, &res); err != nil {
		return res, err
	}
	for _, name := range t.spec.Fetch {
		t.fetch(ctx, sb, name, &res)
	}
	return res, nil
}

func (t *trial) write(ctx context.Context, sb Sandbox) error {
	root := sandbox.User{}
	if _, err := sb.Files().Untar(ctx, root, t.spec.Dir, bytes.NewReader(t.inside), sandbox.TarLimits{}); err != nil {
		return err
	}
	if t.others == nil {
		return nil
	}
	_, err := sb.Files().Untar(ctx, root, "/", bytes.NewReader(t.others), sandbox.TarLimits{})
	return err
}

func (t *trial) program(ctx context.Context, sb Sandbox, res *TrialResult) error {
	uid, gid := t.g.policy.User()
	flood := make(chan struct{}, 2)
	out, errOut := &flooded{max: int(t.spec.Limits.OutputBytes), over: flood}, &flooded{max: int(t.spec.Limits.OutputBytes), over: flood}
	said := &boundedBuffer{max: MaxTrialSaid}
	cmd := sandbox.Command{
		Argv: t.spec.Argv, Dir: t.spec.Dir, User: sandbox.User{UID: uid, GID: gid}, Umask: t.g.policy.Umask(),
		Env: mergeEnv([]string{"HOME=" + t.g.policy.Home(uid, "")}, t.g.policy.Env(0), t.g.fork.World().Config.Env, envList(t.spec.Env)),
		// What the program started may hold its streams; none of it outlives the trial.
		Leftovers: sandbox.KillLeftovers,
		Stdout:    out, Stderr: errOut, Timeout: seconds(t.spec.WallS), CPUTime: seconds(t.spec.Limits.CPUSeconds),
	}
	if len(t.spec.Stdin) > 0 {
		cmd.Stdin = bytes.NewReader(t.spec.Stdin)
	}
	if t.spec.Said {
		cmd.FD3 = said
	}
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return trialFault(sb, err)
	}
	ended := make(chan sandbox.Exit, 1)
	go func() { ended <- p.Wait() }()
	select {
	case res.Exit = <-ended:
	case <-flood:
		p.Kill()
		res.Exit = <-ended
	case <-ctx.Done():
		p.Kill()
		<-ended
		return context.Cause(ctx)
	}
	if res.Exit.HostOOM {
		return errHostMemory
	}
	res.Stdout, res.Stderr, res.Said = out.bytes(), errOut.bytes(), said.buf.Bytes()
	res.Flooded = out.flooded() || errOut.flooded()
	return trialFault(sb, nil)
}

// trialFault is the platform's fault, if there is evidence of one.
func trialFault(sb Sandbox, err error) error {
	select {
	case <-sb.Done():
	default:
		return err
	}
	if end := fateEnd(sb.Fate()); end.Cause == Platform {
		return errors.Join(err, fmt.Errorf("the trial's sandbox: %s", strings.Join(end.Evidence, ": ")))
	}
	return nil // the program ended it, which is its result
}

func (t *trial) fetch(ctx context.Context, sb Sandbox, name string, res *TrialResult) {
	file := path.Clean(name)
	if !path.IsAbs(file) {
		file = path.Join(t.spec.Dir, file)
	}
	room := int64(MaxTrialBytes)
	for _, b := range res.Fetched {
		room -= int64(len(b))
	}
	var buf bytes.Buffer
	info, err := sb.Files().Read(ctx, sandbox.User{}, file, &buf, 0, room)
	if err != nil || info.Size > int64(buf.Len()) {
		return
	}
	if res.Fetched == nil {
		res.Fetched = map[string][]byte{}
	}
	res.Fetched[name] = buf.Bytes()
}

// sealed makes the sandbox's upper a layer of the store, with the owners of an unshifted
// one, so that any number of sandboxes may stand on it, each with ids of its own.
func (t *trial) sealed(ctx context.Context, b *box) (*Prepared, error) {
	sb, ids := b.sb, b.ids
	if err := sb.Stop(ctx); err != nil {
		return nil, fmt.Errorf("stop sandbox: %w", err)
	}
	for _, p := range t.spec.Drop {
		err := sb.Files().Remove(ctx, sandbox.User{}, p)
		if fe, ok := errors.AsType[*sandbox.FileError](err); err != nil && (!ok || fe.Kind != "not_found") {
			return nil, fmt.Errorf("drop: %w", err)
		}
	}
	work, err := t.g.r.scratch("pack")
	if err != nil {
		return nil, err
	}
	defer work.remove()
	pack := filepath.Join(work.path, packFile)
	c, err := t.g.fork.Capture(ctx, overlay.CaptureInput{Upper: sb.Upper(), HostID: ids.HostID, Pack: pack})
	if err != nil {
		return nil, err
	}
	layer, err := t.g.r.scratch("prepared")
	if err != nil {
		return nil, err
	}
	if err := t.g.fork.Restore(ctx, c, pack, layer.dir, 0); err != nil {
		layer.remove()
		return nil, err
	}
	return &Prepared{world: t.g.fork.World().ID, bytes: c.Bytes, dir: layer}, nil
}

// flooded keeps a stream up to its bound, and says when there is more.
type flooded struct {
	max  int
	over chan<- struct{}

	mu   sync.Mutex
	buf  []byte
	more bool
}

var _ io.Writer = (*flooded)(nil)

// Write keeps p as far as there is room.
func (f *flooded) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(p), f.max-len(f.buf))
	f.buf = append(f.buf, p[:n]...)
	if n < len(p) && !f.more {
		f.more = true
		f.over <- struct{}{}
	}
	return len(p), nil
}

func (f *flooded) bytes() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.buf
}

func (f *flooded) flooded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.more
}
