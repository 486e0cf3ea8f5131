package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/paddock-run/paddock/internal/egress"
)

// Apps are served apps that endpoints of episodes lead to.
type Apps interface {
	// Has says whether an owner has an app of that name.
	Has(owner, name string) bool
	// Ensure returns when an app can take requests, and starts one that is idle.
	Ensure(ctx context.Context, owner, name string) error
	// Connect is a connection to an app whose requests are all of one session, whatever they
	// say.
	Connect(ctx context.Context, owner, name, session string) (net.Conn, error)
	// Release ends a session.
	Release(owner, name, session string)
}

// SetApps says what serves the apps that endpoints lead to. It comes before any episode.
func (r *Runner) SetApps(apps Apps) { r.apps = apps }

// appsOf are the apps that endpoints lead to, by name of the endpoint.
func appsOf(endpoints map[string]EndpointSpec) map[string]string {
	var all map[string]string
	for name, spec := range endpoints {
		if to, err := egress.ParseTarget(spec.Target); err == nil && to.App() != "" {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = to.App()
		}
	}
	return all
}

// checkApps refuses endpoints to apps that are not there.
func (r *Runner) checkApps(owner string, endpoints map[string]EndpointSpec) error {
	for endpoint, name := range appsOf(endpoints) {
		if r.apps == nil || !r.apps.Has(owner, name) {
			return &Error{Kind: KindUnknownApp, Field: "endpoints/" + endpoint + "/target", Detail: fmt.Sprintf("there is no app %q", name)}
		}
	}
	return nil
}

// ensureApps waits for the apps that the attempt's endpoints lead to. One that is down is no
// fault of the attempt's world, so it is not held against it.
func (a *attempt) ensureApps(ctx context.Context) *End {
	apps := appsOf(a.plan.Spec.Endpoints)
	for _, endpoint := range slices.Sorted(maps.Keys(apps)) {
		if err := a.r.apps.Ensure(ctx, a.key.Owner, apps[endpoint]); err != nil {
			return &End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{fmt.Sprintf("endpoint %s leads to app:%s: %v", endpoint, apps[endpoint], err)}}
		}
	}
	return nil
}

// appSession is the attempt's session of every app that it reaches: what keeps its requests at
// one replica, and others' state out of its hands.
func (a *attempt) appSession() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d", a.key.Run, a.key.ID, a.n))
	return "ep-" + hex.EncodeToString(sum[:16])
}

func (a *attempt) connectApp(ctx context.Context, name string) (net.Conn, error) {
	return a.r.apps.Connect(ctx, a.key.Owner, name, a.appSession())
}

// releaseApps ends the attempt's sessions.
func (a *attempt) releaseApps() {
	for _, name := range appsOf(a.plan.Spec.Endpoints) {
		a.r.apps.Release(a.key.Owner, name, a.appSession())
	}
}
