package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// BuildPolicy is the policy of the steps of a build.
const BuildPolicy = "build"

// Bounds of a step.
const (
	// DefaultStepS is the wall time that a step may take where the build does not say.
	DefaultStepS = 3600
	// scriptPath is where a step's script lies while it runs.
	scriptPath = "/.paddock-step"
)

// StepSpec is one command of a build: it runs in a fork of its own of a world, and what it
// leaves becomes another world.
type StepSpec struct {
	// World is the id of the one to go on from.
	World string
	Argv  []string
	// Script, where it is set, is an executable file that Argv's last element stands for: its
	// path is put there. It is gone again before the world is sealed.
	Script []byte
	// Env is added to the policy's, to HOME and to what names the proxy.
	Env []string
	// Dir is the working directory, absolute; User as in an image's config.
	Dir, User string
	Network   StepNetwork
	Limits    Limits
	// WallS bounds the command; 0 is DefaultStepS.
	WallS float64
	// Output gets what the command writes, both streams, as it comes.
	Output io.Writer
	Seal   overlay.Sealed
}

// StepNetwork is what a step reaches.
type StepNetwork struct {
	// Allow are the entries of a proxy, as egress.ParseEntry reads them; none is no network.
	Allow []string
	// Any has the proxy lead to every other host as well, but for the addresses that the
	// policy refuses.
	Any bool
}

// StepResult is how a step ended.
type StepResult struct {
	Exit sandbox.Exit
	// World is what it left; it is empty unless OK.
	World overlay.World
	// Limits are the effective ones, WallS the bound on the wall time.
	Limits Limits
	WallS  float64
	// Network is what was asked for, nil for nothing.
	Network *NetworkSummary
}

// OK says whether the command exited by itself with code 0.
func (s *StepResult) OK() bool { return s.Exit.Code != nil && *s.Exit.Code == 0 }

// Step runs one step under the policy "build". An error is a refused spec (*Error, or a
// *sandbox.UserError) or paddock's own failure: how the command ended is in the result.
func (r *Runner) Step(ctx context.Context, spec StepSpec) (StepResult, error) {
	s := &step{r: r, spec: spec}
	if err := s.check(); err != nil {
		return StepResult{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(r.ctx, func() { cancel(errClosed) }) //nolint:contextcheck // the runner's end is the step's too
	defer stop()
	turn, err := r.trials.enter(ctx, r, 0)
	if err != nil {
		return StepResult{}, err
	}
	defer turn.done()
	return s.run(ctx)
}

// BuildPolicyHash is the hash of the policy that steps run under, for keys of caches.
func (r *Runner) BuildPolicyHash() (string, error) {
	pol, err := r.cfg.Policies.Get(BuildPolicy)
	if err != nil {
		return "", err
	}
	return pol.Hash(), nil
}

// CheckStepNetwork refuses a network that no step can have.
func (r *Runner) CheckStepNetwork(n StepNetwork) error {
	pol, err := r.cfg.Policies.Get(BuildPolicy)
	if err != nil {
		return err
	}
	plan, err := planNetwork(NetworkSpec{Allow: n.Allow}, nil, pol)
	if err != nil {
		return err
	}
	return r.checkNetwork(&plan)
}

// step is one StepSpec on its way.
type step struct {
	r    *Runner
	spec StepSpec
	pol  *policies.Policy
	eff  policies.Limits
	net  PlanNetwork
}

func (s *step) check() error {
	if !path.IsAbs(s.spec.Dir) || path.Clean(s.spec.Dir) != s.spec.Dir {
		return badField("dir", "%q is not a clean absolute path", s.spec.Dir)
	}
	if len(s.spec.Argv) == 0 || s.spec.Argv[0] == "" {
		return badField("argv", "names no program")
	}
	if !(s.spec.WallS >= 0 && s.spec.WallS <= maxSeconds) {
		return badField("wall_s", "%v is not in 0 to %d seconds", s.spec.WallS, int(maxSeconds))
	}
	if s.spec.WallS == 0 {
		s.spec.WallS = DefaultStepS
	}
	var err error
	if s.pol, err = s.r.cfg.Policies.Get(BuildPolicy); err != nil {
		return &Error{Kind: KindUnknownPolicy, Field: "policy", Detail: err.Error()}
	}
	l := s.spec.Limits
	s.eff, _, err = s.pol.Effective(policies.Limits{
		CPUs: l.CPUs, MemoryBytes: l.MemoryBytes, DiskBytes: l.DiskBytes, Inodes: l.Inodes, Pids: l.Pids,
	}, s.r.cfg.Host)
	if le, ok := errors.AsType[*policies.LimitError](err); ok {
		return badField("limits/"+le.Field, "%s", le.Detail)
	}
	if err != nil {
		return fmt.Errorf("effective limits: %w", err)
	}
	if s.net, err = planNetwork(NetworkSpec{Allow: s.spec.Network.Allow}, nil, s.pol); err != nil {
		return err
	}
	return s.r.checkNetwork(&s.net)
}

func (s *step) run(ctx context.Context) (StepResult, error) {
	b, err := s.r.stock.newBox()
	if err != nil {
		return StepResult{}, fmt.Errorf("user ids: %w", err)
	}
	k := kind{world: s.spec.World, policy: s.pol.Hash(), workdir: s.spec.Dir, limits: s.eff, listen: listOf(s.net.ports())}
	// What was begun is finished, so that it can be ended, whoever has gone meanwhile.
	begun, cancel := context.WithTimeout(context.WithoutCancel(ctx), stockPatience)
	defer cancel()
	b, err = s.r.fill(begun, k, s.pol, b)
	if err != nil {
		if begun.Err() == nil { // else the launcher may still be at it, and the ids stay in use
			s.r.stock.drop(b)
		}
		return StepResult{}, worldErr(err)
	}
	defer s.r.stock.drop(b)
	return s.conduct(ctx, b)
}

func (s *step) conduct(ctx context.Context, b box) (StepResult, error) {
	res := StepResult{WallS: s.spec.WallS, Limits: Limits{
		CPUs: s.eff.CPUs, MemoryBytes: s.eff.MemoryBytes, DiskBytes: s.eff.DiskBytes, Inodes: s.eff.Inodes, Pids: s.eff.Pids,
	}}
	d, err := s.r.openDoors(b.sb, doorsFor{plan: &s.net, policy: s.pol, network: NetworkSpec{Allow: s.spec.Network.Allow}, any: s.spec.Network.Any})
	if err != nil {
		return res, err
	}
	err = s.program(ctx, b.sb, &res)
	err = errors.Join(err, d.close())
	res.Network = d.summary()
	if err != nil || !res.OK() {
		return res, err
	}
	res.World, err = s.seal(ctx, b)
	return res, err
}

func (s *step) program(ctx context.Context, sb Sandbox, res *StepResult) error {
	cmd, err := s.command(ctx, sb)
	if err != nil {
		return err
	}
	if s.spec.Script != nil {
		if _, err := sb.Files().Write(ctx, sandbox.User{}, scriptPath, bytes.NewReader(s.spec.Script), 0o755); err != nil {
			return fmt.Errorf("write the script: %w", err)
		}
	}
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return trialFault(sb, err)
	}
	ended := make(chan sandbox.Exit, 1)
	go func() { ended <- p.Wait() }()
	select {
	case res.Exit = <-ended:
	case <-ctx.Done():
		p.Kill()
		<-ended
		return context.Cause(ctx)
	}
	if res.Exit.HostOOM {
		return errHostMemory
	}
	return trialFault(sb, nil)
}

// command puts together everything of the command. Its user is looked up in the world's own
// files, which are hostile input.
func (s *step) command(ctx context.Context, sb Sandbox) (sandbox.Command, error) {
	file := func(p string) []byte {
		var buf bytes.Buffer
		if _, err := sb.Files().Read(ctx, sandbox.User{}, p, &buf, 0, maxUserFile); err != nil {
			return nil // a world without the file has no names
		}
		return buf.Bytes()
	}
	ref := s.spec.User
	if ref == "" {
		uid, gid := s.pol.User()
		ref = fmt.Sprintf("%d:%d", uid, gid)
	}
	who, home, _, err := sandbox.LookupUser(file("/etc/passwd"), file("/etc/group"), ref)
	if err != nil {
		return sandbox.Command{}, err
	}
	if err := s.pol.CheckUser(who.UID); err != nil {
		return sandbox.Command{}, badField("user", "%v", err)
	}
	argv := s.spec.Argv
	if s.spec.Script != nil {
		argv = append(argv[:len(argv)-1:len(argv)-1], scriptPath)
	}
	out := &lockedWriter{w: s.spec.Output}
	return sandbox.Command{
		Argv: argv, Dir: s.spec.Dir, User: who, Umask: s.pol.Umask(),
		Env: mergeEnv([]string{"HOME=" + s.pol.Home(who.UID, home)}, s.pol.Env(0), s.net.env(), s.spec.Env),
		// A step is over when its command is: what it started would be gone with the sandbox.
		Leftovers: sandbox.KillLeftovers,
		Stdout:    out, Stderr: out, Timeout: seconds(s.spec.WallS),
	}, nil
}

// seal makes a world of what the command left.
func (s *step) seal(ctx context.Context, b box) (overlay.World, error) {
	if err := b.sb.Stop(ctx); err != nil {
		return overlay.World{}, fmt.Errorf("stop sandbox: %w", err)
	}
	if s.spec.Script != nil {
		err := b.sb.Files().Remove(ctx, sandbox.User{}, scriptPath)
		if fe, ok := errors.AsType[*sandbox.FileError](err); err != nil && (!ok || fe.Kind != "not_found") {
			return overlay.World{}, fmt.Errorf("remove the script: %w", err)
		}
	}
	return b.fork.Seal(ctx, overlay.SealInput{
		Upper: b.sb.Upper(), HostID: b.ids.HostID, Config: s.spec.Seal.Config, Recipe: s.spec.Seal.Recipe, Key: s.spec.Seal.Key,
	})
}

// lockedWriter is one writer for the goroutines of both streams; nil takes nothing.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write passes p on.
func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil {
		return len(p), nil
	}
	return l.w.Write(p)
}

// KeepWorld makes owner hold a world that was built for it, and points a name, unless it is
// empty, at it.
func (r *Runner) KeepWorld(ctx context.Context, owner, id, name string) (overlay.World, error) {
	w, err := r.cfg.Worlds.World(ctx, id)
	if err == nil && name != "" {
		w, err = r.cfg.Worlds.Name(ctx, storedName(owner, name), id)
	}
	if err != nil {
		return w, worldErr(err)
	}
	r.health.lift(w.ID)
	return seenBy(owner, w), r.hold(ctx, owner, w)
}
