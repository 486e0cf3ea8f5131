package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// Egress serves what a sandbox reaches outside of itself, on listeners inside of it. What it
// returns serves until it is closed. *egress.Host is one.
type Egress interface {
	// Proxy lets through what the rules say. *egress.UnknownSecretError.
	Proxy(l net.Listener, rules egress.Rules, ledger *egress.Ledger) (io.Closer, error)
	// Endpoint leads to one target.
	Endpoint(l net.Listener, e egress.Endpoint, to egress.Target, ledger *egress.Ledger) *egress.Door
	// HasSecrets says which of the named secrets is not there, as an *egress.UnknownSecretError.
	HasSecrets(names []string) error
}

// NetworkSpec asks for hosts beside those of the policy.
type NetworkSpec struct {
	// Allow are entries as egress.ParseEntry reads them: HOST[:PORT,...].
	Allow []string `json:"allow,omitempty"`
	// Secrets are names of the daemon's secrets, which its proxy adds to requests.
	Secrets []string `json:"secrets,omitempty"`
}

// EndpointSpec asks for a port of the sandbox's loopback that leads to a service.
type EndpointSpec struct {
	// Target is unix:/PATH or HOST:PORT, as the daemon's host sees them, or app:NAME. It is not in the
	// spec digest: where a service listens today does not decide the result.
	Target string `json:"target"`
	// Port is the one inside; 0 lets the daemon choose, the same for the same names.
	Port uint16 `json:"port,omitempty"`
	// Raw carries bytes of any protocol, unrecorded; otherwise the endpoint speaks HTTP.
	Raw bool `json:"raw,omitempty"`
	// Health is the path that the daemon asks for itself where a request was answered 5xx or
	// not at all: unset /. A target that answers it 5xx, too, is the client's fault. Like
	// Target it is not in the spec digest.
	Health string `json:"health,omitempty"`
}

// parse reads where the endpoint leads.
func (s EndpointSpec) parse() (egress.Target, error) {
	to, err := egress.ParseTarget(s.Target)
	if err != nil {
		return to, err
	}
	if s.Raw && s.Health != "" {
		return to, errors.New("a raw endpoint speaks no HTTP, and has no health")
	}
	return to.WithHealth(s.Health)
}

// PlanNetwork is what a sandbox reaches, with everything filled in.
type PlanNetwork struct {
	// Proxy is the proxy's URL inside; empty where the policy has none.
	Proxy string `json:"proxy,omitempty"`
	// Allow are the policy's entries and those of the spec, in their canonical form.
	Allow   []string `json:"allow,omitempty"`
	Secrets []string `json:"secrets,omitempty"`
	// Endpoints are addresses inside, by name.
	Endpoints map[string]string `json:"endpoints,omitempty"`
}

const (
	maxEndpoints  = 16
	maxSecrets    = 32
	firstEndpoint = 4301
)

var endpointName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// planNetwork fixes what a sandbox of the policy reaches. It touches nothing.
func planNetwork(n NetworkSpec, endpoints map[string]EndpointSpec, pol *policies.Policy) (PlanNetwork, error) {
	var p PlanNetwork
	rules, err := EgressRules(pol, n)
	if err != nil {
		return p, err
	}
	e, networked := pol.Egress()
	if networked {
		p.Proxy = "http://" + inside(e.Port)
		p.Secrets = slices.Compact(slices.Sorted(slices.Values(n.Secrets)))
		for _, a := range rules.Allow {
			p.Allow = append(p.Allow, a.String())
		}
		slices.Sort(p.Allow)
		p.Allow = slices.Compact(p.Allow)
	}
	if len(endpoints) > maxEndpoints {
		return p, badField("endpoints", "has %d, at most %d are allowed", len(endpoints), maxEndpoints)
	}
	taken := map[uint16]bool{}
	if networked {
		taken[e.Port] = true
	}
	for _, name := range slices.Sorted(maps.Keys(endpoints)) {
		spec, at := endpoints[name], "endpoints/"+name
		if !endpointName.MatchString(name) {
			return p, badField("endpoints", "the name %q is not %s", name, endpointName)
		}
		if _, err := egress.ParseTarget(spec.Target); err != nil {
			return p, badField(at+"/target", "%v", err)
		}
		if _, err := spec.parse(); err != nil {
			return p, badField(at+"/health", "%v", err)
		}
		if spec.Port != 0 && taken[spec.Port] {
			return p, badField(at+"/port", "%d is the proxy's or another endpoint's", spec.Port)
		}
		taken[spec.Port] = true
	}
	next := uint16(firstEndpoint)
	for _, name := range slices.Sorted(maps.Keys(endpoints)) {
		port := endpoints[name].Port
		for port == 0 {
			if !taken[next] {
				port = next
			}
			next++
		}
		if p.Endpoints == nil {
			p.Endpoints = map[string]string{}
		}
		p.Endpoints[name] = inside(port)
	}
	return p, nil
}

// EgressRules are what a proxy of this policy lets through with this grant. A sandbox that is
// no episode's, as a build's step, has its proxy by them, too.
func EgressRules(pol *policies.Policy, grant NetworkSpec) (egress.Rules, error) {
	e, ok := pol.Egress()
	switch {
	case !ok && len(grant.Allow) > 0:
		return egress.Rules{}, badField("network/allow", "the policy %s has no network; networked-allowlist has", pol.Name())
	case !ok && len(grant.Secrets) > 0:
		return egress.Rules{}, badField("network/secrets", "the policy %s has no network", pol.Name())
	case !ok:
		return egress.Rules{}, nil
	case !e.Grants && len(grant.Allow) > 0:
		return egress.Rules{}, badField("network/allow", "the policy %s lets no request add hosts", pol.Name())
	case len(grant.Secrets) > maxSecrets:
		return egress.Rules{}, badField("network/secrets", "has %d, at most %d are allowed", len(grant.Secrets), maxSecrets)
	case len(e.Allow)+len(grant.Allow) > egress.MaxEntries:
		return egress.Rules{}, badField("network/allow", "with the policy's own there are %d entries, at most %d are allowed", len(e.Allow)+len(grant.Allow), egress.MaxEntries)
	}
	r := egress.Rules{Refused: e.Refused, Secrets: grant.Secrets, Limits: egress.Limits{
		Requests: e.Limits.Requests, PerSecond: e.Limits.RequestsPerSecond, Connections: e.Limits.Connections,
		BytesUp: e.Limits.BytesUp, BytesDown: e.Limits.BytesDown, HeadBytes: int(e.Limits.HeadBytes),
		Idle: e.Limits.Idle, Life: e.Limits.Life,
	}}
	own, err := egress.ParseEntries(e.Allow)
	if err != nil {
		return egress.Rules{}, fmt.Errorf("policy %s: egress/allow: %w", pol.Name(), err)
	}
	r.Allow = own
	for i, text := range grant.Allow {
		entry, err := egress.ParseEntry(text)
		if err != nil {
			return egress.Rules{}, badField(fmt.Sprintf("network/allow/%d", i), "%v", err)
		}
		r.Allow = append(r.Allow, entry)
	}
	return r, nil
}

func inside(port uint16) string { return "127.0.0.1:" + strconv.Itoa(int(port)) }

// ports are those to open inside: the proxy's, then the endpoints' in order of name.
func (p *PlanNetwork) ports() []uint16 {
	var all []uint16
	add := func(at string) {
		_, port, _ := strings.Cut(at, ":")
		n, _ := strconv.ParseUint(port, 10, 16) // it was made by inside
		all = append(all, uint16(n))
	}
	if p.Proxy != "" {
		add(strings.TrimPrefix(p.Proxy, "http://"))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Endpoints)) {
		add(p.Endpoints[name])
	}
	return all
}

// env tells programs of the proxy and the endpoints.
func (p *PlanNetwork) env() []string {
	var env []string
	if p.Proxy != "" {
		for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
			env = append(env, name+"="+p.Proxy)
		}
		const loopback = "localhost,127.0.0.1,::1"
		env = append(env, "NO_PROXY="+loopback, "no_proxy="+loopback)
	}
	for name, at := range p.Endpoints {
		env = append(env, "PADDOCK_ENDPOINT_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"=http://"+at)
	}
	slices.Sort(env)
	return env
}

// portList is ports as a value that can be compared.
type portList string

func listOf(ports []uint16) portList {
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = strconv.Itoa(int(p))
	}
	return portList(strings.Join(words, ","))
}

func (l portList) ports() []uint16 {
	if l == "" {
		return nil
	}
	var all []uint16
	for w := range strings.SplitSeq(string(l), ",") {
		n, _ := strconv.ParseUint(w, 10, 16) // it was made by listOf
		all = append(all, uint16(n))
	}
	return all
}

// checkPolicies holds that the entries of every policy are entries, before any is needed.
func checkPolicies(set *policies.Set) error {
	for _, name := range set.Names() {
		pol, err := set.Get(name)
		if err != nil {
			return err
		}
		if _, err := EgressRules(pol, NetworkSpec{}); err != nil {
			return err
		}
		if e, ok := pol.Egress(); ok && len(e.Allow) > egress.MaxEntries {
			return fmt.Errorf("policy %s: egress/allow: more than %d entries", name, egress.MaxEntries)
		}
	}
	return nil
}

// checkNetwork refuses what this daemon could not serve.
func (r *Runner) checkNetwork(n *PlanNetwork) error {
	if r.cfg.Egress == nil && len(n.ports()) > 0 {
		return badField("network", "this daemon has nothing that serves proxies and endpoints")
	}
	if info := r.cfg.Launcher.Info(); len(n.ports()) > 0 && !info.Listen {
		return info.Lacks("listen")
	}
	if len(n.Secrets) == 0 {
		return nil
	}
	err := r.cfg.Egress.HasSecrets(n.Secrets)
	if u, ok := errors.AsType[*egress.UnknownSecretError](err); ok {
		return badField("network/secrets", "the daemon has no secret %q", u.Name)
	}
	return err
}

// doors are what serves one sandbox's listeners.
type doors struct {
	ledger    *egress.Ledger
	open      []io.Closer
	endpoints map[string]*egress.Door
}

// doorsFor says what the listeners of a sandbox are to be.
type doorsFor struct {
	plan      *PlanNetwork
	policy    *policies.Policy
	network   NetworkSpec
	endpoints map[string]EndpointSpec
	// any lets the proxy lead to every host that the policy's ranges do not refuse.
	any bool
	// uid is the client's on the host.
	uid    uint32
	record func(egress.Exchange)
	down   func(string)
	app    func(ctx context.Context, name string) (net.Conn, error)
}

// openDoors serves a sandbox's listeners. What it opened before an error is closed.
func (r *Runner) openDoors(sb Sandbox, f doorsFor) (*doors, error) {
	d := &doors{ledger: egress.NewLedger(), endpoints: map[string]*egress.Door{}}
	want := f.plan.ports()
	if len(want) == 0 {
		return d, nil
	}
	listeners := sb.Listeners()
	if len(listeners) != len(want) {
		return nil, fmt.Errorf("the sandbox has %d listeners, want %d", len(listeners), len(want))
	}
	if f.plan.Proxy != "" {
		rules, err := EgressRules(f.policy, f.network)
		if err != nil {
			return nil, err
		}
		rules.Any = f.any
		p, err := r.cfg.Egress.Proxy(listeners[0], rules, d.ledger)
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		d.open, listeners = append(d.open, p), listeners[1:]
	}
	doubt := &egress.Doubt{}
	for i, name := range slices.Sorted(maps.Keys(f.endpoints)) {
		spec := f.endpoints[name]
		to, err := spec.parse()
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		e := egress.Endpoint{Name: name, Raw: spec.Raw, UID: f.uid, Record: f.record, Down: f.down, Doubt: doubt, App: f.app}
		door := r.cfg.Egress.Endpoint(listeners[i], e, to, d.ledger)
		d.open, d.endpoints[name] = append(d.open, door), door
	}
	return d, nil
}

// close ends every connection. It may be called again, and of none.
func (d *doors) close() error {
	if d == nil {
		return nil
	}
	var errs []error
	for _, c := range d.open {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// lead makes endpoints go where a later request for the same episode says.
func (d *doors) lead(endpoints map[string]EndpointSpec) {
	for name, spec := range endpoints {
		if to, err := spec.parse(); err == nil && d.endpoints[name] != nil {
			d.endpoints[name].Lead(to)
		}
	}
}

// lead makes a live attempt's endpoints go where the client's services are now.
func (a *attempt) lead(endpoints map[string]EndpointSpec) {
	a.mu.Lock()
	d := a.doors
	a.mu.Unlock()
	if d != nil {
		d.lead(endpoints)
	}
}

// NetworkSummary is what one sandbox asked for: every destination with its verdict.
type NetworkSummary struct {
	Seen []egress.Seen `json:"seen"`
	// More is how many requests are not listed, for there were too many destinations.
	More int64 `json:"more,omitempty"`
	// Refused is how many were not served.
	Refused int64 `json:"refused,omitempty"`
}

// summary is nil where nothing was asked for.
func (d *doors) summary() *NetworkSummary {
	if d == nil {
		return nil
	}
	seen, more := d.ledger.All()
	if len(seen) == 0 && more == 0 {
		return nil
	}
	return &NetworkSummary{Seen: seen, More: more, Refused: d.ledger.Refused()}
}

// openNetwork serves the attempt's listeners.
func (a *attempt) openNetwork() error {
	if len(a.plan.Network.ports()) == 0 {
		return nil
	}
	a.exchanges = newExchangeLog(a.dir)
	d, err := a.r.openDoors(a.sb, doorsFor{
		plan: &a.plan.Network, policy: a.policy, network: a.plan.Spec.Network, endpoints: a.plan.Spec.Endpoints, uid: hostUser(a.key.Owner),
		record: a.exchanges.add, down: a.endpointDown, app: a.connectApp,
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.doors = d
	a.mu.Unlock()
	return nil
}

// hostUser is with whose rights an owner's unix sockets are opened: those of the user that it
// is, or of nobody where it is a tenant with a name of its own.
func hostUser(owner string) uint32 {
	const nobody = 65534
	uid, err := strconv.ParseUint(owner, 10, 32)
	if err != nil {
		return nobody
	}
	return uint32(uid)
}

// endpointDown ends the attempt: an agent can do nothing for a target of its client's that
// takes no connection, nor bring that about.
func (a *attempt) endpointDown(detail string) {
	a.ask(End{Status: Errored, Cause: Client, Step: "model", Evidence: []string{"endpoint " + cut(detail)}})
}

// closeNetwork ends what the sandbox reached, once its processes are gone.
func (a *attempt) closeNetwork() {
	if a.doors != nil {
		defer a.releaseApps()
	}
	if err := a.doors.close(); err != nil {
		a.log.Warn("close the network", slog.Any("error", err))
	}
}

// Bounds of what a call's result has of the network.
const (
	maxCallNetwork = 64
	maxNetHints    = 3
)

// noteNetwork puts what was asked for since the last call into a call's result.
func (a *attempt) noteNetwork(c *callState) {
	if a.doors == nil {
		return
	}
	c.res.Network, c.res.MoreNetwork = a.doors.ledger.Fresh(maxCallNetwork)
	for _, s := range c.res.Network {
		if s.Endpoint != "" || s.Verdict == egress.Allowed || s.Count == 0 || len(c.res.Hints) >= maxNetHints {
			continue
		}
		c.res.Hints = append(c.res.Hints, fmt.Sprintf("%s was not reached: %s by policy %s", destination(s), s.Verdict, a.policy.Name()))
	}
}

func destination(s egress.Seen) string {
	switch {
	case s.Host == "":
		return "a destination that could not be read"
	case s.Port == 0:
		return s.Host
	}
	return net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))
}

// maxListen is checked at compile time: a spec never asks for more than a sandbox may have.
var _ [sandbox.MaxListen - maxEndpoints - 1]struct{}

// Exchanges reads what the endpoints of an attempt carried, one exchange a line; attempt 0
// is the last.
func (r *Runner) Exchanges(ctx context.Context, key Key, attempt int) (io.ReadCloser, error) {
	at, err := r.attemptOf(ctx, key, attempt)
	if err != nil {
		return nil, err
	}
	dir, err := r.cfg.Record.Dir(key, at.N)
	if err != nil {
		return nil, fmt.Errorf("attempt's directory: %w", err)
	}
	return readExchanges(dir)
}
