package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// Headers and the cookie of sessions. HeaderSession names the session of a request; without it
// the cookie does, and an answer to a client that has neither sets it.
const (
	HeaderSession = "Paddock-Session"
	HeaderReplica = "Paddock-Replica"
	CookieSession = "paddock-session"
)

// HeaderError is only ever the daemon's own: its value is the kind of error, and an app's
// answers never have it.
const HeaderError = "Paddock-Error"

// deathPatience is how long a request that broke off waits to be told that its replica died.
const deathPatience = 2 * time.Second

// Caller is for whom a request is proxied.
type Caller struct {
	Owner, Name string
	// Prefix is what of the URL's path is not the app's: it ends where the app's begins.
	Prefix string
	// Session, when set, is the only one that the request can have.
	Session string
	// KeepAuthorization passes the header of that name on.
	KeepAuthorization bool
	// Refuse answers with an error.
	Refuse func(http.ResponseWriter, error)
}

// Proxy serves a request by one of the app's replicas: HTTP, streams and upgrades. An error
// is one of before anything was answered.
func (s *Service) Proxy(w http.ResponseWriter, q *http.Request, c Caller) error {
	a, err := s.get(Key{c.Owner, c.Name})
	if err != nil {
		return err
	}
	id, fromCookie := sessionOf(q, c)
	h, err := a.enter(q.Context(), id)
	if err != nil {
		if fromCookie && runner.KindOf(err) == runner.KindSessionLost {
			http.SetCookie(w, &http.Cookie{Name: CookieSession, Path: cookiePath(c), MaxAge: -1})
		}
		return err
	}
	defer h.release()
	// Else the server closes the request's body when the answer begins, and the transport, which
	// has still to see its end, takes that for a fault and cuts the answer off.
	_ = http.NewResponseController(w).EnableFullDuplex() // of HTTP/1 alone: others have it
	p := &httputil.ReverseProxy{
		Transport: h.r.proxy, FlushInterval: -1, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Rewrite:        func(out *httputil.ProxyRequest) { rewrite(out, c, h) },
		ModifyResponse: func(resp *http.Response) error { return finish(resp, c, h, id == "") },
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, err error) { c.Refuse(w, h.broken(err)) },
	}
	p.ServeHTTP(w, q)
	return nil
}

// sessionOf is the session that a request names.
func sessionOf(q *http.Request, c Caller) (id string, fromCookie bool) {
	if c.Session != "" {
		return c.Session, false
	}
	if id := q.Header.Get(HeaderSession); id != "" {
		return id, false
	}
	if cookie, err := q.Cookie(CookieSession); err == nil {
		return cookie.Value, true
	}
	return "", false
}

func cookiePath(c Caller) string {
	if c.Prefix == "" {
		return "/"
	}
	return c.Prefix
}

// rewrite makes the request that the app gets.
func rewrite(p *httputil.ProxyRequest, c Caller, h *hold) {
	out := p.Out
	path := strings.TrimPrefix(p.In.URL.EscapedPath(), c.Prefix)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	out.URL = &url.URL{Scheme: "http", Host: "localhost", RawQuery: p.In.URL.RawQuery}
	if plain, err := url.PathUnescape(path); err == nil {
		out.URL.Path, out.URL.RawPath = plain, path
	} else {
		out.URL.Path = path
	}
	out.Host = "localhost"
	if !c.KeepAuthorization {
		out.Header.Del("Authorization")
	}
	out.Header.Del(HeaderSession)
	if h.id != "" {
		out.Header.Set(HeaderSession, h.id)
	}
	out.Header.Set("X-Forwarded-Prefix", c.Prefix)
	cookies := p.In.Cookies()
	out.Header.Del("Cookie")
	for _, cookie := range cookies {
		if cookie.Name != CookieSession {
			out.AddCookie(cookie)
		}
	}
}

// finish makes the answer that the client gets.
func finish(resp *http.Response, c Caller, h *hold, give bool) error {
	if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("its status %03d is none", resp.StatusCode) // net/http reads 000, and panics when it is to write it
	}
	resp.Header.Del(HeaderError)
	resp.Header.Del(HeaderSession)
	resp.Header.Set(HeaderReplica, h.r.id)
	if at := resp.Header.Get("Location"); strings.HasPrefix(at, "/") && !strings.HasPrefix(at, "//") {
		resp.Header.Set("Location", c.Prefix+at)
	}
	if h.id == "" {
		return nil
	}
	resp.Header.Set(HeaderSession, h.id)
	if give && c.Session == "" {
		cookie := http.Cookie{Name: CookieSession, Value: h.id, Path: cookiePath(c), HttpOnly: true, SameSite: http.SameSiteStrictMode}
		resp.Header.Add("Set-Cookie", cookie.String())
	}
	return nil
}

// broken says what a request met that got no answer: the death of its replica, or the app.
func (h *hold) broken(err error) error {
	var typed *runner.Error
	if errors.As(err, &typed) && typed.Kind != runner.KindEpisodeEnded {
		return typed
	}
	select {
	case <-h.r.gone:
	case <-h.r.ctx.Done():
	case <-time.After(deathPatience):
		return &runner.Error{Kind: runner.KindAppBroken, Detail: "the app gave no answer: " + err.Error()}
	}
	if h.s == nil {
		return &runner.Error{Kind: runner.KindAppBroken, Detail: "replica " + h.r.id + " ended before it answered", RetryAfter: time.Second}
	}
	return lostError(h.id, "its replica "+h.r.id+" has ended")
}
