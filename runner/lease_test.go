package runner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-run/paddock/runner"
)

func TestConnectionLeaseEndsAfterItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		conn, release := b.OpenLease(owner)
		key := b.live("held", func(s *runner.EpisodeSpec) {
			s.Lease = runner.LeaseSpec{Kind: "connection", Conn: conn}
		})
		other := b.live("honest", func(s *runner.EpisodeSpec) { s.Lease.Kind = "daemon" })
		time.Sleep(24 * time.Hour)
		release()
		release()
		time.Sleep(runner.LeaseGrace - time.Second)
		b.sh(key, "true")
		time.Sleep(2 * time.Second)
		wantEnd(t, b.ended(key), runner.Expired, runner.Client, "")
		wantEnd(t, last(b.finish(other)), runner.OK, runner.Agent, "")
	})
}

func TestTTLLeaseIsRenewedByCallsAndNeverByLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		key := b.live("e")
		time.Sleep(50 * time.Minute)
		b.sh(key, "true")
		time.Sleep(50 * time.Minute)
		if _, err := b.KeepAlive(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Minute)
		before, err := b.Get(t.Context(), key)
		if err != nil || before.State != runner.Live {
			t.Fatalf("state %s, %v; want live", before.State, err)
		}
		if left := time.Until(before.Lease.Deadline); left != 10*time.Minute {
			t.Errorf("the lease has %v left, want 10 m", left)
		}
		time.Sleep(11 * time.Minute)
		wantEnd(t, b.ended(key), runner.Expired, runner.Client, "")
	})
}

func TestTTLLeaseOutlivesALongCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		key := b.live("e", func(s *runner.EpisodeSpec) { s.Lease.TTLS, s.Budgets.AgentS = 10, 3600 })
		if res := b.call(key, runner.CallSpec{Tool: "exec", Shell: "sleep 60; echo done", TimeoutS: 100}); string(res.Stdout.Head) != "done\n" {
			t.Errorf("call = %+v", res)
		}
		wantEnd(t, last(b.finish(key)), runner.OK, runner.Agent, "")
	})
}

func TestAttachMovesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		conn, release := b.OpenLease(owner)
		b.live("e", func(s *runner.EpisodeSpec) { s.Lease = runner.LeaseSpec{Kind: "connection", Conn: conn} })
		got := b.create(b.spec("e", func(s *runner.EpisodeSpec) { s.Lease.Kind = "daemon" }))
		if !got.Kept || got.Episode.Lease.Kind != "daemon" {
			t.Errorf("kept %v, lease %+v; want the new one", got.Kept, got.Episode.Lease)
		}
		release()
		time.Sleep(2 * runner.LeaseGrace)
		wantEnd(t, last(b.finish(b.key("e"))), runner.OK, runner.Agent, "")
	})
}

func TestAgentClockRunsInsideCallsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		key := b.live("e", func(s *runner.EpisodeSpec) { s.Budgets.AgentS = 10 })
		b.sh(key, "sleep 4")
		time.Sleep(20 * time.Minute)
		b.sh(key, "sleep 4")
		res := b.sh(key, "echo partial; sleep 4")
		if !res.TimedOut || res.Limit == nil || res.Limit.Name != "agent_s" || string(res.Stdout.Head) != "partial\n" {
			t.Errorf("the call over the budget = %+v", res)
		}
		at := b.ended(key)
		wantEnd(t, at, runner.Timeout, runner.Agent, "")
		if at.Clocks.AgentS < 10 || at.Clocks.AgentS > 10.1 || at.Clocks.WallS < 1200 {
			t.Errorf("clocks = %+v, want 10 s of the agent in 20 min", at.Clocks)
		}
	})
}

// asks creates an episode on the side, for as long as its client is there.
func (b *bench) asks(id string, change ...func(*runner.EpisodeSpec)) (leaves func(), got <-chan error) {
	ctx, leave := context.WithCancel(b.t.Context())
	answer := make(chan error, 1)
	go func() {
		_, err := b.Create(ctx, owner, 0, b.spec(id, change...))
		answer <- err
	}()
	synctest.Wait()
	return leave, answer
}

// wantPosition says where an episode must be in the queue; 0 is not in it.
func (b *bench) wantPosition(id string, want int) {
	b.t.Helper()
	ep, err := b.Get(b.t.Context(), b.key(id))
	if err != nil || ep.QueuePosition != want {
		b.t.Errorf("%s is in place %d of the queue, %v; want %d", id, ep.QueuePosition, err, want)
	}
}

func whole(s *runner.EpisodeSpec) { s.Requests.CPUs = 2 }

func TestCreateOfAVanishedClientLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := b.live("first", whole)
		leave, gone := b.asks("gone", whole)
		conn, release := b.OpenLease(owner)
		_, held := b.asks("held", whole, func(s *runner.EpisodeSpec) { s.Lease = runner.LeaseSpec{Kind: "connection", Conn: conn} })
		_, next := b.asks("next", whole)
		leave()
		<-gone
		release()
		time.Sleep(runner.LeaseGrace - time.Second)
		b.wantPosition("gone", 1)
		b.wantPosition("next", 3)
		time.Sleep(2 * time.Second)
		wantEnd(t, b.ended(b.key("gone")), runner.Expired, runner.Client, "")
		wantEnd(t, b.ended(b.key("held")), runner.Expired, runner.Client, "")
		if err := <-held; err != nil {
			t.Errorf("a create that expired: %v, want its outcome", err)
		}
		b.wantPosition("next", 1)
		b.finish(first)
		if err := <-next; err != nil {
			t.Error(err)
		}
		b.finish(b.key("next"))
	})
}

func TestCreateThatIsAskedAgainKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := b.live("first", whole)
		short := func(s *runner.EpisodeSpec) { s.Lease.TTLS = 10 }
		leave, gone := b.asks("e", whole, short)
		leave()
		<-gone
		time.Sleep(9 * time.Second)
		// The client that waits keeps its episode for longer than its lease's time to live.
		_, got := b.asks("e", whole, short)
		time.Sleep(30 * time.Minute)
		b.wantPosition("e", 1)
		b.finish(first)
		if err := <-got; err != nil {
			t.Error(err)
		}
		time.Sleep(9 * time.Second)
		wantEnd(t, last(b.finish(b.key("e"))), runner.OK, runner.Agent, "")
	})
}

// An episode that became ready when nobody waited any more is not held for its whole lease.
func TestEpisodeThatNobodyWasToldOfEndsAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := b.live("first", whole)
		leave, gone := b.asks("e", whole)
		leave()
		<-gone
		b.finish(first)
		synctest.Wait()
		if ep, err := b.Get(t.Context(), b.key("e")); err != nil || ep.State != runner.Live {
			t.Fatalf("state %s, %v; want live", ep.State, err)
		}
		time.Sleep(runner.LeaseGrace + time.Second)
		wantEnd(t, b.ended(b.key("e")), runner.Expired, runner.Client, "")
	})
}
