package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

// route is one line of the table.
type route struct {
	api.Operation
	// kinds are the errors that this route may answer with, beside common.
	kinds []api.Kind
	// onEpisodeSocket says that a single episode's socket serves it too.
	onEpisodeSocket bool
	// whileDraining says that it works while the daemon is stopping.
	whileDraining bool
	// passThrough says that all of the query, and every path below, is for somebody else.
	passThrough bool
	maxBody     int64
	serve       func(s *Server, q *request) error
}

// common are the errors that every route may answer with.
var common = []api.Kind{
	api.BadRequest, api.UnknownField, api.TooLarge, api.UnsupportedMedia, api.PermissionDenied, api.Unauthenticated, api.ForeignOrigin,
	api.RouteNotFound, api.MethodNotAllowed, api.Draining, api.TooManyConns, api.PlatformFault, api.Internal,
}

const (
	smallBody = 1 << 20
	// callBody leaves room for stdin or a file's content in base64; larger ones come raw.
	callBody = 64 << 20
	bigBody  = 128 << 20
	// datasetBody is a data set's file.
	datasetBody = 512 << 20
	rawBody     = 1 << 40
)

// request is one request on its way.
type request struct {
	*http.Request
	w     http.ResponseWriter
	route *route
	peer  peer
	query *query
	// status is what an answer without error gets.
	status int
	// only is the episode of an episode's socket.
	only *runner.Key
	// began says that the answer's head is out, so an error cannot become a status.
	began bool
}

// owner is whose runs these are: the caller's, or the episode's on its own socket.
func (q *request) owner() string {
	if q.only != nil {
		return q.only.Owner
	}
	return q.peer.owner()
}

// key is the episode that the path names.
func (q *request) key() (runner.Key, error) {
	k := runner.Key{Owner: q.owner(), Run: q.PathValue("run"), ID: q.PathValue("id")}
	if q.only != nil && k != *q.only {
		return runner.Key{}, &api.Error{Kind: api.PermissionDenied, Detail: fmt.Sprintf("this socket reaches episode %q of run %q alone", q.only.ID, q.only.Run)}
	}
	return k, nil
}

// generation is the driver's, 0 when it sent none.
func (q *request) generation() (int64, error) {
	text := q.Header.Get(api.HeaderGeneration)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, &api.Error{Kind: api.BadRequest, Field: api.HeaderGeneration, Detail: fmt.Sprintf("generation %q is no number", text)}
	}
	return n, nil
}

// answer sends v as JSON.
func (q *request) answer(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %T: %w", v, err)
	}
	q.began = true
	q.w.Header().Set("Content-Type", api.MediaJSON)
	q.w.Header().Set("Content-Length", strconv.Itoa(len(body)+1)) // net/http finds only a small one's
	q.w.WriteHeader(q.status)
	_, _ = q.w.Write(body)
	_, _ = q.w.Write([]byte{'\n'})
	return nil
}

// empty is the body of requests and answers that have none.
type empty struct{}

// table entries are made by these; the types of the bodies are those of the handler.

func typed[In, Out any](method, path, id, summary string, handle func(s *Server, q *request, in In) (Out, error), options ...option) route {
	r := route{Operation: api.Operation{ID: id, Method: method, Path: path, Summary: summary, Status: http.StatusOK}, maxBody: smallBody}
	if t := reflect.TypeFor[In](); t != reflect.TypeFor[empty]() {
		r.Request, r.RequestMedia = t, []string{api.MediaJSON}
	}
	if t := reflect.TypeFor[Out](); t == reflect.TypeFor[empty]() {
		r.Status = http.StatusNoContent
	} else {
		r.Response, r.ResponseMedia = t, []string{api.MediaJSON}
	}
	for _, o := range options {
		o(&r)
	}
	r.serve = func(s *Server, q *request) error {
		var in In
		if r.Request != nil {
			if err := decodeBody(q.Request, r.maxBody, &in); err != nil {
				return err
			}
		} else if err := noBody(q.Request); err != nil {
			return err
		}
		out, err := handle(s, q, in)
		if err != nil {
			return err
		}
		if r.Response == nil {
			q.w.WriteHeader(q.status)
			return nil
		}
		return q.answer(out)
	}
	return r
}

// raw is a route that reads and writes its bodies itself.
func raw(method, path, id, summary string, handle func(s *Server, q *request) error, options ...option) route {
	r := route{
		Operation: api.Operation{ID: id, Method: method, Path: path, Summary: summary, Status: http.StatusOK},
		maxBody:   smallBody, serve: handle,
	}
	for _, o := range options {
		o(&r)
	}
	return r
}

func noBody(r *http.Request) error {
	var one [1]byte
	if n, _ := r.Body.Read(one[:]); n > 0 {
		return &api.Error{Kind: api.BadRequest, Detail: "this route takes no body"}
	}
	return nil
}

type option func(*route)

func may(kinds ...api.Kind) option {
	return func(r *route) { r.kinds = append(r.kinds, kinds...) }
}

func body(most int64) option { return func(r *route) { r.maxBody = most } }

func draining(r *route) { r.whileDraining = true }

func agentToo(r *route) { r.onEpisodeSocket = true }

func takes(t reflect.Type, media ...string) option {
	return func(r *route) { r.Request, r.RequestMedia = t, media }
}

func gives(t reflect.Type, media ...string) option {
	return func(r *route) { r.Response, r.ResponseMedia = t, media }
}

func param(name, kind, summary string) option {
	return func(r *route) { r.Query = append(r.Query, api.Param{Name: name, Type: kind, Summary: summary}) }
}

func status(code int) option { return func(r *route) { r.Status = code } }

func header(name, summary string) option {
	return func(r *route) {
		r.Headers = append(r.Headers, api.Param{Name: name, Type: "string", Summary: summary})
	}
}

// operations are the routes as the document describes them.
func operations(routes []route) []api.Operation {
	ops := make([]api.Operation, len(routes))
	for i, r := range routes {
		op := r.Operation
		op.Kinds = map[int][]api.Kind{}
		for _, k := range slices.Concat(r.kinds, common) {
			op.Kinds[statusOf(k)] = append(op.Kinds[statusOf(k)], k)
		}
		ops[i] = op
	}
	return ops
}

// declared are the kinds of error that each route may answer with.
func declared(routes []route) map[string]map[api.Kind]bool {
	all := map[string]map[api.Kind]bool{}
	for _, r := range routes {
		kinds := map[api.Kind]bool{}
		for _, k := range slices.Concat(r.kinds, common) {
			kinds[k] = true
		}
		all[r.ID] = kinds
	}
	return all
}

// mux serves the routes; only, when set, is the one episode that may be reached.
func (s *Server) mux(routes []route, only *runner.Key) http.Handler {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for i := range routes {
		r := &routes[i]
		if only != nil && !r.onEpisodeSocket {
			continue
		}
		methods[r.pattern()] = append(methods[r.pattern()], r.Method)
		mux.Handle(r.Method+" "+r.pattern(), s.serveRoute(r, only))
	}
	for path, allowed := range methods {
		mux.Handle(path, s.refuseMethod(allowed))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.writeProblem(w, "none", &api.Error{
			Kind: api.RouteNotFound, Detail: fmt.Sprintf("there is no route %s %s here", r.Method, printable(r.URL.Path)),
			Hint: "GET /openapi.json lists the routes; an episode's id is one percent-encoded segment",
		})
	})
	return s.guard(mux)
}

// pattern is the path as net/http's mux knows it.
func (r *route) pattern() string {
	if r.passThrough {
		return strings.TrimSuffix(r.Path, "}") + "...}"
	}
	return r.Path
}

func (s *Server) refuseMethod(allowed []string) http.Handler {
	slices.Sort(allowed)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		s.writeProblem(w, "none", &api.Error{
			Kind:   api.MethodNotAllowed,
			Detail: fmt.Sprintf("%s is not a method of %s; it has %s", r.Method, printable(r.URL.Path), strings.Join(allowed, ", ")),
		})
	})
}

// guard lets in who may come in, whatever they ask for.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := s.admitted(r)
		if err != nil {
			// Nothing else of the request is of interest; the connection is not kept.
			w.Header().Set("Connection", "close")
			s.writeProblem(w, "none", err)
			return
		}
		if path := r.URL.EscapedPath(); uncleanHere(path) {
			// ServeMux would redirect to the clean path, and a POST would lose its body.
			s.writeProblem(w, "none", &api.Error{
				Kind: api.BadRequest, Field: "path",
				Detail: fmt.Sprintf("path %s: a segment is empty, . or .., and nothing is called so", printable(r.URL.EscapedPath())),
			})
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, p)))
	})
}

// admitted is who asks, with the tenant, or why it is refused.
func (s *Server) admitted(r *http.Request) (peer, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	switch {
	case !ok:
		return p, &api.Error{Kind: api.PermissionDenied, Detail: "the connection has no credentials"}
	case p.refusal != "":
		s.metrics.refusedPeers.Inc()
		s.log.Warn("refused", slog.Int("uid", int(p.uid)), slog.Int("pid", int(p.pid)))
		return p, &api.Error{Kind: api.PermissionDenied, Detail: p.refusal}
	case r.Header.Get("Origin") != "" || !s.ownHost(p, r.Host):
		return p, &api.Error{
			Kind:   api.ForeignOrigin,
			Detail: fmt.Sprintf("host %q, origin %q: not this daemon's", printable(r.Host), printable(r.Header.Get("Origin"))),
		}
	case p.remote == "":
		return p, nil
	}
	var err error
	if p.tenant, err = s.remote.authenticate(r); err != nil {
		s.metrics.refusedPeers.Inc()
		s.log.Warn("refused", slog.String("address", p.remote), slog.Any("error", err))
		return p, err
	}
	p.known()
	return p, nil
}

func (s *Server) ownHost(p peer, host string) bool {
	if p.remote != "" {
		return s.remote.ownHost(host)
	}
	if p.loopback {
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		return loopbackHost(strings.Trim(host, "[]"))
	}
	return host == "" || host == "paddock" || host == "localhost"
}

// uncleanHere is unclean but for the path of an app, which may end in a slash.
func uncleanHere(escaped string) bool {
	if strings.HasPrefix(escaped, appsPrefix) {
		escaped = strings.TrimSuffix(escaped, "/")
	}
	return unclean(escaped)
}

func unclean(escaped string) bool {
	for i, segment := range strings.Split(escaped, "/") {
		if i > 0 && (segment == "" && escaped != "/" || segment == "." || segment == "..") {
			return true
		}
	}
	return false
}

// serveRoute is what every route has in common.
func (s *Server) serveRoute(r *route, only *runner.Key) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		began := time.Now()
		s.metrics.inflight.Inc()
		defer s.metrics.inflight.Dec()
		rec := &recorder{ResponseWriter: w}
		p, _ := hr.Context().Value(peerKey{}).(peer)
		q := &request{Request: hr, w: rec, route: r, peer: p, status: r.Status, only: only}
		defer func() { s.metrics.served(r.ID, rec.status, began) }()
		defer s.recovered(q)
		if err := s.dispatch(q); err != nil {
			s.fail(q, err)
		}
	})
}

func (s *Server) dispatch(q *request) error {
	if s.draining.Load() && !q.route.whileDraining {
		return errStopping
	}
	if q.route.passThrough {
		return q.route.serve(s, q)
	}
	var err error
	if q.query, err = newQuery(q.Request, q.route.Query); err != nil {
		return err
	}
	return q.route.serve(s, q)
}

// fail answers with err; when the answer has begun, it can only be broken off.
func (s *Server) fail(q *request, err error) {
	if errors.Is(err, context.Canceled) && q.Context().Err() != nil {
		return // nobody is there to read it
	}
	if q.began {
		s.log.Warn("answer broken off", slog.String("operation", q.route.ID), slog.Any("error", err))
		panic(http.ErrAbortHandler)
	}
	s.writeProblem(q.w, q.route.ID, err)
}

// recovered makes a panic a typed error that names its line in the log.
func (s *Server) recovered(q *request) {
	what := recover()
	if what == nil {
		return
	}
	if err, ok := what.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(what)
	}
	incident := uuid.NewString()
	s.metrics.panics.Inc()
	s.log.Error("panic", slog.String("operation", q.route.ID), slog.String("incident", incident),
		slog.Any("panic", what), slog.String("stack", string(debug.Stack())))
	if q.began {
		panic(http.ErrAbortHandler)
	}
	s.writeProblem(q.w, q.route.ID, &api.Error{Kind: api.Internal, Detail: "the daemon hit a bug", Incident: incident})
}

// recorder remembers the status for the metrics.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the first status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write is a status of 200 when nothing else was said.
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// printable makes text of a request safe to tell back.
func printable(s string) string {
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	if u, err := url.PathUnescape(s); err == nil && u != s {
		s = u
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
