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
echo '{"protocol":"paddock-simulator/1","observation_space":{"space":{"type":"Box","dtype":"|u1","shape":[1]}},"action_space":{"type":"integer"}}'
n=0
while read -r line; do
  case $line in
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
