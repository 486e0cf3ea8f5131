package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

const maxList = 10000

func (s *Server) createEpisode(q *request, in api.EpisodeSpec) (api.Created, error) {
	run := q.PathValue("run")
	if in.Run != "" && in.Run != run {
		return api.Created{}, &api.Error{Kind: api.BadRequest, Field: "/run", Detail: fmt.Sprintf("run %q differs from the path's, %q", in.Run, run)}
	}
	in.Run = run
	generation, err := q.generation()
	if err != nil {
		return api.Created{}, err
	}
	created, err := s.run.Create(q.Context(), q.owner(), generation, episodeSpec(in))
	if err != nil {
		return api.Created{}, err
	}
	if !created.Kept {
		q.status = http.StatusCreated
	}
	return api.Created{Episode: wireEpisode(created.Episode), Kept: created.Kept}, nil
}

func (s *Server) getEpisode(q *request, _ empty) (api.Episode, error) {
	k, err := q.key()
	if err != nil {
		return api.Episode{}, err
	}
	return episodeOr(s.run.Get(q.Context(), k))
}

func (s *Server) listEpisodes(q *request, _ empty) (api.Episodes, error) {
	most := q.query.number("max", 1, maxList)
	if q.query.err != nil {
		return api.Episodes{}, q.query.err
	}
	if most == 0 {
		most = 1000
	}
	all, more, err := s.run.List(q.Context(), q.owner(), q.PathValue("run"), q.query.text("prefix"), q.query.text("after"), int(most))
	if err != nil {
		return api.Episodes{}, err
	}
	return api.Episodes{Episodes: notNil(mapAll(all, wireEpisode)), More: more}, nil
}

func (s *Server) cancelEpisodes(q *request, in api.CancelSpec) (api.Cancelled, error) {
	n, err := s.run.Cancel(q.Context(), q.owner(), q.PathValue("run"), in.Prefix, in.Reason)
	return api.Cancelled{Cancelled: n}, err
}

func (s *Server) deleteEpisode(q *request, _ empty) (empty, error) {
	k, err := q.key()
	if err != nil {
		return empty{}, err
	}
	return empty{}, s.run.Delete(q.Context(), k)
}

func (s *Server) pauseEpisode(q *request, _ empty) (api.Episode, error) {
	k, err := q.key()
	if err != nil {
		return api.Episode{}, err
	}
	return episodeOr(s.run.Pause(q.Context(), k))
}

func (s *Server) resumeEpisode(q *request, _ empty) (api.Episode, error) {
	k, err := q.key()
	if err != nil {
		return api.Episode{}, err
	}
	return episodeOr(s.run.Resume(q.Context(), k))
}

func (s *Server) forkEpisode(q *request, in api.ForkSpec) (api.Forked, error) {
	k, err := q.key()
	if err != nil {
		return api.Forked{}, err
	}
	generation, err := q.generation()
	if err != nil {
		return api.Forked{}, err
	}
	b, err := s.run.Branch(q.Context(), k, runner.BranchSpec{IDs: in.IDs, Attempt: in.Attempt, Generation: generation})
	if err != nil {
		return api.Forked{}, err
	}
	return api.Forked{World: b.World, Episodes: mapAll(b.Episodes, func(c runner.Created) api.Created {
		return api.Created{Episode: wireEpisode(c.Episode), Kept: c.Kept}
	})}, nil
}

func (s *Server) keepAlive(q *request, _ empty) (api.Episode, error) {
	k, err := q.key()
	if err != nil {
		return api.Episode{}, err
	}
	return episodeOr(s.run.KeepAlive(q.Context(), k))
}

func (s *Server) abortEpisode(q *request, in api.Reason) (api.Episode, error) {
	k, err := q.key()
	if err != nil {
		return api.Episode{}, err
	}
	return episodeOr(s.run.Abort(q.Context(), k, in.Reason))
}

// episodeOr is an episode's wire form, unless there is an error.
func episodeOr(ep runner.Episode, err error) (api.Episode, error) {
	if err != nil {
		return api.Episode{}, err
	}
	return wireEpisode(ep), nil
}

// headed reads a request whose body is raw bytes and whose description is in a header,
// or, with a JSON body, the description alone (raw is then nil).
func headed(q *request, name string, out any) (body io.Reader, err error) {
	if err := checkMedia(q.Request, api.MediaJSON, api.MediaBytes); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(q.Header.Get("Content-Type"), api.MediaBytes) {
		if q.Header.Get(name) != "" {
			return nil, &api.Error{Kind: api.BadRequest, Field: name, Detail: "the header " + name + " goes with a body of type " + api.MediaBytes}
		}
		return nil, decodeBody(q.Request, q.route.maxBody, out)
	}
	text := q.Header.Get(name)
	if text == "" {
		return nil, &api.Error{Kind: api.BadRequest, Field: name, Detail: "a raw body wants the header " + name + " with the rest as JSON"}
	}
	if err := decode([]byte(text), out); err != nil {
		return nil, fmt.Errorf("header %s: %w", name, err)
	}
	return q.Body, nil
}

// call runs one tool call. When the client goes away, a call with a number of its own goes
// on, since its answer can be asked for again; one without ends, since nobody could.
func (s *Server) call(q *request) error {
	k, err := q.key()
	if err != nil {
		return err
	}
	generation, err := q.generation()
	if err != nil {
		return err
	}
	var in api.CallSpec
	stdin, err := headed(q, api.HeaderCall, &in)
	if err != nil {
		return err
	}
	spec := callSpec(in, generation)
	ctx := q.Context()
	if spec.Seq > 0 {
		ctx = context.WithoutCancel(ctx)
	}
	if !strings.Contains(q.Header.Get("Accept"), api.MediaStream) {
		result, err := s.run.Call(ctx, k, spec, runner.CallIO{Stdin: stdin})
		if err != nil {
			return err
		}
		return q.answer(wireResult(result))
	}
	return s.streamCall(ctx, q, k, spec, stdin)
}

func (s *Server) cancelCall(q *request, in api.CancelCall) (empty, error) {
	k, err := q.key()
	if err != nil {
		return empty{}, err
	}
	generation, err := q.generation()
	if err != nil {
		return empty{}, err
	}
	return empty{}, s.run.CancelCall(q.Context(), k, in.Attempt, in.Seq, generation)
}

// streamCall sends output as it comes. The head goes out with the first of it, so that a
// refused call still is an answer with a status.
func (s *Server) streamCall(ctx context.Context, q *request, k runner.Key, spec runner.CallSpec, stdin io.Reader) error {
	out := &lazyStream{q: q}
	stdout, stderr := &chunks{to: out, name: "stdout"}, &chunks{to: out, name: "stderr"}
	result, err := s.run.Call(ctx, k, spec, runner.CallIO{Stdin: stdin, Stdout: stdout, Stderr: stderr})
	if err != nil && !q.began {
		return err
	}
	stdout.close()
	stderr.close()
	if err != nil {
		_ = out.send(api.CallEvent{Type: "error", Error: s.problem(q.route.ID, err)})
		return nil
	}
	wire := wireResult(result)
	_ = out.send(api.CallEvent{Type: "result", Result: &wire})
	return nil
}

func (s *Server) upload(q *request) error {
	k, err := q.key()
	if err != nil {
		return err
	}
	if err := checkMedia(q.Request, api.MediaBytes, api.MediaTar); err != nil {
		return err
	}
	result, err := s.run.Upload(q.Context(), k, q.query.text("path"), q.query.text("user"), q.Body)
	if err != nil {
		return err
	}
	return q.answer(wireResult(result))
}

// download answers with the tar, or with the call's result where there is no whole one to
// give. Nothing of it goes out before that is known.
func (s *Server) download(q *request) error {
	k, err := q.key()
	if err != nil {
		return err
	}
	body := &spool{dir: s.cfg.Spool}
	defer body.close()
	result, err := s.run.Download(q.Context(), k, q.query.text("path"), q.query.text("user"), body)
	if err != nil {
		return err
	}
	if err := body.end(); err != nil {
		return err
	}
	if fault := wireResult(result).Fault; fault != nil {
		return &api.Error{Kind: api.NotFound, Field: "path", Detail: fmt.Sprintf("%s: %s", fault.Path, fault.Kind)}
	}
	q.begin(api.MediaTar)
	return body.send(q.w)
}

// firstByte sends the head of a tar when its first byte comes.
type firstByte struct{ q *request }

func (f *firstByte) begin() {
	if !f.q.began {
		f.q.begin(api.MediaTar)
	}
}

// Write sends p.
func (f *firstByte) Write(p []byte) (int, error) {
	f.begin()
	return f.q.w.Write(p)
}

func (s *Server) finishEpisode(q *request) error {
	k, err := q.key()
	if err != nil {
		return err
	}
	generation, err := q.generation()
	if err != nil {
		return err
	}
	var in api.FinishSpec
	body, err := headed(q, api.HeaderFinish, &in)
	if err != nil {
		return err
	}
	if body != nil {
		if in.Payload != nil {
			return &api.Error{Kind: api.BadRequest, Field: "/payload", Detail: "the payload is the body"}
		}
		if in.Payload, err = io.ReadAll(io.LimitReader(body, api.MaxPayload+1)); err != nil {
			return &api.Error{Kind: api.BadRequest, Detail: "the payload broke off: " + err.Error()}
		}
	}
	if len(in.Payload) > api.MaxPayload {
		return &api.Error{Kind: api.TooLarge, Field: "/payload", Detail: fmt.Sprintf("the payload has more than %d bytes", api.MaxPayload)}
	}
	ep, err := s.run.Finish(q.Context(), k, runner.FinishSpec{
		Attempt: in.Attempt, Generation: generation, Answer: compact(in.Answer), Payload: in.Payload,
	})
	if err != nil {
		return err
	}
	return q.answer(wireEpisode(ep))
}

// attempt is the key and the attempt that a request asks for.
func (q *request) attempt() (runner.Key, int, error) {
	k, err := q.key()
	if err != nil {
		return k, 0, err
	}
	n := q.query.number("attempt", 1, math.MaxInt32)
	return k, int(n), q.query.err
}

func (s *Server) changes(q *request, _ empty) (api.Capture, error) {
	k, attempt, err := q.attempt()
	if err != nil {
		return api.Capture{}, err
	}
	c, err := s.run.Changes(q.Context(), k, attempt)
	if err != nil {
		return api.Capture{}, err
	}
	return wireCapture(c), nil
}

func (s *Server) trajectory(q *request) error {
	k, attempt, err := q.attempt()
	if err != nil {
		return err
	}
	r, err := s.run.Trajectory(q.Context(), k, attempt)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	q.begin(api.MediaStream)
	_, err = io.Copy(q.w, r)
	return err
}

func (s *Server) exchanges(q *request) error {
	k, attempt, err := q.attempt()
	if err != nil {
		return err
	}
	r, err := s.run.Exchanges(q.Context(), k, attempt)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	q.begin(api.MediaStream)
	_, err = io.Copy(q.w, r)
	return err
}

func (s *Server) payload(q *request) error {
	k, attempt, err := q.attempt()
	if err != nil {
		return err
	}
	b, err := s.run.Payload(q.Context(), k, attempt)
	if err != nil {
		return err
	}
	q.begin(api.MediaBytes)
	_, _ = q.w.Write(b)
	return nil
}

func (s *Server) putGrader(q *request, in api.GraderSpec) (api.GraderRef, error) {
	digest, err := s.run.PutGrader(q.Context(), graderSpec(in))
	return api.GraderRef{Grader: digest}, err
}

func (s *Server) getGrader(q *request, _ empty) (api.GraderSpec, error) {
	g, err := s.run.Grader(q.Context(), q.PathValue("grader"))
	if err != nil {
		return api.GraderSpec{}, err
	}
	return wireGrader(g), nil
}

func (s *Server) scoreEpisode(q *request, in api.Graders) (api.Episode, error) {
	k, err := q.key()
	if err != nil {
		return api.Episode{}, err
	}
	return episodeOr(s.run.Score(q.Context(), k, in.Attempt, weighted(in.Graders)))
}

func (s *Server) writeReward(q *request, in api.RewardSpec) (api.Episode, error) {
	k, err := q.key()
	if err != nil {
		return api.Episode{}, err
	}
	return episodeOr(s.run.WriteReward(q.Context(), k, rewardSpec(k.ID, in, 0)))
}

// compact is JSON kept as it came, or nil.
func compact(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	return raw
}
