package daemon

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
)

// adder is a simulator whose observation is the number of steps, sent as a raw frame.
const adder = `
echo '{"protocol":"paddock-simulator/1","observation_space":{"space":{"type":"Box","dtype":"|u1","shape":[1]}},"action_space":{"type":"integer"},"snapshots":true}'
n=0
while read -r line; do
  case $line in
  *'"op":"snapshot"'*) echo '{"snapshot":{"$array":"|u1","shape":[1],"frame":0},"frames":[1]}' ;;
  *'"op":"restore"'*)
    case $line in *BQ==*) n=5 ;; *Ag==*) n=2 ;; esac
    echo '{"observation":{"$array":"|u1","shape":[1],"frame":0},"info":{},"frames":[1]}' ;;
  *'"op":"reset"'*) n=0; echo '{"observation":{"$array":"|u1","shape":[1],"frame":0},"info":{},"frames":[1]}' ;;
  *'"action":13}') exit 3 ;;
  *'"action":14}') sleep 1000 ;;
  *) n=$(((n + 1) % 256)); echo '{"observation":{"$array":"|u1","shape":[1],"frame":0},"reward":0.5,"terminated":false,"truncated":false,"info":{},"frames":[1],"env":99,"op":"make"}' ;;
  esac
  printf "\\$(printf %03o $n)"
done`

// envs is a connection to a simulator's environments.
type envs struct {
	tb   testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func (f *front) openSim(tb testing.TB) api.Simulator {
	tb.Helper()
	ready := 1
	sim, err := f.client.OpenSimulator(tb.Context(), api.SimulatorSpec{
		World: world, Command: []string{"sh", "-c", adder}, StepS: 1, Ready: &ready, CrashReward: -1,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return sim
}

func (f *front) envs(tb testing.TB, sim string) *envs {
	tb.Helper()
	var d net.Dialer
	conn, err := d.DialContext(tb.Context(), "unix", f.socket)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "GET /v1/simulators/%s/envs HTTP/1.1\r\nHost: paddock\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", sim, api.EnvsProtocol)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(resp.Body)
		tb.Fatalf("status %d: %s", resp.StatusCode, text)
	}
	return &envs{tb: tb, conn: conn, r: r}
}

func (e *envs) send(lines ...string) {
	e.tb.Helper()
	if _, err := io.WriteString(e.conn, strings.Join(lines, "\n")+"\n"); err != nil {
		e.tb.Fatal(err)
	}
}

func (e *envs) receive() (reply api.EnvReply, raw string) {
	e.tb.Helper()
	line, err := e.r.ReadBytes('\n')
	if err != nil {
		e.tb.Fatal(err)
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		e.tb.Fatalf("%s: %v", line, err)
	}
	n := 0
	for _, one := range reply.Frames {
		n += int(one)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(e.r, b); err != nil {
		e.tb.Fatal(err)
	}
	return reply, string(b)
}

func (e *envs) ask(line string) (api.EnvReply, string) {
	e.tb.Helper()
	e.send(line)
	return e.receive()
}

func TestEnvironmentsAreSteppedOverOneConnection(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	sim := f.openSim(t)
	if again := f.openSim(t); again.ID != sim.ID || *again.Spec.Ready != 1 || again.Spec.ResetS != 60 {
		t.Errorf("opened again: %+v", again)
	}
	e := f.envs(t, sim.ID)
	const n = 8
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf(`{"env":%d,"op":"make","make":{"id":"e%d"}}`, i, i), fmt.Sprintf(`{"env":%d,"op":"reset","seed":%d}`, i, i))
		for range i {
			lines = append(lines, fmt.Sprintf(`{"env":%d,"op":"step","action":1}`, i))
		}
		lines = append(lines, fmt.Sprintf(`{"env":%d,"op":"close"}`, i))
	}
	e.send(lines...)
	got := map[int][]string{}
	for range lines {
		reply, raw := e.receive()
		switch {
		case reply.Problem != nil || reply.Fault != nil:
			t.Fatalf("%+v %+v %+v", reply, reply.Problem, reply.Fault)
		case reply.Op == "make":
			got[reply.Env] = append(got[reply.Env], reply.Episode.ID)
		case reply.Op == "close":
			got[reply.Env] = append(got[reply.Env], reply.Ended.End.Status)
			if want := float64(reply.Env) / 2; reply.Env > 0 && (reply.Ended.Reward == nil || *reply.Ended.Reward != want) {
				t.Errorf("env %d: reward %v, want %v", reply.Env, reply.Ended.Reward, want)
			}
		default:
			got[reply.Env] = append(got[reply.Env], fmt.Sprintf("%s%d", reply.Op, raw[0]))
		}
	}
	for i := range n {
		want := []string{fmt.Sprintf("e%d", i), "reset0"}
		for k := range i {
			want = append(want, fmt.Sprintf("step%d", k+1))
		}
		want = append(want, "ok")
		if strings.Join(got[i], " ") != strings.Join(want, " ") {
			t.Errorf("env %d: %v, want %v", i, got[i], want)
		}
	}
}

func TestBadEnvRequestsAreRefusedAndNothingIsLost(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	sim := f.openSim(t)
	e := f.envs(t, sim.ID)
	e.ask(`{"env":0,"op":"make","make":{"id":"e"}}`)
	for line, want := range map[string]api.Kind{
		`{"env":0,"op":"jump"}`:                                api.BadRequest,
		`{"env":1,"op":"step"}`:                                api.BadRequest,
		`{"env":-1,"op":"make"}`:                               api.BadRequest,
		`{"env":4096,"op":"make"}`:                             api.BadRequest,
		`{"env":0,"op":"make"}`:                                api.BadRequest,
		`{"env":0,"op":"reset","seed":-1}`:                     api.BadRequest,
		`{"env":0,"op":"reset","options":[1]}`:                 api.BadRequest,
		`{"env":0,"op":"reset","sed":1}`:                       api.BadRequest,
		`hello`:                                                api.BadRequest,
		`{"env":2,"op":"make","make":{"id":"bad id"}}`:         api.BadRequest,
		`{"env":3,"op":"make","make":{"id":"e"}}`:              api.InUse,
		`{"env":4,"op":"make","make":{"run":"none","id":"x"}}`: api.NotFound,
	} {
		if reply, _ := e.ask(line); reply.Problem == nil || reply.Problem.Kind != want || reply.Problem.Detail == "" {
			t.Errorf("%s = %+v, want %s", line, reply.Problem, want)
		}
	}
	if reply, _ := e.ask(`{"env":0,"op":"step","action":1}`); reply.Fault == nil || reply.Fault.Kind != "needs_reset" {
		t.Errorf("a step before the reset = %+v", reply)
	}
	e.ask(`{"env":0,"op":"reset"}`)
	reply, raw := e.ask(`{"env":0,"op":"step","action":1}`)
	if reply.Env != 0 || reply.Op != "step" || raw != "\x01" || *reply.Reward != 0.5 {
		t.Errorf("a step after all that = %+v %q; what the program calls itself is not passed on", reply, raw)
	}
	if reply, _ := e.ask(`{"env":0,"op":"step","action":13}`); reply.Ended == nil || reply.Ended.End.Cause != "agent" || *reply.Ended.Reward != -0.5 || reply.Fault.Kind != "program_ended" {
		t.Errorf("a crash = %+v", reply)
	}
	for path, want := range map[string]api.Kind{"none": api.NotFound, sim.ID: api.BadRequest} {
		headers := []string{"Connection: Upgrade", "Upgrade: websocket"}
		if path == "none" {
			headers[1] = "Upgrade: " + api.EnvsProtocol
		}
		_, body := f.raw(t, "GET", "/v1/simulators/"+path+"/envs", "", "", headers...)
		if !strings.Contains(string(body), `"`+string(want)+`"`) {
			t.Errorf("upgrade of %s: %s, want %s", path, body, want)
		}
	}
}

func TestEnvironmentsEndWithTheirConnection(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	sim := f.openSim(t)
	e := f.envs(t, sim.ID)
	for i := range 3 {
		e.ask(fmt.Sprintf(`{"env":%d,"op":"make","make":{"id":"e%d"}}`, i, i))
		e.ask(fmt.Sprintf(`{"env":%d,"op":"reset"}`, i))
	}
	e.ask(`{"env":1,"op":"step","action":1}`)
	e.send(`{"env":2,"op":"step","action":14}`) // hangs while the connection closes
	if err := e.conn.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		id := fmt.Sprintf("e%d", i)
		deadline := time.Now().Add(30 * time.Second)
		for {
			ep, err := f.client.Episode(t.Context(), api.Key{Run: "default", ID: id})
			if err != nil {
				t.Fatal(err)
			}
			if end := ep.Attempts[0].End; end != nil {
				if end.Status != "expired" || end.Cause != "client" || ep.Reward != nil {
					t.Errorf("%s: %+v, reward %v", id, end, ep.Reward)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s goes on without its client", id)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func TestSnapshotsAreRestoredOverOtherConnections(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	sim := f.openSim(t)
	if sim.Spec.MaxSnapshot != 8<<20 {
		t.Errorf("max_snapshot %v, want the default", sim.Spec.MaxSnapshot)
	}
	e := f.envs(t, sim.ID)
	e.ask(`{"env":0,"op":"make","make":{"id":"e"}}`)
	e.ask(`{"env":0,"op":"reset"}`)
	var taken []api.Snapshot
	for _, steps := range []int{2, 3} {
		for range steps {
			e.ask(`{"env":0,"op":"step","action":1}`)
		}
		reply, _ := e.ask(`{"env":0,"op":"snapshot"}`)
		if reply.Snapshot == nil || reply.Fault != nil || reply.Problem != nil {
			t.Fatalf("snapshot = %+v %+v %+v", reply, reply.Fault, reply.Problem)
		}
		taken = append(taken, *reply.Snapshot)
	}
	if s := taken[1]; s.Episode.ID != "e" || s.Steps != 5 || s.Return != 2.5 || s.Bytes != 1 || s.Rollouts != 1 || s.Seq != 8 {
		t.Errorf("snapshot %+v", s)
	}
	other := f.envs(t, sim.ID)
	other.ask(`{"env":0,"op":"make","make":{"id":"f"}}`)
	for i, n := range []byte{2, 5} {
		reply, raw := other.ask(fmt.Sprintf(`{"env":0,"op":"restore","snapshot":%q}`, taken[i].ID))
		if reply.Op != "restore" || raw != string([]byte{n}) || reply.Terminated == nil || *reply.Terminated || *reply.Truncated || reply.Reward != nil {
			t.Errorf("restore = %+v %q", reply, raw)
		}
		if _, raw := other.ask(`{"env":0,"op":"step","action":1}`); raw != string([]byte{n + 1}) {
			t.Errorf("a step after the restore = %q, want %d", raw, n+1)
		}
	}
	if reply, _ := other.ask(`{"env":0,"op":"close"}`); reply.Ended == nil || *reply.Ended.Reward != 3 {
		t.Errorf("close = %+v, want the rewards of the way to its end", reply.Ended)
	}
	for line, want := range map[string]api.Kind{
		`{"env":0,"op":"restore"}`:                         api.NotFound,
		`{"env":0,"op":"restore","snapshot":"../etc"}`:     api.NotFound,
		`{"env":1,"op":"snapshot"}`:                        api.BadRequest,
		`{"env":0,"op":"restore","snapshot":{"id":"x"}}`:   api.BadRequest,
		`{"env":0,"op":"snapshot","snapshot":1,"extra":2}`: api.BadRequest,
	} {
		if reply, _ := e.ask(line); reply.Problem == nil || reply.Problem.Kind != want {
			t.Errorf("%s = %+v, want %s", line, reply.Problem, want)
		}
	}
	f.snapshotRoutes(t, taken)
}

func (f *front) snapshotRoutes(t *testing.T, taken []api.Snapshot) {
	t.Helper()
	first, err := f.client.Snapshots(t.Context(), "", 1)
	if err != nil || len(first.Snapshots) != 1 || !first.More || first.Count != 2 || first.Bytes != 2 || first.MaxBytes != 1<<30 || first.MaxCount != 1<<16 {
		t.Errorf("Snapshots() = %+v, %v", first, err)
	}
	rest, err := f.client.Snapshots(t.Context(), first.Snapshots[0].ID, 0)
	if err != nil || len(rest.Snapshots) != 1 || rest.More {
		t.Errorf("Snapshots() = %+v, %v", rest, err)
	}
	if got, err := f.client.Snapshot(t.Context(), taken[0].ID); err != nil || got != taken[0] {
		t.Errorf("Snapshot() = %+v, %v, want %+v", got, err, taken[0])
	}
	if err := f.client.DropSnapshot(t.Context(), taken[0].ID); err != nil {
		t.Error(err)
	}
	_, err = f.client.Snapshot(t.Context(), taken[0].ID)
	for name, err := range map[string]error{"get": err, "drop": f.client.DropSnapshot(t.Context(), taken[0].ID)} {
		if !errors.Is(err, &api.Error{Kind: api.NotFound}) {
			t.Errorf("%s of one that is gone: %v", name, err)
		}
	}
}

func TestASimulatorThatDoesNotGetReadySaysWhy(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	_, err := f.client.OpenSimulator(t.Context(), api.SimulatorSpec{World: world, Env: "CartPole-v1"})
	if !errors.Is(err, &api.Error{Kind: api.PrepareFailed}) || !strings.Contains(err.Error(), "python3") {
		t.Errorf("a world without python3: %v", err)
	}
	_, err = f.client.OpenSimulator(t.Context(), api.SimulatorSpec{World: "none", Env: "CartPole-v1"})
	if !errors.Is(err, &api.Error{Kind: api.UnknownWorld}) {
		t.Errorf("no world: %v", err)
	}
	minus := -1
	_, err = f.client.OpenSimulator(t.Context(), api.SimulatorSpec{World: world, Env: "x", Ready: &minus})
	if !errors.Is(err, &api.Error{Kind: api.BadRequest}) {
		t.Errorf("ready -1: %v", err)
	}
}

func BenchmarkEnvStep(b *testing.B) {
	f := serveEpisodes(b)
	e := f.envs(b, f.openSim(b).ID)
	e.ask(`{"env":0,"op":"make"}`)
	e.ask(`{"env":0,"op":"reset"}`)
	for b.Loop() {
		if reply, _ := e.ask(`{"env":0,"op":"step","action":1}`); reply.Fault != nil {
			b.Fatal(reply.Fault)
		}
	}
}
