package runner_test

import (
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
