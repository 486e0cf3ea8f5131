package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/simulator"
)

// Bounds of one connection to a simulator's environments.
const (
	maxEnvs    = 4096
	maxEnvLine = callBody
	// maxEnvWaiting is how many requests one environment may be behind; then nothing more
	// is read.
	maxEnvWaiting = 64
	// maxUnread is how much a client may leave unread before nothing more is done for it.
	maxUnread = 64 << 20
	// abandonPatience bounds the end of what a closed connection leaves.
	abandonPatience = time.Minute
)

func simulatorSpec(in api.SimulatorSpec) simulator.Spec {
	return simulator.Spec{
		World: in.World, Env: in.Env, Kwargs: in.Kwargs, Command: in.Command, Policy: in.Policy, Vars: in.Vars, User: in.User, Cwd: in.Cwd,
		Limits: limits(in.Limits), Requests: runner.Requests{CPUs: in.Requests.CPUs, MemoryBytes: int64(in.Requests.Memory)},
		Budgets: runner.Budgets(in.Budgets), StepS: in.StepS, ResetS: in.ResetS, MaxMessage: int64(in.MaxMessage), MaxSnapshot: int64(in.MaxSnapshot),
		Record: in.Record, AllowNaN: in.AllowNaN, CrashReward: in.CrashReward,
	}
}

func wireSimulator(m simulator.Simulator) api.Simulator {
	in, ready := m.Spec, m.Ready
	return api.Simulator{ID: m.ID, Hello: m.Hello, Made: m.Made, Spec: api.SimulatorSpec{
		World: in.World, Env: in.Env, Kwargs: compact(in.Kwargs), Command: in.Command, Policy: in.Policy, Vars: in.Vars, User: in.User, Cwd: in.Cwd,
		Limits: wireLimits(in.Limits), Requests: api.Requests{CPUs: in.Requests.CPUs, Memory: api.Size(in.Requests.MemoryBytes)},
		Budgets: api.Budgets(in.Budgets), StepS: in.StepS, ResetS: in.ResetS, MaxMessage: api.Size(in.MaxMessage), MaxSnapshot: api.Size(in.MaxSnapshot),
		Record: in.Record, AllowNaN: in.AllowNaN, CrashReward: in.CrashReward, Ready: &ready,
	}}
}

func (s *Server) openSimulator(q *request, in api.SimulatorSpec) (api.Simulator, error) {
	ready := -1
	if in.Ready != nil {
		if ready = *in.Ready; ready < 0 {
			return api.Simulator{}, &api.Error{Kind: api.BadRequest, Field: "/ready", Detail: fmt.Sprintf("%d is negative", ready)}
		}
	}
	m, err := s.sims.Open(q.Context(), q.owner(), simulatorSpec(in), ready)
	if err != nil {
		return api.Simulator{}, err
	}
	return wireSimulator(m), nil
}

func (s *Server) getSimulator(q *request, _ empty) (api.Simulator, error) {
	m, err := s.sims.Get(q.Context(), q.owner(), q.PathValue("simulator"))
	if err != nil {
		return api.Simulator{}, err
	}
	return wireSimulator(m), nil
}

func wireSnapshot(in simulator.Snapshot) api.Snapshot {
	return api.Snapshot{
		ID: in.ID, Episode: api.EnvEpisode{Run: in.Of.Run, ID: in.Of.ID, Attempt: in.Attempt, EnvSeed: in.EnvSeed}, Seq: in.Seq,
		Bytes: api.Size(in.Bytes), SHA256: in.SHA256, Rollouts: in.Rollouts, Steps: in.Steps, Return: in.Return,
		Terminated: in.Terminated, Truncated: in.Truncated, Created: in.Created,
	}
}

func (s *Server) listSnapshots(q *request, _ empty) (api.Snapshots, error) {
	most := q.query.number("max", 1, maxList)
	if q.query.err != nil {
		return api.Snapshots{}, q.query.err
	}
	if most == 0 {
		most = 1000
	}
	all, use := s.sims.Snapshots(q.owner(), q.query.text("after"), int(most)+1)
	out := api.Snapshots{Bytes: api.Size(use.Bytes), MaxBytes: api.Size(use.MaxBytes), Count: use.Count, MaxCount: use.MaxCount, More: len(all) > int(most)}
	out.Snapshots = notNil(mapAll(all[:min(len(all), int(most))], wireSnapshot))
	return out, nil
}

func (s *Server) getSnapshot(q *request, _ empty) (api.Snapshot, error) {
	snap, err := s.sims.GetSnapshot(q.owner(), q.PathValue("snapshot"))
	if err != nil {
		return api.Snapshot{}, err
	}
	return wireSnapshot(snap), nil
}

func (s *Server) dropSnapshot(q *request, _ empty) (empty, error) {
	return empty{}, s.sims.DropSnapshot(q.owner(), q.PathValue("snapshot"))
}

// openEnvs takes the connection over. It returns when the connection is closed and what
// was made on it has ended.
func (s *Server) openEnvs(q *request) error {
	if !strings.EqualFold(q.Header.Get("Upgrade"), api.EnvsProtocol) {
		return &api.Error{Kind: api.BadRequest, Field: "Upgrade", Detail: "this route is an upgrade to " + api.EnvsProtocol}
	}
	if _, err := s.sims.Get(q.Context(), q.owner(), q.PathValue("simulator")); err != nil {
		return err
	}
	conn, rw, err := http.NewResponseController(q.w).Hijack()
	if err != nil {
		return fmt.Errorf("take the connection over: %w", err)
	}
	q.began = true
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+api.EnvsProtocol+"\r\n\r\n"); err != nil {
		return nil //nolint:nilerr // nobody is there to read it
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(q.Context()))
	defer cancel(errConnClosed)
	stop := context.AfterFunc(s.ending, func() { _ = conn.Close() })
	defer stop()
	c := &envConn{s: s, ctx: ctx, owner: q.owner(), sim: q.PathValue("simulator"), route: q.route.ID, envs: map[int]*envLine{}, out: newOutbox(conn)}
	c.out.wg.Go(c.out.run)
	c.serve(rw.Reader)
	cancel(errConnClosed)
	c.finish()
	return nil
}

var errConnClosed = errors.New("the client's connection closed")

// envConn is one connection with its environments. One goroutine reads, one for each
// environment works, one writes.
type envConn struct {
	s          *Server
	ctx        context.Context //nolint:containedctx // the life of the connection
	owner, sim string
	route      string
	envs       map[int]*envLine
	out        *outbox
	wg         sync.WaitGroup
}

// envLine is one environment's requests, in order.
type envLine struct {
	n    int
	work chan api.EnvRequest
	env  *simulator.Env // its goroutine's, until that has ended
}

// serve reads requests until the connection is closed or says what is no request.
func (c *envConn) serve(r *bufio.Reader) {
	for {
		text, err := readLine(r, maxEnvLine)
		if err != nil {
			if errors.Is(err, bufio.ErrTooLong) {
				c.refuse(0, "", &api.Error{Kind: api.TooLarge, Detail: fmt.Sprintf("a line has more than %d bytes", maxEnvLine)})
			}
			return
		}
		var req api.EnvRequest
		if err := jsonv2.Unmarshal(text, &req, jsonv2.RejectUnknownMembers(true)); err != nil {
			c.refuse(req.Env, req.Op, &api.Error{Kind: api.BadRequest, Detail: "the line is no request: " + err.Error()})
			continue
		}
		line := c.line(&req)
		if line == nil {
			continue
		}
		select {
		case line.work <- req:
		case <-c.out.broken:
			return
		}
	}
}

// readLine reads a line of at most so many bytes.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && line == nil {
			return part, nil // good until the next read, by when it is decoded
		}
		line = append(line, part...)
		if len(line) > most {
			return nil, bufio.ErrTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// line finds the environment of a request, or begins it; nil is a request that was refused.
func (c *envConn) line(req *api.EnvRequest) *envLine {
	if line := c.envs[req.Env]; line != nil {
		return line
	}
	switch {
	case req.Op != "make":
		c.refuse(req.Env, req.Op, &api.Error{Kind: api.BadRequest, Field: "env", Detail: fmt.Sprintf("environment %d is not made", req.Env)})
		return nil
	case req.Env < 0 || req.Env >= maxEnvs:
		c.refuse(req.Env, req.Op, &api.Error{Kind: api.BadRequest, Field: "env", Detail: fmt.Sprintf("%d is not in 0 to %d", req.Env, maxEnvs-1)})
		return nil
	}
	line := &envLine{n: req.Env, work: make(chan api.EnvRequest, maxEnvWaiting)}
	c.envs[req.Env] = line
	c.wg.Go(func() {
		for req := range line.work {
			c.do(line, &req)
		}
	})
	return line
}

// do serves one request.
func (c *envConn) do(line *envLine, req *api.EnvRequest) {
	var res simulator.Result
	var err error
	switch {
	case c.ctx.Err() != nil:
		return
	case req.Op == "make":
		c.make(line, req)
		return
	case line.env == nil:
		err = &api.Error{Kind: api.BadRequest, Field: "env", Detail: fmt.Sprintf("environment %d is not made", req.Env)}
	case req.Op == "reset":
		res, err = line.env.Reset(c.ctx, req.Seed, req.Options)
	case req.Op == "step":
		res, err = line.env.Step(c.ctx, req.Action)
	case req.Op == "render":
		res, err = line.env.Render(c.ctx)
	case req.Op == "snapshot":
		c.snapshot(line, req)
		return
	case req.Op == "restore":
		res, err = line.env.Restore(c.ctx, req.Snapshot)
	case req.Op == "close":
		var ended simulator.Ended
		if ended, err = line.env.Close(c.ctx); err == nil {
			line.env = nil // the number may be used again
			res.Ended = &ended
		}
	default:
		err = &api.Error{Kind: api.BadRequest, Field: "op", Detail: fmt.Sprintf("%.64q is not make, reset, step, render, snapshot, restore or close", req.Op)}
	}
	if err != nil {
		c.refuse(req.Env, req.Op, err)
		return
	}
	c.answer(req, &res)
}

func (c *envConn) make(line *envLine, req *api.EnvRequest) {
	if line.env != nil {
		c.refuse(req.Env, req.Op, &api.Error{Kind: api.BadRequest, Field: "env", Detail: fmt.Sprintf("environment %d is made already", req.Env)})
		return
	}
	var in api.EnvSpec
	if req.Make != nil {
		in = *req.Make
	}
	env, err := c.s.sims.Make(c.ctx, c.owner, c.sim, simulator.EnvSpec{
		Run: in.Run, ID: in.ID, Group: in.Group, Task: in.Task, Weights: in.Weights, Generation: in.Generation, EnvSeed: in.EnvSeed,
		Graders: weighted(in.Graders), Labels: in.Labels, Retries: in.Retries,
	})
	if err != nil {
		c.refuse(req.Env, req.Op, err)
		return
	}
	line.env = env
	key, attempt, seed := env.Key()
	c.send(&api.EnvReply{Env: req.Env, Op: req.Op, Episode: &api.EnvEpisode{Run: key.Run, ID: key.ID, Attempt: attempt, EnvSeed: seed}})
}

func (c *envConn) snapshot(line *envLine, req *api.EnvRequest) {
	snap, res, err := line.env.Snapshot(c.ctx)
	switch {
	case err != nil:
		c.refuse(req.Env, req.Op, err)
	case snap.ID == "":
		c.answer(req, &res)
	default:
		wire := wireSnapshot(snap)
		c.send(&api.EnvReply{Env: req.Env, Op: req.Op, Snapshot: &wire})
	}
}

func (c *envConn) refuse(env int, op string, err error) {
	if c.ctx.Err() != nil {
		return
	}
	c.send(&api.EnvReply{Env: env, Op: op, Problem: c.s.problem(c.route, err)})
}

func (c *envConn) send(reply *api.EnvReply) {
	text, err := json.Marshal(reply)
	if err != nil {
		c.s.log.Error("encode a reply", slog.Any("error", err))
		return
	}
	c.out.put(append(text, '\n'))
}

// answer sends a result. What a step gives is put together by hand: its parts are JSON
// already, and there are many.
func (c *envConn) answer(req *api.EnvRequest, res *simulator.Result) {
	if res.Error != nil || res.Ended != nil {
		reply := &api.EnvReply{Env: req.Env, Op: req.Op}
		if res.Error != nil {
			reply.Fault = &api.CallFault{Kind: res.Error.Kind, Detail: res.Error.Detail}
		}
		if e := res.Ended; e != nil {
			reply.Ended = &api.EnvEnded{End: *wireEnd(&e.End), Reward: e.Reward, Valid: e.Valid}
			reply.Reward = &res.Reward
		}
		c.send(reply)
		return
	}
	b := make([]byte, 0, 128+len(res.Observation)+len(res.Info))
	b = append(b, `{"env":`...)
	b = strconv.AppendInt(b, int64(req.Env), 10)
	b = append(append(append(b, `,"op":"`...), req.Op...), '"')
	if len(res.Observation) > 0 {
		b = append(append(b, `,"observation":`...), res.Observation...)
	}
	if req.Op == "step" {
		b = append(b, `,"reward":`...)
		b = strconv.AppendFloat(b, res.Reward, 'g', -1, 64)
	}
	if req.Op == "step" || req.Op == "restore" {
		b = strconv.AppendBool(append(b, `,"terminated":`...), res.Terminated)
		b = strconv.AppendBool(append(b, `,"truncated":`...), res.Truncated)
	}
	if len(res.Info) > 0 {
		b = append(append(b, `,"info":`...), res.Info...)
	}
	if len(res.Frames) > 0 {
		b = append(b, `,"frames":[`...)
		for i, n := range res.Frames {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, n, 10)
		}
		b = append(b, ']')
	}
	c.out.put(append(b, '}', '\n'), res.Raw)
}

// finish ends what the client has left, but for a daemon that is stopping: its drain does.
func (c *envConn) finish() {
	for _, line := range c.envs {
		close(line.work)
	}
	c.wg.Wait()
	c.out.close()
	if c.s.ending.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), abandonPatience)
	defer cancel()
	var wg sync.WaitGroup
	for _, line := range c.envs {
		if line.env == nil {
			continue
		}
		wg.Go(func() {
			if err := line.env.Abandon(ctx, errConnClosed.Error()); err != nil {
				c.s.log.Error("end an environment", slog.Any("error", err))
			}
		})
	}
	wg.Wait()
}

// outbox writes what several goroutines send, whole messages, as many at a time as there
// are: under load one write answers many environments.
type outbox struct {
	conn   net.Conn
	wg     sync.WaitGroup
	broken chan struct{} // closed, and conn with it, when the client cannot be written to

	mu     sync.Mutex
	change *sync.Cond
	buf    []byte
	closed bool
}

func newOutbox(conn net.Conn) *outbox {
	o := &outbox{conn: conn, broken: make(chan struct{})}
	o.change = sync.NewCond(&o.mu)
	return o
}

// put adds one message; it waits while too much is unread.
func (o *outbox) put(parts ...[]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.buf) > maxUnread && !o.closed {
		o.change.Wait()
	}
	if o.closed {
		return
	}
	for _, p := range parts {
		o.buf = append(o.buf, p...)
	}
	o.change.Broadcast()
}

func (o *outbox) run() {
	var spare []byte
	for {
		o.mu.Lock()
		for len(o.buf) == 0 && !o.closed {
			o.change.Wait()
		}
		out := o.buf
		o.buf = spare[:0]
		done := o.closed && len(out) == 0
		o.change.Broadcast()
		o.mu.Unlock()
		if done {
			return
		}
		_ = o.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := o.conn.Write(out); err != nil {
			close(o.broken)
			_ = o.conn.Close() // ends the reading, too
			o.mu.Lock()
			o.closed, o.buf = true, nil
			o.change.Broadcast()
			o.mu.Unlock()
			return
		}
		spare = nil
		if cap(out) <= 1<<20 {
			spare = out
		}
	}
}

// close returns when what was put is written, or cannot be.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.change.Broadcast()
	o.mu.Unlock()
	o.wg.Wait()
}
