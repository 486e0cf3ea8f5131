package dockerfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

// scratch is the base that is nothing.
const scratch = "scratch"

// Build builds a world for owner, and tells log what it does and what the commands say. A
// file that is refused, or a command that fails, is an *overlay.RecipeError.
func (b *Builder) Build(ctx context.Context, owner string, r Recipe, log io.Writer, p overlay.Progress) (Result, error) {
	began := time.Now()
	u := &build{Builder: b, owner: owner, recipe: r, log: log, progress: p, done: map[int]*built{}, used: map[string]bool{}}
	if u.progress == nil {
		u.progress = func(string, int64, int64) {}
	}
	if u.log == nil {
		u.log = io.Discard
	}
	defer u.close()
	res, err := u.all(ctx)
	res.Took = time.Since(began)
	return res, err
}

// build is one call of Build.
type build struct {
	*Builder
	owner    string
	recipe   Recipe
	log      io.Writer
	progress overlay.Progress

	file   *File
	policy string // its hash
	global map[string]string
	bases  map[int]string           // names of bases, expanded
	worlds map[string]overlay.World // of names that are no stages
	// context is nil where there is none.
	context *overlay.View
	ignore  func(string) (skip, prune bool)
	drop    func()
	used    map[string]bool

	done    map[int]*built
	n       int // of the instruction
	total   int
	steps   []Step
	network bool
}

// built is a stage that was built, its world pinned.
type built struct {
	world  overlay.World // without an id: nothing
	config overlay.Config
	view   *overlay.View
}

func (u *build) close() {
	for _, d := range u.done {
		if d.view != nil {
			d.view.Close()
		}
	}
	if u.context != nil {
		u.context.Close()
	}
	if u.drop != nil {
		u.drop()
	}
}

func (u *build) all(ctx context.Context) (Result, error) {
	if err := u.check(); err != nil {
		return Result{}, err
	}
	if err := u.open(ctx); err != nil {
		return Result{}, err
	}
	target, stages, err := u.plan(ctx)
	if err != nil {
		return Result{}, err
	}
	for _, i := range stages {
		if err := u.stage(ctx, i); err != nil {
			return Result{Steps: u.steps}, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(u.recipe.Args)) {
		if !u.used[name] && !slices.Contains(proxies, name) {
			u.tell("argument %s: no ARG takes it", name)
		}
	}
	return u.finish(ctx, u.done[target])
}

func (u *build) check() error {
	r := &u.recipe
	if !slices.Contains([]string{"", "auto", "off", "refresh"}, r.Cache) {
		return &overlay.RecipeError{Kind: "bad_recipe", Detail: fmt.Sprintf("cache %q is not auto, off or refresh", r.Cache)}
	}
	if r.Dir != "" && r.Tar != nil {
		return &overlay.RecipeError{Kind: "bad_recipe", Detail: "dir and tar are both set"}
	}
	var err error
	if u.policy, err = u.Builder.steps.BuildPolicyHash(); err != nil {
		return err
	}
	return u.Builder.steps.CheckStepNetwork(runner.StepNetwork{Allow: r.Network.Allow})
}

// open opens the context and reads the Dockerfile.
func (u *build) open(ctx context.Context) error {
	r, dir := &u.recipe, u.recipe.Dir
	if r.Tar != nil {
		into, drop, err := u.store.Scratch()
		if err != nil {
			return err
		}
		u.drop = drop
		if dir, err = u.store.Unpack(ctx, r.Tar, into, u.progress); err != nil {
			return err
		}
	}
	if dir != "" {
		var err error
		if u.context, err = u.store.ViewDir(dir); err != nil {
			return err
		}
	}
	name, err := u.read()
	if err != nil {
		return err
	}
	u.file, err = Parse(name, r.Text)
	if err != nil || u.context == nil {
		return err
	}
	patterns, err := readIgnore(u.context, r.File)
	if err != nil {
		return err
	}
	if u.ignore, err = skipper(patterns); err == nil && r.File == SentDockerfile {
		u.ignore = hideSent(u.ignore)
	}
	return err
}

// read finds the Dockerfile's text, and answers its name for messages.
func (u *build) read() (string, error) {
	r := &u.recipe
	if r.Text != "" {
		if r.File == "" {
			return "Dockerfile", nil
		}
		return r.File, nil
	}
	if r.File == "" {
		r.File = "Dockerfile"
	}
	if u.context == nil {
		return "", &overlay.RecipeError{Kind: "bad_recipe", Path: r.File, Detail: "there is no context to read it from"}
	}
	text, err := u.context.ReadFile(r.File, MaxText)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &overlay.RecipeError{Kind: "not_found", Path: r.File, Detail: "is no file of the context"}
	}
	r.Text = string(text)
	return r.File, err
}

// plan finds the stages to build and the worlds that they stand on, before anything runs.
func (u *build) plan(ctx context.Context) (int, []int, error) {
	f := u.file
	target, err := f.target(u.recipe.Target)
	if err != nil {
		return 0, nil, err
	}
	if u.global, err = f.globals(u.recipe.Args, u.used); err != nil {
		return 0, nil, err
	}
	u.bases, u.worlds = map[int]string{}, map[string]overlay.World{}
	for i, s := range f.stages {
		if u.bases[i], err = f.expand(s.line, s.base, u.global); err != nil {
			return 0, nil, err
		}
	}
	stages := f.needed(target, u.bases)
	for _, i := range stages {
		s := &f.stages[i]
		u.total += 1 + len(s.commands)
		if err := u.platform(s); err != nil {
			return 0, nil, err
		}
		if f.stageBefore(i, u.bases[i]) < 0 {
			if err := u.find(ctx, s.line, u.bases[i]); err != nil {
				return 0, nil, err
			}
		}
		for _, c := range s.commands {
			if err := u.precheck(ctx, i, c); err != nil {
				return 0, nil, err
			}
		}
	}
	return target, stages, nil
}

// platform refuses a stage of another platform than the host's.
func (u *build) platform(s *stage) error {
	want, err := u.file.expand(s.line, s.platform, u.global)
	if err != nil || want == "" {
		return err
	}
	if host := platform()["TARGETPLATFORM"]; want != host {
		return u.file.refuse(s.line, "FROM --platform=%s: this host builds for %s", want, host)
	}
	return nil
}

// find looks a world up for a name in a FROM or --from.
func (u *build) find(ctx context.Context, line int, name string) error {
	if name == scratch {
		return nil
	}
	if name == "" {
		return u.file.refuse(line, "FROM names nothing once its variables are replaced")
	}
	w, err := u.Builder.steps.World(ctx, u.owner, name)
	if e, ok := errors.AsType[*runner.Error](err); ok && e.Kind == runner.KindUnknownWorld {
		return &runner.Error{
			Kind: e.Kind, Field: "dockerfile", Detail: fmt.Sprintf("%s: no world %q; `paddock world pull` brings an image, `paddock world alias` gives a world its name", at(u.file.name, line), name),
		}
	}
	if err != nil {
		return err
	}
	if len(w.Config.OnBuild) > 0 {
		return u.file.refuse(line, "the image %s has ONBUILD triggers, which are not supported", name)
	}
	u.worlds[name] = w
	return nil
}

// precheck refuses what an instruction needs and this build does not have.
func (u *build) precheck(ctx context.Context, i int, c command) error {
	from, needsContext := sourceOf(c)
	if needsContext && u.context == nil {
		return u.file.refuse(c.line, "there is no context to copy from")
	}
	if from != "" && u.file.source(i, from) < 0 {
		return u.find(ctx, c.line, from)
	}
	return u.checkRun(c)
}

// stage builds one stage.
func (u *build) stage(ctx context.Context, i int) error {
	s := &u.file.stages[i]
	st := &state{file: u.file, given: u.recipe.Args, global: u.global, args: map[string]string{}, used: u.used}
	at := &built{}
	if n := u.file.stageBefore(i, u.bases[i]); n >= 0 {
		at.world, st.config = u.done[n].world, u.done[n].config
	} else if w, ok := u.worlds[u.bases[i]]; ok {
		at.world, st.config = w, w.Config
	}
	st.begin()
	var err error
	if at.view, err = u.store.View(ctx, at.world.ID); err != nil {
		return err
	}
	u.done[i] = at
	u.say(&s.command)
	for _, c := range s.commands {
		u.say(&c)
		act, err := st.apply(c)
		if err != nil {
			return err
		}
		if act == nil {
			continue
		}
		if err := u.act(ctx, i, st, at, act); err != nil {
			return err
		}
	}
	at.config = st.config
	return nil
}

// say tells the log which instruction is next.
func (u *build) say(c *command) {
	u.n++
	u.tell("[%d/%d] %s", u.n, u.total, short(c.text))
	u.progress(short(c.text), int64(u.n), int64(u.total))
}

// tell writes a line of the log, which is for people: who reads no more misses it.
func (u *build) tell(format string, args ...any) { _, _ = fmt.Fprintf(u.log, format+"\n", args...) }

// short is an instruction in one line.
func short(text string) string {
	line, _, more := strings.Cut(text, "\n")
	const most = 200
	if len(line) > most {
		line, more = strings.ToValidUTF8(line[:most], ""), true
	}
	if more {
		line += " ..."
	}
	return line
}

// move has the stage stand on another world.
func (u *build) move(ctx context.Context, at *built, w overlay.World) error {
	view, err := u.store.View(ctx, w.ID)
	if err != nil {
		return err
	}
	at.view.Close()
	at.world, at.view = w, view
	return nil
}

// act does what an instruction does to files.
func (u *build) act(ctx context.Context, i int, st *state, at *built, act *action) error {
	switch {
	case act.run != nil:
		if err := u.mkdir(ctx, st, at, act, act.run.dir); err != nil {
			return err
		}
		return u.run(ctx, st, at, act)
	case act.copy != nil:
		return u.copy(ctx, i, st, at, act)
	}
	return u.mkdir(ctx, st, at, act, act.dir)
}

// made is a world of one action, from the cache or new.
func (u *build) made(ctx context.Context, at *built, act *action, key string, do func(key string) (overlay.World, *runner.NetworkSummary, error)) error {
	began := time.Now()
	step := Step{Line: act.line, Text: short(act.text)}
	w, err := u.cached(ctx, key, &step, do)
	step.Took = time.Since(began)
	u.steps = append(u.steps, step)
	if err != nil {
		return err
	}
	if step.Hit {
		u.tell("  from the cache")
	}
	return u.move(ctx, at, w)
}

func (u *build) cached(ctx context.Context, key string, step *Step, do func(key string) (overlay.World, *runner.NetworkSummary, error)) (w overlay.World, err error) {
	if u.recipe.Cache == "off" {
		w, step.Network, err = do("")
		return w, err
	}
	done, err := u.store.Once(ctx, key)
	if err != nil {
		return w, err
	}
	defer done()
	if u.recipe.Cache != "refresh" {
		if w, step.Hit = u.store.Cached(key); step.Hit {
			return w, nil
		}
	}
	w, step.Network, err = do(key)
	return w, err
}

// finish gives the target's files their config and the world its name.
func (u *build) finish(ctx context.Context, at *built) (Result, error) {
	res := Result{Steps: u.steps, Network: u.network, Hit: true}
	for _, s := range u.steps {
		res.Hit = res.Hit && s.Hit
	}
	config := u.recipe.Config.Override(at.config)
	sealed := overlay.Sealed{Config: config, Recipe: u.recipeName()}
	key, err := u.key(at.world, "config", map[string]any{"config": config, "recipe": sealed.Recipe})
	if err != nil {
		return res, err
	}
	w, ok := u.store.Cached(key)
	if u.recipe.Cache != "" && u.recipe.Cache != "auto" || !ok {
		sealed.Key = key
		if u.recipe.Cache == "off" {
			sealed.Key = ""
		}
		if w, err = u.store.Configure(ctx, at.world.ID, sealed); err != nil {
			return res, err
		}
		res.Hit = res.Hit && ok && u.recipe.Cache == ""
	}
	res.World, err = u.Builder.steps.KeepWorld(ctx, u.owner, w.ID, u.recipe.Name)
	return res, err
}

// recipeName says to people how the world was made; a network that its commands had is said.
func (u *build) recipeName() string {
	if !u.network {
		return "dockerfile"
	}
	return "dockerfile, network " + strings.Join(u.allow(), " ")
}
