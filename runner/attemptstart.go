package runner

import (
	"context"
	"fmt"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// start makes the fork, the journal and the sandbox, or takes those made ahead. What it made
// before an error is released by release, as at any end.
func (a *attempt) start(ctx context.Context) error {
	var err error
	defer a.r.stock.more()
	if a.sb == nil { // else it came with its program
		if err := a.takeBox(); err != nil {
			return err
		}
	}
	if a.dir, err = a.r.cfg.Record.Dir(a.key, a.n); err != nil {
		return fmt.Errorf("attempt's directory: %w", err)
	}
	if a.journal, err = a.r.cfg.Record.Journal(a.key, a.n); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := a.fillBox(ctx); err != nil {
		return err
	}
	return a.openNetwork()
}

// takeBox takes the best there is in stock.
func (a *attempt) takeBox() error {
	b, err := a.r.stock.take(a.kind(), func(ctx context.Context, b box) (box, error) { return a.r.fill(ctx, a.kind(), a.policy, b) })
	if err != nil {
		return fmt.Errorf("user ids: %w", err)
	}
	a.sandbox, a.ids, a.fork, a.sb = b.name, b.ids, b.fork, b.sb
	return nil
}

// fillBox makes what the box lacks.
func (a *attempt) fillBox(ctx context.Context) error {
	if a.sb == nil {
		b, err := a.r.fill(ctx, a.kind(), a.policy, box{name: a.sandbox, ids: a.ids})
		if a.fork, a.sb = b.fork, b.sb; err != nil {
			return err
		}
	}
	if a.tracker == nil {
		a.tracker = a.fork.Track(a.sb.Upper(), a.ids.HostID)
	}
	return nil
}

// kind is what the attempt's sandbox depends on.
func (a *attempt) kind() kind { return a.plan.kind(a.workdir) }

func (p *Plan) kind(workdir string) kind {
	return kind{
		world: p.World, policy: p.PolicyHash, workdir: workdir, limits: p.effective(),
		listen: listOf(p.Network.ports()),
	}
}

// workdirOf is where commands begin in a world.
func workdirOf(w overlay.World) string {
	if w.Config.WorkingDir != "" {
		return w.Config.WorkingDir
	}
	return "/"
}

// fill forks a world for a box and starts its sandbox. The box has what was made before an
// error, too.
func (r *Runner) fill(ctx context.Context, k kind, pol *policies.Policy, b box) (box, error) {
	var err error
	if b.fork, err = r.cfg.Worlds.Fork(ctx, k.world); err != nil {
		return b, fmt.Errorf("fork %s: %w", k.world, err)
	}
	oci, err := pol.Spec(k.limits, hostname, k.workdir)
	if err != nil {
		return b, fmt.Errorf("policy %s: %w", pol.Name(), err)
	}
	spec := sandbox.Spec{
		Name: b.name, IDs: b.ids, OCI: oci, Listen: k.listen.ports(),
		Root: sandbox.Root{Upper: sandbox.Upper{Bytes: k.limits.DiskBytes, Inodes: k.limits.Inodes, OnDisk: k.limits.OnDisk()}},
	}
	if k.layer != "" {
		spec.Root.Lowers = append(spec.Root.Lowers, sandbox.Lower{Path: k.layer})
	}
	for _, dir := range b.fork.Lowers() {
		spec.Root.Lowers = append(spec.Root.Lowers, sandbox.Lower{Path: dir})
	}
	if b.sb, err = r.cfg.Launcher.Start(ctx, spec); err != nil {
		return b, fmt.Errorf("start sandbox: %w", err)
	}
	return b, nil
}

// hostname is what every sandbox calls itself: pinned, so that it is no source of
// difference between attempts.
const hostname = "paddock"
