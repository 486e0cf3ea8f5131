package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/sandbox"
)

// graderRun is one run of a grader in a fork of its own.
type graderRun struct {
	exit           sandbox.Exit
	verdict        []byte
	stdout, stderr string
	network        *NetworkSummary
	memory         int64 // the limit
	// bootFailed: a start command of mode boot ended badly, so the grader did not run.
	bootFailed bool
}

func (r graderRun) status() Status {
	switch {
	case r.exit.TimedOut, r.exit.CPUTimedOut:
		return Timeout
	case r.exit.OOM:
		return OOM
	case r.exit.Code == nil || *r.exit.Code != 0:
		return Failed
	}
	return OK
}

// maxGraderOutput is what is kept of a grader's own output.
const maxGraderOutput = 64 << 10

// run grades once: a fresh sandbox on [grader's layer, agent's upper, world]. An error is
// the platform's fault; whatever the code under test does is in the result.
func (g *grading) run(ctx context.Context) (graderRun, error) {
	ctx, cancel := context.WithTimeout(ctx, g.budget()+2*stopPatience)
	defer cancel()
	layer, err := g.layer(ctx)
	if err != nil {
		return graderRun{}, fmt.Errorf("grader's layer: %w", err)
	}
	defer layer.remove()
	spec, memory, err := g.sandboxSpec(layer.path)
	if err != nil {
		return graderRun{}, err
	}
	defer g.r.sandboxGone(spec.Name)
	sb, err := g.r.cfg.Launcher.Start(ctx, spec)
	if err != nil {
		return graderRun{}, fmt.Errorf("start sandbox: %w", err)
	}
	pol, err := g.r.graderPolicy(g.spec)
	if err != nil {
		return graderRun{}, errors.Join(err, sb.Close())
	}
	d, err := g.r.openDoors(sb, doorsFor{plan: &g.network, policy: pol, network: g.spec.Network})
	if err != nil {
		return graderRun{}, errors.Join(err, sb.Close())
	}
	run, err := g.inside(ctx, sb)
	run.memory = memory
	err = errors.Join(err, d.close(), sb.Close())
	run.network = d.summary()
	return run, err
}

func (g *grading) sandboxSpec(layer string) (sandbox.Spec, int64, error) {
	pol, err := g.r.graderPolicy(g.spec)
	if err != nil {
		return sandbox.Spec{}, 0, err
	}
	eff, err := graderLimits(pol, g.spec, g.r.cfg.Host)
	if err != nil {
		return sandbox.Spec{}, 0, err
	}
	workdir := g.in.Fork.World().Config.WorkingDir
	if workdir == "" {
		workdir = "/"
	}
	oci, err := pol.Spec(eff, hostname, workdir)
	if err != nil {
		return sandbox.Spec{}, 0, fmt.Errorf("policy %s: %w", pol.Name(), err)
	}
	if g.network, err = planNetwork(g.spec.Network, nil, pol); err != nil {
		return sandbox.Spec{}, 0, err
	}
	s := sandbox.Spec{
		Name: g.r.sandboxName(), IDs: g.in.IDs, OCI: oci, Listen: g.network.ports(),
		Root: sandbox.Root{
			Lowers: []sandbox.Lower{{Path: layer, Shifted: true}},
			Upper:  sandbox.Upper{Bytes: eff.DiskBytes, Inodes: eff.Inodes, OnDisk: eff.OnDisk()},
		},
	}
	if g.in.Upper != nil {
		s.Root.Lowers = append(s.Root.Lowers, sandbox.Lower{Dir: g.in.Upper, Shifted: true})
	}
	for _, dir := range g.in.Fork.Lowers() {
		s.Root.Lowers = append(s.Root.Lowers, sandbox.Lower{Path: dir})
	}
	return s, eff.Memory(), nil
}

var errHostMemory = errors.New("host_memory: the OOM killer struck the scoring sandbox, which had never met its own limit")

// inside runs the start commands of mode boot and then the grader.
func (g *grading) inside(ctx context.Context, sb Sandbox) (graderRun, error) {
	cmd, err := g.command()
	if err != nil {
		return graderRun{}, err
	}
	began := time.Now()
	for _, argv := range g.spec.Boot {
		boot := cmd
		boot.Argv, boot.Timeout = argv, max(time.Millisecond, g.budget()-time.Since(began))
		p, err := sb.Start(ctx, boot)
		if err != nil {
			return graderRun{}, g.fault(sb, err)
		}
		stopKill := context.AfterFunc(ctx, p.Kill)
		exit := p.Wait()
		stopKill()
		if exit.HostOOM {
			return graderRun{}, errHostMemory
		}
		if exit.Code == nil || *exit.Code != 0 {
			// A start command that the end state breaks is no verdict, as a grader that dies is.
			return graderRun{exit: exit, bootFailed: true}, g.fault(sb, nil)
		}
	}
	var run graderRun
	out, errOut := programOutput(maxGraderOutput, nil, nil), programOutput(maxGraderOutput, nil, nil)
	said := &boundedBuffer{max: maxVerdict + 1}
	cmd.Argv, cmd.Stdout, cmd.Stderr, cmd.FD3 = g.spec.Command, out, errOut, said
	cmd.Timeout = max(time.Millisecond, g.budget()-time.Since(began))
	// What the grader started may hold its descriptor; none of it outlives the verdict.
	cmd.Leftovers = sandbox.KillLeftovers
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return graderRun{}, g.fault(sb, err)
	}
	stopKill := context.AfterFunc(ctx, p.Kill)
	run.exit = p.Wait()
	stopKill()
	if run.exit.HostOOM {
		return graderRun{}, errHostMemory
	}
	run.verdict, run.stdout, run.stderr = said.buf.Bytes(), printable(out.output()), printable(errOut.output())
	return run, g.fault(sb, nil)
}

// fault is the platform's fault, if there is evidence of one: an error of the launcher,
// or a sandbox that was ended from outside.
func (g *grading) fault(sb Sandbox, err error) error {
	select {
	case <-sb.Done():
	default:
		return err
	}
	if end := fateEnd(sb.Fate()); end.Cause == Platform {
		return errors.Join(err, fmt.Errorf("scoring sandbox: %s", strings.Join(end.Evidence, ": ")))
	}
	return nil // the code under test ended it: there will be no verdict
}

func printable(o Output) string {
	text := string(o.Head)
	if o.Dropped > 0 {
		text += fmt.Sprintf("\n[%d bytes dropped]\n", o.Dropped) + string(o.Tail)
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// boundedBuffer keeps the first max bytes and drops the rest.
type boundedBuffer struct {
	buf bytes.Buffer
	max int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.buf.Write(p[:min(len(p), b.max-b.buf.Len())])
	return len(p), nil
}

// command is the grader's process but its argv and streams: its own user, environment and
// directory, nothing of the agent's.
func (g *grading) command() (sandbox.Command, error) {
	pol, err := g.r.graderPolicy(g.spec)
	if err != nil {
		return sandbox.Command{}, err
	}
	uid, gid := pol.User()
	who := sandbox.User{UID: uid, GID: gid}
	home := ""
	if g.spec.User != "" {
		// Names are not looked up: the end state's passwd file is the agent's.
		who, home, _, err = sandbox.LookupUser(nil, nil, g.spec.User)
		if err != nil {
			return sandbox.Command{}, fmt.Errorf("grader's user: %w", err)
		}
	}
	if err := pol.CheckUser(who.UID); err != nil {
		return sandbox.Command{}, fmt.Errorf("grader's user: %w", err)
	}
	own := []string{
		"HOME=" + pol.Home(who.UID, home), "PADDOCK_VERDICT_FD=3", "PADDOCK_INPUTS=" + InputDir,
		"PADDOCK_TASK=" + g.in.Plan.Spec.Task,
	}
	return sandbox.Command{
		Env: mergeEnv(pol.Env(g.in.Plan.EnvSeed), g.network.env(), own, envList(g.spec.Env)),
		Dir: g.spec.Dir, User: who, Umask: pol.Umask(),
	}, nil
}

// layer writes the topmost lower layer of a scoring: the grader's files and its inputs,
// in directories that hide whatever the agent put there, and the mount points that the
// agent may have spoiled.
func (g *grading) layer(ctx context.Context) (*scratchDir, error) {
	s, err := g.r.scratch("score")
	if err != nil {
		return nil, err
	}
	w := layerWriter{root: s.path, owner: int(g.in.IDs.HostID)}
	for _, d := range []string{"/proc", "/dev", "/sys", "/etc"} {
		w.dir(d, 0o755)
	}
	w.dir("/tmp", 0o777|os.ModeSticky)
	w.opaque(g.spec.Dir)
	for name, f := range g.spec.Files {
		mode := os.FileMode(f.Mode)
		if mode == 0 {
			mode = 0o644
		}
		w.file(path.Join(g.spec.Dir, name), f.Bytes, mode)
	}
	w.opaque(InputDir)
	g.inputs(ctx, &w)
	w.own("/")
	if w.err != nil {
		s.remove()
		return nil, w.err
	}
	return s, nil
}

// gradedSpec is what a grader sees of the episode's spec: what describes the task, and
// nothing that differs between members of a group that did the same. So it can be part of
// the score cache's key without making every score one of a kind.
type gradedSpec struct {
	Task    string          `json:"task,omitempty"`
	Group   string          `json:"group,omitempty"`
	World   string          `json:"world"`
	Weights string          `json:"weights,omitempty"`
	Input   json.RawMessage `json:"input"`
	Policy  string          `json:"policy"`
	EnvSeed uint32          `json:"env_seed"`
	Limits  Limits          `json:"limits"`
	Budgets Budgets         `json:"budgets"`
}

func specForGrader(p *Plan) gradedSpec {
	s := gradedSpec{
		Task: p.Spec.Task, Group: p.Spec.Group, World: p.World, Weights: p.Spec.Weights, Input: p.Spec.Input,
		Policy: p.Policy, EnvSeed: p.EnvSeed, Limits: p.Limits, Budgets: p.Budgets,
	}
	if len(s.Input) == 0 {
		s.Input = json.RawMessage("null")
	}
	return s
}

// inputs writes what a grader may read of the episode.
func (g *grading) inputs(ctx context.Context, w *layerWriter) {
	w.json(InputDir+"/spec.json", specForGrader(&g.in.Plan))
	answer := g.in.Attempt.Answer
	if len(answer) == 0 {
		answer = json.RawMessage("null")
	}
	w.file(InputDir+"/answer.json", answer, 0o644)
	if g.in.Dir == "" { // control
		w.file(InputDir+"/trajectory.jsonl", nil, 0o644)
		w.json(InputDir+"/capture.json", overlay.Capture{Changes: []overlay.Change{}})
		return
	}
	w.copy(InputDir+"/capture.json", filepath.Join(g.in.Dir, CaptureFile))
	rd, _, err := g.r.cfg.Record.Trajectory(ctx, g.in.Key, g.in.Attempt.N)
	if err != nil {
		w.fail(err)
		return
	}
	defer func() { _ = rd.Close() }()
	w.stream(InputDir+"/trajectory.jsonl", rd)
}

// layerWriter writes a small tree for a shifted layer. The first error sticks.
type layerWriter struct {
	root  string
	owner int
	err   error
}

func (w *layerWriter) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *layerWriter) at(p string) string { return filepath.Join(w.root, p) }

func (w *layerWriter) own(p string) {
	if w.err == nil {
		w.fail(os.Lchown(w.at(p), w.owner, w.owner))
	}
}

// dir makes a directory and its parents.
func (w *layerWriter) dir(p string, mode os.FileMode) {
	if w.err != nil || p == "/" {
		return
	}
	if _, err := os.Lstat(w.at(p)); err == nil {
		return
	}
	w.dir(path.Dir(p), 0o755)
	if w.err == nil {
		w.fail(os.Mkdir(w.at(p), 0o700))
	}
	if w.err == nil {
		w.fail(os.Chmod(w.at(p), mode)) // whatever the umask
	}
	w.own(p)
}

// opaque makes a directory that hides what the layers below have there.
func (w *layerWriter) opaque(p string) {
	w.dir(p, 0o755)
	if w.err == nil {
		w.fail(unix.Setxattr(w.at(p), "trusted.overlay.opaque", []byte("y"), 0))
	}
}

func (w *layerWriter) file(p string, b []byte, mode os.FileMode) {
	w.stream(p, bytes.NewReader(b))
	if w.err == nil {
		w.fail(os.Chmod(w.at(p), mode))
	}
}

func (w *layerWriter) json(p string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		w.fail(err)
		return
	}
	w.file(p, b, 0o644)
}

func (w *layerWriter) copy(p, from string) {
	f, err := os.Open(from)
	if err != nil {
		w.fail(err)
		return
	}
	defer func() { _ = f.Close() }()
	w.stream(p, f)
}

func (w *layerWriter) stream(p string, r io.Reader) {
	w.dir(path.Dir(p), 0o755)
	if w.err != nil {
		return
	}
	f, err := os.OpenFile(w.at(p), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		w.fail(err)
		return
	}
	_, err = io.Copy(f, r)
	w.fail(errors.Join(err, f.Chmod(0o644), f.Close()))
	w.own(p)
}

// gate bounds how many run at once.
type gate chan struct{}

func newGate(n int) gate { return make(gate, max(1, n)) }

func (g gate) acquire(ctx context.Context) (release func(), err error) {
	select {
	case g <- struct{}{}:
		return func() { <-g }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
