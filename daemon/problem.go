package daemon

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/api"
)

// statusOf is the one place where a kind of error becomes a status code.
func statusOf(kind api.Kind) int {
	switch kind {
	case api.BadRequest, api.UnknownField:
		return http.StatusBadRequest
	case api.BadRecipe, api.BadArchive, api.BuildFailed, api.PrepareFailed, api.UnknownTool, api.UnknownUser, api.NoTool,
		api.Unsupported:
		return http.StatusUnprocessableEntity
	case api.TooLarge:
		return http.StatusRequestEntityTooLarge
	case api.UnsupportedMedia:
		return http.StatusUnsupportedMediaType
	case api.RegistryNotFound, api.NotFound, api.RouteNotFound, api.UnknownWorld, api.UnknownPolicy, api.UnknownGrader, api.UnknownDataset, api.UnknownApp:
		return http.StatusNotFound
	case api.MethodNotAllowed:
		return http.StatusMethodNotAllowed
	case api.Unauthenticated:
		return http.StatusUnauthorized
	case api.RegistryDenied, api.PermissionDenied, api.ForeignOrigin, api.RefusedByPolicy:
		return http.StatusForbidden
	case api.EpisodeDeleted, api.SessionLost:
		return http.StatusGone
	case api.RunExists, api.Fenced, api.SpecConflict, api.CallConflict, api.CallCancelled, api.Superseded, api.AttemptsExhausted,
		api.EpisodeEnded, api.NotRescorable, api.WrongState, api.InUse, api.WorldUnhealthy:
		return http.StatusConflict
	case api.OverCapacity:
		return http.StatusTooManyRequests
	case api.RegistryDown, api.AppBroken:
		return http.StatusBadGateway
	case api.AppDown, api.Draining, api.TooManyConns, api.PlatformFault, api.Corrupt:
		return http.StatusServiceUnavailable
	case api.Internal, api.Unavailable, api.ConnectionLost: // the latter two are made by the client
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// hints say what to do about an error where the daemon knows nothing better.
var hints = map[api.Kind]string{
	api.UnknownWorld:    "list worlds with `paddock world ls`; the smallest one is made in an instant by `paddock world build --busybox --name busybox`",
	api.UnknownPolicy:   "list policies with `paddock policy ls`",
	api.RunExists:       `open it again with resume "resume" or "auto", or choose another name`,
	api.Fenced:          "another driver has resumed this run; stop this one",
	api.SpecConflict:    `choose another id, or send on_conflict "supersede" to keep the old attempt as history and start anew`,
	api.CallConflict:    "a sequence number names one call for good; number the calls of an attempt 1, 2, 3, ...",
	api.EpisodeEnded:    `start a new attempt with attempt "next", or another episode`,
	api.WorldUnhealthy:  "mend the world's set-up and build it anew with `paddock world build`; to build or import the same world again lifts it too",
	api.NoTool:          "build a world with those packages: `paddock world build --debian bookworm --packages python3,g++ --name judge`",
	api.BuildFailed:     "the detail ends in the last words of what failed: mend that line, the suite or the packages, or build again when the mirror answers",
	api.OverCapacity:    "ask again after retry_after seconds",
	api.RegistryDenied:  "log in with `docker login HOST`, or send a username and password",
	api.RegistryDown:    "ask again: what has arrived of an image is kept, and the next pull goes on there",
	api.Unsupported:     "`paddock version` says what this daemon's launcher can do; `paddock serve --launcher native` can do everything",
	api.UnknownApp:      "list apps with `paddock app ls`; one is made by `paddock app deploy`",
	api.AppDown:         "`paddock app logs` has the last words of its program; ask again after retry_after seconds",
	api.SessionLost:     "its state is gone with its replica: begin another session, and the episode with it",
	api.Draining:        "the daemon is stopping; ask again when it is back",
	api.Internal:        "this is a bug of paddock; the daemon's log has a line with the incident",
	api.ForeignOrigin:   "the daemon is not for browsers; ask for http://paddock/ or http://localhost/ on the unix socket, and over TCP for a name of its certificate",
	api.Unauthenticated: "ask the daemon's operator for a token of your tenant; paddock reads it from --token-file or PADDOCK_TOKEN_FILE",
}

// finishProblem fills what follows from the kind.
func finishProblem(p *api.Error) {
	p.Status = statusOf(p.Kind)
	p.Type = "urn:paddock:error:" + string(p.Kind)
	p.Title = strings.ReplaceAll(string(p.Kind), "_", " ")
	if p.Hint == "" {
		p.Hint = hints[p.Kind]
	}
	if p.Status == http.StatusTooManyRequests && p.RetryAfter == 0 {
		p.RetryAfter = 1
	}
}

// problem makes err a problem document. What it does not know is a bug, logged under an
// incident that the answer names.
func (s *Server) problem(operation string, err error) *api.Error {
	p := translate(err)
	if p == nil {
		incident := uuid.NewString()
		s.log.Error("unknown error", slog.String("operation", operation), slog.String("incident", incident), slog.Any("error", err))
		p = &api.Error{Kind: api.Internal, Detail: "the daemon met an error that it has no name for", Incident: incident}
	}
	finishProblem(p)
	if kinds, known := s.declared[operation]; known && !kinds[p.Kind] && s.undeclared != nil {
		s.undeclared(operation, p.Kind)
	}
	s.metrics.errors.WithLabelValues(operation, string(p.Kind)).Inc()
	return p
}

func (s *Server) writeProblem(w http.ResponseWriter, operation string, err error) {
	p := s.problem(operation, err)
	body, err := json.Marshal(p)
	if err != nil {
		// A value of the request that cannot be told back: the rest says enough.
		p.Pointers = nil
		body, _ = json.Marshal(p)
	}
	h := w.Header()
	h.Set("Content-Type", api.MediaProblem)
	h.Set(api.HeaderError, string(p.Kind))
	if p.Kind == api.Unauthenticated {
		h.Set("WWW-Authenticate", `Bearer realm="paddock"`)
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter))))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// translate gives the wire form of a typed error, nil for one it does not know.
func translate(err error) *api.Error {
	if p, ok := errors.AsType[*api.Error](err); ok {
		c := *p
		return &c
	}
	return translateRunner(err)
}
