package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/paddock-run/paddock/sandbox"
)

// setUp makes the working directory, as docker does, and runs the world's own set-up.
// A set-up that fails is the world's fault.
func (a *attempt) setUp(ctx context.Context) *End {
	if err := a.makeWorkdir(ctx); err != nil {
		return &End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{err.Error()}}
	}
	cmd := a.world.Config.Setup
	if len(cmd) == 0 {
		return nil
	}
	if err := a.to(ctx, SettingUp, Lazy, nil); err != nil {
		end := storageEnd("start", err)
		return &end
	}
	who, cerr := a.resolveUser(ctx, "")
	if cerr != nil {
		return &End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{cerr.Kind + " " + cerr.Detail}}
	}
	out := programOutput(4096, nil, nil)
	p, err := a.sb.Start(ctx, sandbox.Command{
		Argv: cmd, Env: a.callEnv(who, nil), Dir: a.workdir, User: who.user, Umask: a.policy.Umask(), Stdout: out, Stderr: out,
	})
	if err != nil {
		return &End{Status: Errored, Cause: Platform, Step: "start", Evidence: []string{fmt.Sprintf("set-up: %v", err)}}
	}
	stopKill := context.AfterFunc(ctx, p.Kill)
	exit := p.Wait()
	stopKill()
	if exit.Code != nil && *exit.Code == 0 {
		return nil
	}
	if exit.HostOOM {
		end := hostMemoryEnd([]string{"the OOM killer struck the set-up, which had never met its own limit"})
		return &end
	}
	if fate, dead := a.fate(); dead {
		// Death from outside during set-up is not the world's.
		if end := fateEnd(fate); end.Cause == Platform {
			return &end
		}
	}
	ev := []string{"set-up: " + exitText(exit), string(out.output().Head)}
	if ctx.Err() != nil {
		ev = append(ev, context.Cause(ctx).Error())
	}
	return &End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: ev}
}

func (a *attempt) fate() (sandbox.Fate, bool) {
	select {
	case <-a.sb.Done():
		return a.sb.Fate(), true
	default:
		return sandbox.Fate{}, false
	}
}

func exitText(e sandbox.Exit) string {
	switch {
	case e.NotStarted != nil:
		return fmt.Sprintf("%s %s", e.NotStarted.Kind, e.NotStarted.Path)
	case e.Code != nil:
		return fmt.Sprintf("exit code %d", *e.Code)
	default:
		return fmt.Sprintf("signal %d", e.Signal)
	}
}

// emptyTar is an archive without entries: unpacking it makes the directory alone.
var emptyTar = make([]byte, 1024)

func (a *attempt) makeWorkdir(ctx context.Context) error {
	if !strings.HasPrefix(a.workdir, "/") {
		return fmt.Errorf("the world's working directory %q is not absolute", a.workdir)
	}
	if a.workdir == "/" {
		return nil
	}
	root := sandbox.User{}
	_, err := a.sb.Files().Stat(ctx, root, a.workdir)
	fe, ok := errors.AsType[*sandbox.FileError](err)
	if !ok || fe.Kind != "not_found" {
		return err
	}
	if _, err := a.sb.Files().Untar(ctx, root, a.workdir, bytes.NewReader(emptyTar), sandbox.TarLimits{}); err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	return nil
}
