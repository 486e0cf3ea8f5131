package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
)

// trainer is a client that plays what a queue asks of it, as a driver would.
type trainer struct {
	t      *testing.T
	client *api.Client
	reward func(id string) string
	// killed is closed once the daemon was killed; until then what late says is not played.
	killed chan struct{}
	late   func(id string) bool

	mu     sync.Mutex
	played map[string]int // attempts that were played to their end, by id
	plays  sync.WaitGroup
}

// work reads the queue's work until it is cut off.
func (tr *trainer) work(ctx context.Context, queue string) error {
	defer tr.plays.Wait()
	return tr.client.Work(ctx, queue, "", 0, func(w api.Work) error {
		tr.plays.Go(func() { tr.play(ctx, w) })
		return nil
	})
}

// play makes one attempt. What ends it from outside is no failure of the test: the daemon
// asks again.
func (tr *trainer) play(ctx context.Context, w api.Work) {
	if tr.late(w.ID) {
		<-tr.killed
	}
	key := api.Key{Run: w.Episode.Run, ID: w.ID}
	script := fmt.Sprintf(`echo '{"reward": %s}' > /tmp/reward`, tr.reward(w.ID))
	if _, err := tr.client.Call(ctx, key, api.CallSpec{Tool: "exec", Attempt: w.Attempt, Argv: []string{"sh", "-c", script}}); err != nil {
		return
	}
	if _, err := tr.client.Finish(ctx, key, api.FinishSpec{Attempt: w.Attempt, Payload: []byte("tokens of " + w.ID)}); err != nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.played[w.ID]++
}

func queueLine(id, group, grader string) api.BatchEpisode {
	return api.BatchEpisode{
		EpisodeSpec: api.EpisodeSpec{
			ID: id, Group: group, World: "busybox", Weights: "v1", Retries: 1, Graders: []api.WeightedGrader{{Grader: grader}},
			Limits: api.Limits{Memory: 64 << 20, Disk: 16 << 20},
		},
		Agent: api.AgentSpec{Client: true},
	}
}

// A queue whose daemon is killed in the midst of it ends as one whose daemon lived: the
// same groups, the kept payloads, and nothing that had a reward is played again.
func TestQueueGoesOnAfterTheDaemonWasKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t, "--inject-faults", "0.2:3")
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	c := api.NewClient(h.socket)
	grader := rewardGrader(t, c)
	h.must(t, "batch", "open", "--id", "q", "--run", "r", "--on-void", "refill:2", "--min-valid", "3")
	const groups, size = 4, 4
	var lines []api.BatchEpisode
	for i := range groups * size {
		group := fmt.Sprintf("it1/t%d", i/size)
		lines = append(lines, queueLine(fmt.Sprintf("%s/s%d", group, i%size), group, grader))
	}
	if a, err := c.AddToBatch(t.Context(), "q", lines...); err != nil || a.Added != len(lines) {
		t.Fatalf("AddToBatch() = %+v, %v", a, err)
	}
	tr := &trainer{t: t, client: c, played: map[string]int{}, killed: make(chan struct{}), late: func(id string) bool {
		return id > "it1/t2" // two groups are there when the daemon dies, two are not
	}, reward: func(id string) string { return "0." + id[len(id)-1:] }}
	work, stop := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() { worked <- tr.work(work, "q") }()
	seen := map[string]api.GroupResult{}
	var cursor int64
	read := func(g api.GroupResult) error {
		seen[g.Group.Group], cursor = g, g.Seq
		if len(seen) == 2 && cursor == 2 {
			d.kill()
			close(tr.killed)
		}
		if len(seen) == groups {
			return errors.New("all are there")
		}
		return nil
	}
	if err := c.GroupResults(t.Context(), "q", 0, true, read); err == nil {
		t.Error("following the groups of a killed daemon ended well")
	}
	if err := <-worked; err == nil {
		t.Error("reading the work of a killed daemon ended well")
	}
	stop()

	h.serve(t)
	if a, err := c.AddToBatch(t.Context(), "q", lines...); err != nil || a.Known != len(lines) || a.Batch.State != "interrupted" {
		t.Errorf("the same lines again: %+v, %v; want all known", a, err)
	}
	h.must(t, "batch", "resume", "q", "-d")
	go func() { worked <- tr.work(t.Context(), "q") }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := c.GroupResults(ctx, "q", cursor, true, read); ctx.Err() != nil {
		t.Fatalf("the groups did not come: %v, %d of %d", err, len(seen), groups)
	}
	h.must(t, "batch", "seal", "q")
	if err := <-worked; err != nil {
		t.Errorf("reading work to the end of the queue: %v", err)
	}
	for name, g := range seen {
		if g.Valid != size || g.IsVoid || math.Abs(*g.Mean-0.15) > 1e-9 {
			t.Errorf("%s: %+v, want 4 valid with mean 0.15", name, g.Group)
		}
		for i, r := range g.Results {
			var payload bytes.Buffer
			err := c.Payload(t.Context(), api.Key{Run: "r", ID: r.ID}, r.Attempt, &payload)
			if err != nil || payload.String() != "tokens of "+r.ID || *r.Reward != *g.Rewards[i] {
				t.Errorf("%s: payload %q, reward %v, %v", r.ID, &payload, *r.Reward, err)
			}
		}
	}
	for id, n := range tr.played {
		if n != 1 {
			t.Errorf("%s was played to its end %d times, want once", id, n)
		}
	}
	h.noStrays(t)
}

func TestQueueOnTheCommandLine(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	manifest := filepath.Join(filepath.Dir(h.socket), "m.jsonl")
	line := func(id, weights, agent string) string {
		return fmt.Sprintf(`{"id":%q,"group":%q,"world":"busybox","weights":%q,"agent":%s}`+"\n", id, id[:1], weights, agent)
	}
	const works = `{"command":{"tool":"exec","argv":["true"]}}`
	text := line("a/0", "", works) + line("b/0", "v1", `{"client":true}`) + line("c/0", "v2", `{"client":true}`)
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"q\n", []string{"batch", "open", "--id", "q", "--run", "r"}},
		{"3 added, 0 known", []string{"batch", "add", "q", manifest}},
		{"0 added, 3 known", []string{"batch", "add", "q", manifest}},
		{"1 cancelled", []string{"batch", "cancel", "q", "--weights-before", "v2"}},
		{"1 cancelled", []string{"batch", "cancel", "q", "--prefix", "c", "--reason", "enough"}},
		{"running, open", []string{"batch", "show", "q"}},
		{"batch q", []string{"batch", "seal", "q"}},
		{"c  0 of 1 valid  mean -  std -  void", []string{"batch", "groups", "q", "-f"}},
		{`"reason":"enough"`, []string{"batch", "groups", "q", "--json"}},
		{"", []string{"batch", "work", "q"}},
	} {
		if out := h.must(t, c.args...); !strings.Contains(out, c.want) {
			t.Errorf("%v: %q, want %q in it", c.args, out, c.want)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"no such file", []string{"batch", "add", "q", manifest + ".none"}},
		{"no line of batch", []string{"batch", "cancel", "q", "--group", "nope"}},
		{"give one of", []string{"batch", "cancel", "q", "--group", "a", "--prefix", "b"}},
		{"refill:K", []string{"batch", "open", "--on-void", "refill:none"}},
		{"no batch", []string{"batch", "seal", "none"}},
	} {
		if code, out, errs := h.paddock(t, nil, c.args...); code == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit code %d, %q, %q; want %q in it", c.args, code, out, errs, c.want)
		}
	}
}

// With a share of the attempts failed on purpose, each group's mean and deviation are those
// of its surviving members alone, and a void member is null and the platform's.
func TestGroupsOfAFaultyBatchAreThoseOfTheSurvivors(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t, "--inject-faults", "0.1:11")
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	c := api.NewClient(h.socket)
	grader := rewardGrader(t, c)
	const groups, size = 6, 8
	reward := func(n int) float64 { return float64(n*7%11) / 10 }
	if _, err := c.CreateBatch(t.Context(), api.BatchSpec{ID: "b", Run: "r", Open: true}); err != nil {
		t.Fatal(err)
	}
	var lines []api.BatchEpisode
	for n := range groups * size {
		line := queueLine(fmt.Sprintf("g%d/s%d", n/size, n%size), fmt.Sprintf("g%d", n/size), grader)
		script := fmt.Sprintf(`echo '{"reward": %g}' > /tmp/reward`, reward(n))
		line.Retries, line.Agent = 0, api.AgentSpec{Calls: []api.CallSpec{{Tool: "exec", Argv: []string{"sh", "-c", script}}}}
		lines = append(lines, line)
	}
	if _, err := c.AddToBatch(t.Context(), "b", lines...); err != nil {
		t.Fatal(err)
	}
	lost, seen := 0, 0
	all := errors.New("all are there")
	err := c.GroupResults(t.Context(), "b", 0, true, func(g api.GroupResult) error {
		lost += survivors(t, g, func(id string) float64 {
			var i, j int
			if _, err := fmt.Sscanf(id, "g%d/s%d", &i, &j); err != nil {
				t.Error(err)
			}
			return reward(i*size + j)
		})
		if seen++; seen == groups {
			return all
		}
		return nil
	})
	if !errors.Is(err, all) || lost == 0 || lost > groups*size/2 {
		t.Errorf("%d of %d groups, %d members lost, %v; want some lost", seen, groups, lost, err)
	}
	// A daemon that is stopped does not wait for who follows or works for an open queue.
	followed := make(chan error, 2)
	go func() { followed <- c.GroupResults(t.Context(), "b", groups, true, nil) }()
	go func() { followed <- c.Work(t.Context(), "b", "", 0, nil) }()
	for clients := 0; clients == 0; {
		b, err := c.Batch(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		clients = b.Clients
	}
	d.stop(t)
	for range 2 {
		<-followed // either way: the batch no longer runs, or the daemon is gone
	}
	h.serve(t)
	if b, err := c.Batch(t.Context(), "b"); err != nil || b.State != "interrupted" || b.Sealed || b.GroupSeq != groups {
		t.Errorf("after the stop: %+v, %v; want it interrupted and open", b, err)
	}
}

// survivors checks a group against its valid members, taken alone, and counts the others.
func survivors(t *testing.T, g api.GroupResult, reward func(id string) float64) (lost int) {
	t.Helper()
	var sum, square, n float64
	for i, r := range g.Results {
		if r.Reward == nil {
			if lost++; r.Cause != "platform" || g.Rewards[i] != nil {
				t.Errorf("%s is void by the %s, reward %v", r.ID, r.Cause, g.Rewards[i])
			}
			continue
		}
		if *r.Reward != reward(r.ID) || *g.Rewards[i] != *r.Reward || g.IDs[i] != r.ID {
			t.Errorf("%s has reward %v, want %v", r.ID, *r.Reward, reward(r.ID))
		}
		sum += *r.Reward
		n++
	}
	mean := sum / n
	for _, r := range g.Results {
		if r.Reward != nil {
			square += (*r.Reward - mean) * (*r.Reward - mean)
		}
	}
	if std := math.Sqrt(square / n); *g.Mean != mean || *g.Std != std || g.Valid != int(n) || g.Void != lost {
		t.Errorf("%s: mean %v, std %v of %d; want %v, %v of %v", g.Group.Group, *g.Mean, *g.Std, g.Valid, mean, std, n)
	}
	return lost
}

// rewardGrader gives the reward that the agent wrote down: never a good grader.
func rewardGrader(t *testing.T, c *api.Client) string {
	t.Helper()
	grader, err := c.PutGrader(t.Context(), api.GraderSpec{
		Files:   map[string]api.GraderFile{"g.sh": {Bytes: []byte(`cat /tmp/reward >&"$PADDOCK_VERDICT_FD"`), Mode: 0o755}},
		Command: []string{"sh", "/grader/g.sh"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return grader
}
