package daemon

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
)

// maxAppTail is the most lines of a log that one may ask for from its end.
const maxAppTail = 1 << 20

func appSpec(in api.AppSpec) app.Spec {
	return app.Spec{
		World: in.World, Command: in.Command, Env: in.Env, User: in.User, Cwd: in.Cwd, Port: in.Port, Health: app.Health(in.Health), StartS: in.StartS,
		Policy: in.Policy, Limits: limits(in.Limits), Requests: runner.Requests{CPUs: in.Requests.CPUs, MemoryBytes: int64(in.Requests.Memory)},
		Network: runner.NetworkSpec(in.Network), Sessions: in.Sessions, SessionIdleS: in.SessionIdleS, DrainS: in.DrainS, IdleS: in.IdleS,
		AnswerS: in.AnswerS, MaxInFlight: in.MaxInFlight, Scale: app.Scale(in.Scale),
	}
}

func wireApp(a app.App) api.App {
	in := a.Spec
	return api.App{
		Name: a.Name, URL: appsPrefix + a.Name + "/", Revision: a.Revision, Created: a.Created, Updated: a.Updated, State: a.State, Wanted: a.Wanted,
		Sessions: a.Sessions, InFlight: a.InFlight, Restarts: a.Restarts, Failure: a.Failure, FailureAt: a.FailureAt,
		Replicas: notNil(mapAll(a.Replicas, func(r app.Replica) api.AppReplica {
			return api.AppReplica{
				ID: r.ID, Revision: r.Revision, State: string(r.State), Episode: r.Episode, Since: r.Since, Sessions: r.Sessions, InFlight: r.InFlight,
			}
		})),
		Spec: api.AppSpec{
			Name: a.Name, World: in.World, Command: in.Command, Env: in.Env, User: in.User, Cwd: in.Cwd, Port: in.Port, Health: api.AppHealth(in.Health), StartS: in.StartS,
			Policy: in.Policy, Limits: wireLimits(in.Limits), Requests: api.Requests{CPUs: in.Requests.CPUs, Memory: api.Size(in.Requests.MemoryBytes)},
			Network: api.NetworkSpec(in.Network), Sessions: in.Sessions, SessionIdleS: in.SessionIdleS, DrainS: in.DrainS, IdleS: in.IdleS,
			AnswerS: in.AnswerS, MaxInFlight: in.MaxInFlight, Scale: api.AppScale(in.Scale),
		},
	}
}

func appRoutes() []route {
	missing := may(api.UnknownApp)
	spec := may(api.UnknownWorld, api.UnknownPolicy, api.RefusedByPolicy, api.NotFound)
	all := []route{
		typed("POST", appsPath, "deployApp", "Serve a program of a world to many clients", (*Server).deployApp, spec, may(api.SpecConflict)),
		typed("GET", appsPath, "listApps", "List the caller's apps", (*Server).listApps, draining),
		typed("GET", appPath, "getApp", "An app with its replicas", (*Server).getApp, draining, missing),
		typed("PUT", appPath, "updateApp", "Replace an app's replicas by those of another spec, one after another", (*Server).updateApp, spec, missing),
		typed("DELETE", appPath, "removeApp", "Stop an app and forget it", (*Server).removeApp, draining, missing),
		typed("POST", appPath+"/scale", "scaleApp", "Say how many replicas an app is to have", (*Server).scaleApp, missing),
		typed("POST", appPath+"/sessions", "beginAppSession", "Begin a session, which one replica serves", (*Server).beginAppSession, draining, missing,
			may(api.AppDown, api.OverCapacity)),
		typed("DELETE", appPath+"/sessions/{session}", "endAppSession", "End a session", (*Server).endAppSession, draining, missing),
		raw("GET", appPath+"/logs", "appLogs", "Lines of an app's log", (*Server).appLogs, draining, missing,
			param("tail", "integer", "so many of the last lines; unset is all that is kept"), param("replica", "string", "whose lines"),
			param("follow", "boolean", "wait for more"), gives(reflect.TypeFor[api.AppLine](), api.MediaStream)),
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
		id := "appOf" + method[:1] + strings.ToLower(method[1:])
		all = append(all, raw(method, appsPrefix+"{app}/{path}", id, "A request to an app, upgrades and streams included; the answer is the app's, or a problem with the header Paddock-Error",
			(*Server).proxyApp, draining, passThrough, missing, may(api.AppDown, api.AppBroken, api.SessionLost, api.OverCapacity, api.Unsupported),
			header(api.HeaderSession, "the session that the request is of; the cookie paddock-session does the same")))
	}
	return all
}

// passThrough makes a route take every query and all paths below its own.
func passThrough(r *route) { r.passThrough = true }

func (s *Server) deployApp(q *request, in api.AppSpec) (api.App, error) {
	a, err := s.cfg.Apps.Deploy(q.Context(), q.owner(), in.Name, appSpec(in))
	if err != nil {
		return api.App{}, err
	}
	return wireApp(a), nil
}

func (s *Server) updateApp(q *request, in api.AppSpec) (api.App, error) {
	name := q.PathValue("app")
	if in.Name != "" && in.Name != name {
		return api.App{}, &api.Error{Kind: api.BadRequest, Field: "/name", Detail: "the name is not that of the path; an app cannot be renamed"}
	}
	a, err := s.cfg.Apps.Update(q.Context(), q.owner(), name, appSpec(in))
	if err != nil {
		return api.App{}, err
	}
	return wireApp(a), nil
}

func (s *Server) scaleApp(q *request, in api.AppScale) (api.App, error) {
	a, err := s.cfg.Apps.Scale(q.Context(), q.owner(), q.PathValue("app"), app.Scale(in))
	if err != nil {
		return api.App{}, err
	}
	return wireApp(a), nil
}

func (s *Server) listApps(q *request, _ empty) (api.Apps, error) {
	return api.Apps{Apps: notNil(mapAll(s.cfg.Apps.List(q.owner()), wireApp))}, nil
}

func (s *Server) getApp(q *request, _ empty) (api.App, error) {
	a, err := s.cfg.Apps.Get(q.owner(), q.PathValue("app"))
	if err != nil {
		return api.App{}, err
	}
	return wireApp(a), nil
}

func (s *Server) removeApp(q *request, _ empty) (empty, error) {
	return empty{}, s.cfg.Apps.Remove(q.Context(), q.owner(), q.PathValue("app"))
}

func (s *Server) beginAppSession(q *request, _ empty) (api.AppSession, error) {
	id, replica, err := s.cfg.Apps.Begin(q.Context(), q.owner(), q.PathValue("app"))
	return api.AppSession{Session: id, Replica: replica}, err
}

func (s *Server) endAppSession(q *request, _ empty) (empty, error) {
	return empty{}, s.cfg.Apps.End(q.owner(), q.PathValue("app"), q.PathValue("session"))
}

func (s *Server) appLogs(q *request) error {
	in := app.LogQuery{Tail: int(q.query.number("tail", 1, maxAppTail)), Replica: q.query.text("replica"), Follow: q.query.flag("follow")}
	if q.query.err != nil {
		return q.query.err
	}
	if _, err := s.cfg.Apps.Get(q.owner(), q.PathValue("app")); err != nil {
		return err
	}
	ctx, stop := s.untilEnding(q.Context())
	defer stop()
	out := q.stream()
	return s.cfg.Apps.Logs(ctx, q.owner(), q.PathValue("app"), in, func(l app.Line) error { return out.send(api.AppLine(l)) })
}

// appsPrefix begins the path of what is an app's own.
const appsPrefix = "/apps/"

// proxyApp hands the request to the app.
func (s *Server) proxyApp(q *request) error {
	return s.proxyTo(q.w, q.Request, app.Caller{
		Owner: q.owner(), Name: q.PathValue("app"), Prefix: appPrefix(q.URL.EscapedPath()), KeepAuthorization: q.peer.remote == "",
	}, q.route.ID)
}

func (s *Server) proxyTo(w http.ResponseWriter, q *http.Request, c app.Caller, operation string) error {
	c.Refuse = func(w http.ResponseWriter, err error) { s.writeProblem(w, operation, err) }
	return s.cfg.Apps.Proxy(w, q, c)
}

// appPrefix is the part of a path that names the app: its first two segments.
func appPrefix(path string) string {
	rest := strings.TrimPrefix(path, appsPrefix)
	name, _, _ := strings.Cut(rest, "/")
	return path[:len(path)-len(rest)+len(name)]
}
