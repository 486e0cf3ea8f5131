package runner_test

import (
	"fmt"
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

// branch forks an episode into others.
func (b *bench) branch(key runner.Key, ids ...string) runner.Branch {
	b.t.Helper()
	made, err := b.Branch(b.t.Context(), key, runner.BranchSpec{IDs: ids})
	if err != nil {
		b.t.Fatalf("Branch: %v", err)
	}
	if len(made.Episodes) != len(ids) {
		b.t.Fatalf("Branch made %d episodes, want %d", len(made.Episodes), len(ids))
	}
	return made
}

func (b *bench) says(key runner.Key, script, want string) {
	b.t.Helper()
	if got := string(b.sh(key, script).Stdout.Head); got != want {
		b.t.Errorf("%s: %q says %q, want %q", key.ID, script, got, want)
	}
}

func TestBranchGoesOnFromTheFiles(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	parent := b.live("parent")
	b.sh(parent, "echo before > note; rm test.sh; mkdir -p deep/er; echo x > deep/er/f; ln -s note link; (sleep 1000 &)")
	made := b.branch(parent, "parent/1", "parent/2")
	b.sh(parent, "echo after > note; echo more > parent-only")
	one, two := b.key("parent/1"), b.key("parent/2")
	b.says(one, "cat note link deep/er/f; ls test.sh parent-only 2>/dev/null; ls", "before\nbefore\nx\nanswer.sh\ndeep\nlink\nnote\n")
	b.sh(one, "echo one > note")
	b.says(two, "cat note", "before\n")
	b.says(parent, "cat note; pidof sleep >/dev/null && echo alive", "after\nalive\n")
	ep := made.Episodes[1].Episode
	if of := ep.Plan.Spec.BranchOf; of == nil || of.ID != "parent" || of.Attempt != 1 || of.Calls != 1 {
		t.Errorf("branch of %+v, want call 1 of attempt 1 of parent", of)
	}
	if first, err := b.Get(t.Context(), parent); err != nil || first.Plan.EnvSeed != ep.Plan.EnvSeed || first.Plan.SampleSeed == ep.Plan.SampleSeed {
		t.Errorf("seeds %d %d, the parent's %d %d (%v); want the environment's alone to be equal",
			ep.Plan.EnvSeed, ep.Plan.SampleSeed, first.Plan.EnvSeed, first.Plan.SampleSeed, err)
	}
}

// X-F06: an agent's set-id bits go into its capture, and into no world.
func TestABranchHasNoSetIDPrograms(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	parent := b.live("parent")
	b.sh(parent, "echo x > f; chmod 6755 f; mkdir d; chmod 3777 d")
	b.branch(parent, "parent/1")
	b.says(b.key("parent/1"), "stat -c %a f d", "755\n3777\n")
	b.says(parent, "stat -c %a f d", "6755\n3777\n")
}

func TestBranchIsScoredAndBranchedLikeAnyEpisode(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("root", func(s *runner.EpisodeSpec) { s.Graders = b.hiddenGrader() })
	b.sh(key, "echo 'echo 41' > answer.sh")
	b.branch(key, "root/mend")
	mend := b.key("root/mend")
	b.sh(mend, "echo 'echo 42' > answer.sh")
	b.branch(mend, "root/mend/spoil")
	spoil := b.key("root/mend/spoil")
	b.sh(spoil, "echo 'echo 43' > answer.sh")
	for _, c := range []struct {
		key  runner.Key
		want float64
	}{{key, 0}, {mend, 1}, {spoil, 0}} {
		ep := b.finish(c.key)
		if ep.Reward == nil || *ep.Reward != c.want {
			t.Errorf("%s: reward %v, want %v", c.key.ID, ep.Reward, c.want)
		}
		// What a branch changed is told against where it began.
		if got := ep.Last().Capture; got == nil || got.Changes != 1 {
			t.Errorf("%s: capture %+v, want one change", c.key.ID, got)
		}
	}
}

func TestBranchOfNothingChangedStandsOnTheSameLayers(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("idle")
	made := b.branch(key, "idle/1")
	if made.World != b.world {
		t.Errorf("the branch stands on %s, want the world %s itself", made.World, b.world)
	}
}

func TestBranchRefuses(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("parent")
	many := make([]string, runner.MaxBranches+1)
	for _, c := range []struct {
		name string
		key  runner.Key
		ids  []string
		kind string
	}{
		{"no ids", key, nil, runner.KindBadRequest},
		{"too many", key, many, runner.KindBadRequest},
		{"twice", key, []string{"a", "a"}, runner.KindBadRequest},
		{"out of form", key, []string{"a//b"}, runner.KindBadRequest},
		{"unknown episode", b.key("nobody"), []string{"a"}, runner.KindNotFound},
		{"its own id", key, []string{"parent"}, runner.KindSpecConflict},
	} {
		if c.name == "its own id" {
			b.sh(key, "echo changed > f") // the same spec would be the same episode
		}
		if _, err := b.Branch(t.Context(), c.key, runner.BranchSpec{IDs: c.ids}); runner.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %s", c.name, err, c.kind)
		}
	}
	b.finish(key)
	if _, err := b.Branch(t.Context(), key, runner.BranchSpec{IDs: []string{"late"}}); runner.KindOf(err) != runner.KindEpisodeEnded {
		t.Errorf("after the end: %v, want episode_ended", err)
	}
}

func TestALongChainOfBranchesKeepsFewLayersAndAllFiles(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	const steps = overlay.MaxChain + 2
	at := b.live("n0")
	for n := range steps {
		b.sh(at, fmt.Sprintf("echo %d > own-%[1]d; echo %[1]d > all; rm -f answer.sh", n))
		next := fmt.Sprintf("n%d", n+1)
		made := b.branch(at, next)
		if w := made.Episodes[0].Episode.Plan.World; n == steps-1 {
			world, err := b.World(t.Context(), root, w)
			if err != nil || len(world.Layers) > overlay.MaxChain {
				t.Errorf("after %d branches the world has %d layers (%v)", steps, len(world.Layers), err)
			}
		}
		if err := b.Delete(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		at = b.key(next)
	}
	b.says(at, "ls own-* | wc -l; cat all; ls answer.sh 2>/dev/null; ls test.sh", fmt.Sprintf("%d\n%d\ntest.sh\n", steps, steps-1))
}
