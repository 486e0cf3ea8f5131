package dockerfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

// builderVersion is part of every key; it changes when equal steps give other files.
const builderVersion = "paddock-dockerfile/1"

// key names what comes of doing something to a world's layers. Of its config only what
// matters to the step is in it, so that a label costs no step.
func (u *build) key(on overlay.World, kind string, input map[string]any) (string, error) {
	text, err := json.Marshal(map[string]any{
		"builder": builderVersion, "arch": runtime.GOARCH, "layers": on.Layers, "kind": kind, "version": u.recipe.Version, "input": input,
	})
	if err != nil {
		return "", err
	}
	h := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(h[:]), nil
}

// sealed is what a step's world is called.
func (u *build) sealed(st *state, key string) overlay.Sealed {
	return overlay.Sealed{Config: st.config, Recipe: overlay.StepRecipe, Key: key}
}

// sourceOf says where an instruction copies from: a stage or world, or the context.
func sourceOf(c command) (from string, context bool) {
	switch i := c.Command.(type) {
	case *instructions.CopyCommand:
		return i.From, i.From == "" && len(i.SourcePaths) > 0
	case *instructions.AddCommand:
		return "", len(i.SourcePaths) > 0
	}
	return "", false
}

// checkRun refuses a RUN that asks for more network than the build has.
func (u *build) checkRun(c command) error {
	i, ok := c.Command.(*instructions.RunCommand)
	if ok && instructions.GetNetwork(i) == instructions.NetworkHost && !u.recipe.Network.Host {
		return u.file.refuse(c.line, "RUN --network=host: the build has no network of the host; ask for it with --network host, or name hosts with --network allow:HOST")
	}
	return nil
}

// allow is what the build's commands reach, in one canonical form.
func (u *build) allow() []string {
	var out []string
	for _, text := range u.recipe.Network.Allow {
		if e, err := egress.ParseEntry(text); err == nil { // else it was refused before
			text = e.String()
		}
		out = append(out, text)
	}
	if u.recipe.Network.Host {
		out = append(out, hostNetwork)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// hostNetwork stands among the hosts of a build that reaches all.
const hostNetwork = "host"

// mkdir makes a directory where it is missing.
func (u *build) mkdir(ctx context.Context, st *state, at *built, act *action, dir string) error {
	kind, _, err := at.view.Kind(dir)
	if err != nil {
		return u.explain(act, err)
	}
	switch kind {
	case "dir":
		return nil
	case "":
	default:
		return u.file.refuse(act.line, "the working directory %s is a %s", dir, kind)
	}
	key, err := u.key(at.world, "mkdir", map[string]any{"dir": dir})
	if err != nil {
		return err
	}
	return u.made(ctx, at, act, key, func(key string) (overlay.World, *runner.NetworkSummary, error) {
		w, err := u.store.Copy(ctx, overlay.CopyInput{Base: at.world.ID, Dest: dir, Seal: u.sealed(st, key)}, u.progress)
		return w, nil, u.explain(act, err)
	})
}

// explain puts the line into a refusal.
func (u *build) explain(act *action, err error) error {
	e, ok := errors.AsType[*overlay.RecipeError](err)
	if !ok || strings.HasPrefix(e.Path, u.file.name+":") {
		return err
	}
	kind := "bad_recipe"
	if e.Kind == "world_too_large" {
		kind = e.Kind
	}
	detail := short(act.text) + ": "
	if e.Path != "" {
		detail += e.Path + " "
	}
	return &overlay.RecipeError{Kind: kind, Path: at(u.file.name, act.line), Detail: detail + e.Detail}
}

// copy is a COPY or an ADD.
func (u *build) copy(ctx context.Context, i int, st *state, at *built, act *action) error {
	c := act.copy
	sel, fromWorld, end, err := u.selected(ctx, i, c)
	if err != nil {
		return u.explain(act, err)
	}
	defer end()
	if sel.Len() > 1 && !strings.HasSuffix(c.dest, "/") {
		return u.file.refuse(act.line, "several sources need a destination that ends in /")
	}
	owner, err := u.owned(at, act, fromWorld)
	if err != nil {
		return err
	}
	input := map[string]any{"digest": sel.Digest, "dest": c.dest, "owner": owner, "mode": c.mode, "unpack": c.unpack}
	key, err := u.key(at.world, "copy", input)
	if err != nil {
		return err
	}
	return u.made(ctx, at, act, key, func(key string) (overlay.World, *runner.NetworkSummary, error) {
		w, err := u.store.Copy(ctx, overlay.CopyInput{
			Base: at.world.ID, From: sel, Dest: c.dest, Owner: owner, Mode: c.mode, Times: fromWorld, Unpack: c.unpack, Seal: u.sealed(st, key),
		}, u.progress)
		return w, nil, u.explain(act, err)
	})
}

// selected finds and reads what is copied. end lets go of where it lies.
func (u *build) selected(ctx context.Context, i int, c *copyAction) (sel *overlay.Selection, fromWorld bool, end func(), err error) {
	end = func() {}
	view := u.context
	in := overlay.Selecting{Sources: c.sources, Files: c.files, Skip: u.ignore}
	switch n := u.file.source(i, c.from); {
	case c.from == "":
		if view == nil { // here-documents alone
			if view, err = u.store.View(ctx, ""); err != nil {
				return nil, false, end, err
			}
			end = view.Close
		}
	case n >= 0:
		view, fromWorld, in.Skip = u.done[n].view, true, nil
	default:
		if view, err = u.store.View(ctx, u.worlds[c.from].ID); err != nil {
			return nil, false, end, err
		}
		end, fromWorld, in.Skip = view.Close, true, nil
	}
	if sel, err = view.Select(ctx, in, u.progress); err != nil {
		end()
	}
	return sel, fromWorld, end, err
}

// maxUserFile bounds how much of a world's passwd and group files is read.
const maxUserFile = 1 << 20

// owned is whose the copied files are: --chown's, of files of the context root's, and of
// others whose they are.
func (u *build) owned(at *built, act *action, fromWorld bool) (*overlay.Owner, error) {
	chown := act.copy.chown
	if chown == "" {
		if fromWorld {
			return nil, nil
		}
		return &overlay.Owner{}, nil
	}
	file := func(p string) []byte {
		text, err := at.view.ReadFile(p, maxUserFile)
		if err != nil {
			return nil // a world without the file has no names
		}
		return text
	}
	if !strings.Contains(chown, ":") {
		chown += ":" + chown // a name alone is the group's, too
	}
	who, _, _, err := sandbox.LookupUser(file("/etc/passwd"), file("/etc/group"), chown)
	if err != nil {
		return nil, u.file.refuse(act.line, "--chown=%s: %v", act.copy.chown, err)
	}
	return &overlay.Owner{UID: who.UID, GID: who.GID}, nil
}

// run is a RUN.
func (u *build) run(ctx context.Context, st *state, at *built, act *action) error {
	r := act.run
	allow := u.allow()
	if r.network == instructions.NetworkNone {
		allow = nil
	}
	if len(allow) > 0 {
		u.network = true
	}
	key, err := u.key(at.world, "run", map[string]any{
		"argv": r.argv, "script": string(r.script), "env": r.env, "dir": r.dir, "user": r.user, "allow": allow, "policy": u.policy,
	})
	if err != nil {
		return err
	}
	return u.made(ctx, at, act, key, func(key string) (overlay.World, *runner.NetworkSummary, error) {
		base := at.world.ID
		if base == "" {
			w, err := u.store.Configure(ctx, "", overlay.Sealed{Recipe: overlay.StepRecipe})
			if err != nil {
				return w, nil, err
			}
			base = w.ID
		}
		if len(allow) > 0 {
			u.tell("  with a network: %s", strings.Join(allow, " "))
		}
		tail := &lastWords{to: u.log}
		res, err := u.Builder.steps.Step(ctx, runner.StepSpec{
			World: base, Argv: r.argv, Script: r.script, Env: slices.Concat(r.env, r.silent), Dir: r.dir, User: r.user,
			Network: stepNetwork(allow), Limits: u.recipe.Limits, WallS: u.recipe.StepS, Output: tail, Seal: u.sealed(st, key),
		})
		if ue, ok := errors.AsType[*sandbox.UserError](err); ok {
			err = u.file.refuse(act.line, "%v", ue)
		}
		if err != nil {
			return overlay.World{}, nil, u.explain(act, err)
		}
		if !res.OK() {
			return overlay.World{}, res.Network, u.failed(act, &res, tail)
		}
		return res.World, res.Network, nil
	})
}

// stepNetwork is what a step reaches by the list that is in its key.
func stepNetwork(allow []string) runner.StepNetwork {
	hosts := slices.DeleteFunc(slices.Clone(allow), func(a string) bool { return a == hostNetwork })
	return runner.StepNetwork{Allow: hosts, Any: len(hosts) < len(allow)}
}

// failed says how a command ended, with its last words.
func (u *build) failed(act *action, res *runner.StepResult, tail *lastWords) error {
	lines := append([]string{short(act.text) + ": " + ended(res)}, refusals(res.Network)...)
	if words := tail.text(); words != "" {
		lines = append(lines, words)
	}
	return &overlay.RecipeError{Kind: "build_failed", Path: at(u.file.name, act.line), Detail: strings.Join(lines, "\n")}
}

func ended(res *runner.StepResult) string {
	e := &res.Exit
	switch {
	case e.NotStarted != nil:
		return fmt.Sprintf("could not be started: %s %s", e.NotStarted.Kind, e.NotStarted.Path)
	case e.TimedOut:
		return fmt.Sprintf("was ended after %v seconds, its limit", res.WallS)
	case e.OOM:
		return fmt.Sprintf("was ended for memory, of which it may have %d bytes", res.Limits.MemoryBytes)
	case e.Full == sandbox.FullDisk:
		return fmt.Sprintf("exited with %s, its %d bytes of disk full", exitCode(e), res.Limits.DiskBytes)
	case e.Full == sandbox.FullInodes:
		return fmt.Sprintf("exited with %s, its %d files full", exitCode(e), res.Limits.Inodes)
	case e.PidsLimit:
		return fmt.Sprintf("exited with %s, at its limit of %d processes", exitCode(e), res.Limits.Pids)
	}
	return "exited with " + exitCode(e)
}

func exitCode(e *sandbox.Exit) string {
	if e.Code != nil {
		return strconv.Itoa(*e.Code)
	}
	return "signal " + strconv.Itoa(e.Signal)
}

// refusals are the hosts that a command wanted and did not get.
func refusals(n *runner.NetworkSummary) []string {
	if n == nil {
		return nil
	}
	var out []string
	for _, s := range n.Seen {
		if s.Verdict != egress.Allowed && s.Host != "" && len(out) < 5 {
			out = append(out, fmt.Sprintf("it asked for %s:%d: %s; a build reaches what --network allow:HOST[:PORT] names", s.Host, s.Port, s.Verdict))
		}
	}
	return out
}

// lastWords passes a command's output on and keeps its end.
type lastWords struct {
	to io.Writer

	mu      sync.Mutex
	kept    bytes.Buffer
	dropped bool
}

// maxWords is what is kept of a failed command's output.
const maxWords = 16 << 10

// Write takes output.
func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.kept.Write(p)
	if more := l.kept.Len() - maxWords; more > 0 {
		l.kept.Next(more)
		l.dropped = true
	}
	l.mu.Unlock()
	return l.to.Write(p)
}

func (l *lastWords) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(strings.ToValidUTF8(l.kept.String(), "\uFFFD"))
	if l.dropped {
		return "[...] " + text
	}
	return text
}
