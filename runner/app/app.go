// Package app serves programs of worlds to many clients: an app is a world, a command and a
// port, with as many replicas as it is asked for or its load needs. Every replica is an
// episode of the runner's, so its isolation, limits and network are those of any other.
//
//	Deploy -> App: journalled; a control loop brings what there is to what is wanted
//	          replica: starting -> ready -> draining -> stopped
//	                      |          |
//	                      +----------+-> failed: another is started, ever more patiently
//	Proxy  -> one request to a ready replica, that of its session where it has one
//	Update -> replicas of the new revision one after another; of the old each is drained
//	          once enough of the new are ready
//
// A session belongs to one replica. When that is gone, the session is lost: its requests are
// refused as session_lost, and never go to another replica that knows nothing of it.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/runner"
)

// Bounds of one owner and of one app.
const (
	maxApps     = 256
	MaxReplicas = 64
	// MaxSessions bounds the sessions of one app, those that are lost and still remembered
	// included.
	MaxSessions = 65536
)

// runName is the run of the replicas' episodes.
const runName = "apps"

// collection holds the journal: a document for each app, by owner and name.
const collection = "apps"

// Journal keeps documents; runner.Record is one.
type Journal interface {
	PutDocument(ctx context.Context, collection, key string, doc json.RawMessage, d runner.Durability) error
	Documents(ctx context.Context, collection, prefix, after string, max int) ([]runner.Document, error)
	DeleteDocuments(ctx context.Context, collection, prefix string) error
}

// Key names an app.
type Key struct{ Owner, Name string }

func (k Key) document() string { return k.Owner + "/" + k.Name + "/" }

// App is one app as it is now.
type App struct {
	Name string
	// Spec has the defaults filled in; Spec.World is the world's id.
	Spec             Spec
	Revision         int64
	Created, Updated time.Time
	// State is "idle", "starting", "running", "updating" or "failing".
	State    string
	Wanted   int
	Replicas []Replica
	Sessions int
	InFlight int
	// Restarts counts the replicas that failed since the daemon started, Failure says why the
	// last one did.
	Restarts  int64
	Failure   string
	FailureAt time.Time
}

// Replica is one of an app's programs.
type Replica struct {
	ID       string
	Revision int64
	State    State
	// Episode is its id in the run "apps".
	Episode  string
	Since    time.Time
	Sessions int
	InFlight int
}

// Service serves apps. Its methods may be called from any goroutine.
type Service struct {
	run     *runner.Runner
	journal Journal
	dir     string
	log     *slog.Logger
	ctx     context.Context //nolint:containedctx // bounds the control loops, which the Service owns; Close cancels it
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup

	// changing is held while an app is made, changed or removed.
	changing sync.Mutex

	mu     sync.Mutex
	closed bool
	apps   map[Key]*app
	runs   map[string]bool // owners whose run is open
}

// Open returns a Service that keeps logs below dir and goes on with the apps of the journal.
func Open(ctx context.Context, run *runner.Runner, journal Journal, dir string, log *slog.Logger) (*Service, error) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &Service{run: run, journal: journal, dir: dir, log: log, ctx: own, cancel: cancel, apps: map[Key]*app{}, runs: map[string]bool{}}
	if err := s.load(ctx); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// record is an app's document.
type record struct {
	Spec     Spec      `json:"spec"`
	Revision int64     `json:"revision"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
}

func (s *Service) load(ctx context.Context) error {
	for after := ""; ; {
		docs, err := s.journal.Documents(ctx, collection, "", after, maxApps)
		if err != nil {
			return fmt.Errorf("read the journal of apps: %w", err)
		}
		for _, d := range docs {
			after = d.Key
			owner, name, ok := strings.Cut(strings.TrimSuffix(d.Key, "/"), "/")
			var rec record
			if err := json.Unmarshal(d.Doc, &rec); err != nil || !ok {
				return fmt.Errorf("the journal of apps: document %q: %w", d.Key, errors.Join(err))
			}
			if err := s.begin(ctx, Key{owner, name}, rec); err != nil {
				return err
			}
		}
		if len(docs) < maxApps {
			return nil
		}
	}
}

// begin sets an app going.
func (s *Service) begin(ctx context.Context, key Key, rec record) error {
	if err := s.openRun(ctx, key.Owner); err != nil {
		return err
	}
	logs, err := openLog(s.logDir(key))
	if err != nil {
		return fmt.Errorf("logs of app %s: %w", key.Name, err)
	}
	a := newApp(s, key, rec, logs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(errDraining(), logs.close())
	}
	s.apps[key] = a
	s.wg.Go(a.control)
	return nil
}

func (s *Service) openRun(ctx context.Context, owner string) error {
	s.mu.Lock()
	open := s.runs[owner]
	s.mu.Unlock()
	if open {
		return nil
	}
	if _, err := s.run.OpenRun(ctx, owner, runner.RunSpec{Name: runName, Resume: "auto"}); err != nil {
		return fmt.Errorf("open the run of apps: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[owner] = true
	return nil
}

// Deploy makes an app. One of that name and the same spec is the answer; one with another
// spec is spec_conflict.
func (s *Service) Deploy(ctx context.Context, owner, name string, spec Spec) (App, error) {
	return s.put(ctx, Key{owner, name}, spec, false)
}

// Update makes an app that is there one of another spec: its replicas are replaced one after
// another, and requests go on being served. What was only scaled is not replaced.
func (s *Service) Update(ctx context.Context, owner, name string, spec Spec) (App, error) {
	return s.put(ctx, Key{owner, name}, spec, true)
}

func (s *Service) put(ctx context.Context, key Key, spec Spec, update bool) (App, error) {
	if err := s.resolve(ctx, key, &spec); err != nil {
		return App{}, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	a, err := s.get(key)
	switch {
	case err != nil && update:
		return App{}, err
	case err != nil:
		return s.create(ctx, key, spec)
	}
	rec := a.recorded()
	if !update {
		if !rec.Spec.same(&spec) || rec.Spec.Scale != spec.Scale {
			return App{}, &runner.Error{
				Kind: runner.KindSpecConflict, Field: "name",
				Detail: fmt.Sprintf("app %q is there with another spec; update it, or take another name", key.Name),
			}
		}
		return a.view(), nil
	}
	if !rec.Spec.same(&spec) {
		rec.Revision++
	}
	rec.Spec, rec.Updated = spec, time.Now().UTC()
	return a.change(ctx, rec)
}

// resolve checks a spec, fills in what it leaves out, and makes its world an id.
func (s *Service) resolve(ctx context.Context, key Key, spec *Spec) error {
	if !appName.MatchString(key.Name) {
		return bad("name", "%q is not %s", key.Name, appName)
	}
	if err := spec.complete(); err != nil {
		return err
	}
	w, err := s.run.World(ctx, key.Owner, spec.World)
	if err != nil {
		return err
	}
	spec.World = w.ID
	if len(spec.Command) == 0 {
		spec.Command = slices.Concat(w.Config.Entrypoint, w.Config.Cmd)
	}
	if len(spec.Command) == 0 {
		return bad("command", "is missing, and the world has no entrypoint or command of its own")
	}
	if err := s.openRun(ctx, key.Owner); err != nil {
		return err
	}
	check := spec.episode("check")
	check.Prepare = &runner.ProgramSpec{Argv: spec.Command, Env: spec.Env, User: spec.User, Cwd: spec.Cwd}
	err = s.run.CheckSpec(ctx, key.Owner, check)
	if e, ok := errors.AsType[*runner.Error](err); ok {
		e.Field = strings.Replace(strings.TrimPrefix(e.Field, "prepare/"), "argv", "command", 1)
	}
	return err
}

func (s *Service) create(ctx context.Context, key Key, spec Spec) (App, error) {
	s.mu.Lock()
	n := 0
	for k := range s.apps {
		if k.Owner == key.Owner {
			n++
		}
	}
	s.mu.Unlock()
	if n >= maxApps {
		return App{}, &runner.Error{Kind: runner.KindTooLarge, Detail: fmt.Sprintf("one user has at most %d apps", maxApps)}
	}
	now := time.Now().UTC()
	rec := record{Spec: spec, Revision: 1, Created: now, Updated: now}
	if err := s.save(ctx, key, rec); err != nil {
		return App{}, err
	}
	if err := s.begin(ctx, key, rec); err != nil {
		return App{}, errors.Join(err, s.journal.DeleteDocuments(context.WithoutCancel(ctx), collection, key.document()))
	}
	return s.Get(key.Owner, key.Name)
}

func (s *Service) save(ctx context.Context, key Key, rec record) error {
	doc, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := s.journal.PutDocument(ctx, collection, key.document(), doc, runner.Synced); err != nil {
		return fmt.Errorf("journal app %s: %w", key.Name, err)
	}
	return nil
}

// Scale says how many replicas there are to be from now on.
func (s *Service) Scale(ctx context.Context, owner, name string, scale Scale) (App, error) {
	if err := scale.complete(); err != nil {
		return App{}, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	a, err := s.get(Key{owner, name})
	if err != nil {
		return App{}, err
	}
	rec := a.recorded()
	rec.Spec.Scale, rec.Updated = scale, time.Now().UTC()
	return a.change(ctx, rec)
}

// Remove stops an app at once and forgets it, its logs and its replicas' episodes.
func (s *Service) Remove(ctx context.Context, owner, name string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	key := Key{owner, name}
	a, err := s.get(key)
	if err != nil {
		return err
	}
	if err := s.journal.DeleteDocuments(ctx, collection, key.document()); err != nil {
		return fmt.Errorf("journal the end of app %s: %w", name, err)
	}
	s.mu.Lock()
	delete(s.apps, key)
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	a.end(errRemoved)
	return errors.Join(s.forgetEpisodes(ctx, key, 0), a.logs.close(), os.RemoveAll(s.logDir(key)))
}

var (
	errRemoved = errors.New("the app was removed")
	errClosed  = errors.New("the daemon is shutting down")
)

func errDraining() error {
	return &runner.Error{Kind: runner.KindDraining, Detail: errClosed.Error(), RetryAfter: 10 * time.Second}
}

// Has says whether an owner has an app of that name.
func (s *Service) Has(owner, name string) bool {
	_, err := s.get(Key{owner, name})
	return err == nil
}

// Get is an app as it is now.
func (s *Service) Get(owner, name string) (App, error) {
	a, err := s.get(Key{owner, name})
	if err != nil {
		return App{}, err
	}
	return a.view(), nil
}

// List are an owner's apps by name.
func (s *Service) List(owner string) []App {
	s.mu.Lock()
	var mine []*app
	for key, a := range s.apps {
		if key.Owner == owner {
			mine = append(mine, a)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(mine, func(a, b *app) int { return strings.Compare(a.key.Name, b.key.Name) })
	all := make([]App, len(mine))
	for i, a := range mine {
		all[i] = a.view()
	}
	return all
}

func (s *Service) get(key Key) (*app, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.apps[key]; a != nil {
		return a, nil
	}
	return nil, &runner.Error{Kind: runner.KindUnknownApp, Field: "app", Detail: fmt.Sprintf("there is no app %q", key.Name)}
}

// Close stops every app; the journal keeps them for the next daemon.
func (s *Service) Close(context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*app
	for _, a := range s.apps {
		all = append(all, a)
	}
	s.mu.Unlock()
	var ends sync.WaitGroup
	for _, a := range all {
		ends.Go(func() { a.end(errClosed) })
	}
	ends.Wait()
	s.cancel(errClosed)
	s.wg.Wait()
	var errs []error
	for _, a := range all {
		errs = append(errs, a.logs.close())
	}
	return errors.Join(errs...)
}

func (s *Service) logDir(key Key) string {
	return filepath.Join(s.dir, uuid.NewSHA1(uuid.Nil, []byte(key.document())).String())
}

// keptEpisodes is how many replicas that ended keep their episode, for who looks for the cause.
const keptEpisodes = 4

// forgetEpisodes deletes the episodes of an app's replicas that ended, but for the latest.
func (s *Service) forgetEpisodes(ctx context.Context, key Key, keep int) error {
	eps, _, err := s.run.List(ctx, key.Owner, runName, key.Name, "", 0)
	if err != nil {
		return err
	}
	eps = slices.DeleteFunc(eps, func(e runner.Episode) bool { return e.Last().End == nil })
	slices.SortFunc(eps, func(a, b runner.Episode) int { return b.Last().Created.Compare(a.Last().Created) })
	var errs []error
	for _, e := range eps[min(keep, len(eps)):] {
		if err := s.run.Delete(ctx, e.Key); err != nil && runner.KindOf(err) != runner.KindNotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
