package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
)

const appsPath = "/v1/apps"

func appPath(name string) string { return appsPath + "/" + segment(name) }

// DeployApp makes an app; the same one again is the answer.
func (c *Client) DeployApp(ctx context.Context, spec AppSpec) (App, error) {
	return post[App](ctx, c, appsPath, spec)
}

// UpdateApp replaces an app's replicas by those of another spec, one after another.
func (c *Client) UpdateApp(ctx context.Context, name string, spec AppSpec) (App, error) {
	return ask[App](ctx, c, call{method: http.MethodPut, path: appPath(name)}, spec)
}

// ScaleApp says how many replicas an app is to have.
func (c *Client) ScaleApp(ctx context.Context, name string, scale AppScale) (App, error) {
	return post[App](ctx, c, appPath(name)+"/scale", scale)
}

// Apps lists the apps.
func (c *Client) Apps(ctx context.Context) ([]App, error) {
	out, err := get[Apps](ctx, c, appsPath, nil)
	return out.Apps, err
}

// App is an app by its name.
func (c *Client) App(ctx context.Context, name string) (App, error) {
	return get[App](ctx, c, appPath(name), nil)
}

// RemoveApp stops an app and forgets it.
func (c *Client) RemoveApp(ctx context.Context, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: appPath(name)}, nil, nil)
}

// BeginAppSession begins a session of an app.
func (c *Client) BeginAppSession(ctx context.Context, name string) (AppSession, error) {
	return post[AppSession](ctx, c, appPath(name)+"/sessions", nil)
}

// EndAppSession ends a session of an app, so that its replica need not wait for it.
func (c *Client) EndAppSession(ctx context.Context, name, session string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: appPath(name) + "/sessions/" + segment(session)}, nil, nil)
}

// AppLogs calls yield with lines of an app's log, the oldest first: the last tail of them (0
// is all), those of one replica where it is named, and with follow those to come.
func (c *Client) AppLogs(ctx context.Context, name, replica string, tail int, follow bool, yield func(AppLine) error) error {
	q := url.Values{}
	if replica != "" {
		q.Set("replica", replica)
	}
	if tail > 0 {
		q.Set("tail", strconv.Itoa(tail))
	}
	if follow {
		q.Set("follow", "true")
	}
	return c.lines(ctx, call{method: http.MethodGet, path: appPath(name) + "/logs", query: q}, func(text []byte) error {
		var line AppLine
		if err := json.Unmarshal(text, &line); err != nil {
			return &Error{Kind: Internal, Detail: "a line of the log: " + err.Error()}
		}
		return yield(line)
	})
}
