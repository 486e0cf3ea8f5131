package demo

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/timing"
)

// Names of what the demo makes in the store.
const (
	runName   = "demo"
	rerunName = "demo-again"
	baseName  = "demo-base"
)

// Shape of the batch: 64 episodes in groups of 8.
const (
	Episodes  = 64
	groupSize = 8
	maxTurns  = 12
	retries   = 3
)

// Config says where the loop runs.
type Config struct {
	// Client reaches the daemon.
	Client *api.Client
	// Dir is where the loop keeps its folders and its journal.
	Dir string
	// Agent is the command line of the host agent.
	Agent []string
	// Seed makes the folders.
	Seed uint32
	// Resume goes on with the batch that a killed daemon or loop left.
	Resume bool
	// Out gets the report; Progress, which may be nil, is told about each result.
	Out      io.Writer
	Progress func(done, total int)
}

// Summary is what came of it.
type Summary struct {
	Episodes, Scored, Retried int
}

//go:embed graders/*.sh
var graderFiles embed.FS

// loop is one run of the demo.
type loop struct {
	Config
	folders []Folder
	worlds  map[string]string // folder's name -> world id
	graders map[string]string // script's name -> digest
	took    phases
}

// phases are how long things took, by name.
type phases map[string]timing.Sample

func (p phases) add(name string, d time.Duration) { p[name] = append(p[name], d) }

// Run runs the loop. An error says everything that did not come out as it must.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	l := &loop{Config: cfg, folders: Folders(cfg.Seed), worlds: map[string]string{}, graders: map[string]string{}, took: phases{}}
	began := time.Now()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{{"build worlds", l.buildWorlds}, {"put graders", l.putGraders}} {
		if err := step.do(ctx); err != nil {
			return Summary{}, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	batch, err := l.runBatch(ctx)
	if err != nil {
		return Summary{}, fmt.Errorf("run the batch: %w", err)
	}
	ran := time.Since(began)
	seen, err := l.inspect(ctx)
	if err != nil {
		return Summary{}, fmt.Errorf("read the records: %w", err)
	}
	var faults []error
	for _, s := range seen {
		faults = append(faults, s.check())
		l.took.measure(s)
	}
	l.report(seen, ran)
	faults = append(faults, l.rescore(ctx, batch, seen), l.again(ctx, seen))
	sum := Summary{Episodes: len(seen)}
	for _, e := range seen {
		if e.reward != nil {
			sum.Scored++
		}
		if len(e.attempts) > 1 {
			sum.Retried++
		}
	}
	return sum, errors.Join(faults...)
}

// buildWorlds makes the three worlds: a folder of documents each on a base of busybox.
func (l *loop) buildWorlds(ctx context.Context) error {
	base, err := l.Client.BuildWorld(ctx, api.Recipe{Busybox: true, Name: baseName}, nil)
	if err != nil {
		return err
	}
	for _, f := range l.folders {
		dir := filepath.Join(l.Dir, "folders", f.Name)
		if err := f.Write(dir); err != nil {
			return err
		}
		built, err := l.Client.BuildWorld(ctx, api.Recipe{
			Base: base.World.ID, Dir: dir, Name: "demo-" + f.Name,
			Config: api.WorldConfig{WorkingDir: "/workdir"},
		}, nil)
		if err != nil {
			return err
		}
		l.worlds[f.Name] = built.World.ID
		how := fmt.Sprintf("built in %.0f ms", built.TookS*1000)
		if built.Hit {
			how = "was built before"
		}
		fmt.Fprintf(l.Out, "world %-8s %.19s  %d documents, %s\n", f.Name, built.World.ID, len(f.Documents), how)
	}
	return nil
}

// putGraders keeps the two graders: the first for the reward, the second for scoring
// everything again.
func (l *loop) putGraders(ctx context.Context) error {
	for _, name := range []string{"turns", "tidy"} {
		script, err := graderFiles.ReadFile("graders/" + name + ".sh")
		if err != nil {
			return err
		}
		ref, err := l.Client.PutGrader(ctx, api.GraderSpec{
			Files:   map[string]api.GraderFile{"grade.sh": {Bytes: script}},
			Command: []string{"/bin/sh", "/grader/grade.sh"},
		})
		if err != nil {
			return err
		}
		l.graders[name] = ref
	}
	return nil
}

// folderOf is the task of episode i: groups take turns over the folders.
func (l *loop) folderOf(i int) Folder { return l.folders[i/groupSize%len(l.folders)] }

func groupOf(i int) string { return fmt.Sprintf("g%02d", i/groupSize) }

func episodeID(i int) string { return fmt.Sprintf("%s/s%d", groupOf(i), i%groupSize) }

// folderOfID finds the task of an episode.
func (l *loop) folderOfID(id string) (Folder, error) {
	for i := range Episodes {
		if episodeID(i) == id {
			return l.folderOf(i), nil
		}
	}
	return Folder{}, fmt.Errorf("episode %q is none of the batch's", id)
}
