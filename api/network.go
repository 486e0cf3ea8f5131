package api

// NetworkSpec asks for hosts that a sandbox reaches through its proxy.
type NetworkSpec struct {
	Allow   []string `json:"allow,omitempty" doc:"HOST[:PORT,...]: a name, *.NAME, an address or a range; ports 80 and 443 unless given, * is any"`
	Secrets []string `json:"secrets,omitempty" doc:"names of the daemon's secrets, which its proxy adds to requests"`
}

// EndpointSpec asks for a port of the sandbox's loopback that leads to a service.
type EndpointSpec struct {
	Target string `json:"target" doc:"unix:/PATH or HOST:PORT, as the daemon's host sees them, or app:NAME, a served app; not in the spec digest"`
	Port   uint16 `json:"port,omitempty" doc:"inside; unset lets the daemon choose, the same for the same names"`
	Raw    bool   `json:"raw,omitempty" doc:"carry bytes of any protocol, unrecorded; otherwise it speaks HTTP"`
	Health string `json:"health,omitempty" doc:"the path that the daemon asks for itself where a request was answered 5xx or not at all, / unless given: answered 5xx, too, for ten seconds, the target is down; not in the spec digest"`
}

// EffectiveNetwork is what a sandbox reaches, with everything filled in.
type EffectiveNetwork struct {
	Proxy     string            `json:"proxy,omitempty" doc:"inside; unset where the policy has none"`
	Allow     []string          `json:"allow,omitempty" doc:"the policy's entries and those of the spec"`
	Secrets   []string          `json:"secrets,omitempty"`
	Endpoints map[string]string `json:"endpoints,omitempty" doc:"addresses inside, by name"`
}

// Destination is one that was asked for, with what became of it, and how often.
type Destination struct {
	Host      string `json:"host" doc:"as the request named it; an endpoint's target"`
	Port      uint16 `json:"port,omitempty"`
	Endpoint  string `json:"endpoint,omitempty" doc:"the endpoint that was used; unset for the proxy"`
	Address   string `json:"address,omitempty" doc:"the one that was dialled"`
	Method    string `json:"method,omitempty"`
	Verdict   string `json:"verdict" doc:"allowed, host_refused, port_refused, address_refused, bad_request, unresolved, unreachable, budget_requests, budget_bytes, budget_time, carried, endpoint_down, endpoint_busy or endpoint_broken"`
	Count     int64  `json:"count"`
	BytesUp   int64  `json:"bytes_up,omitempty"`
	BytesDown int64  `json:"bytes_down,omitempty"`
}

// NetworkSummary is every destination that a sandbox asked for.
type NetworkSummary struct {
	Seen    []Destination `json:"seen"`
	More    int64         `json:"more,omitempty" doc:"requests for destinations beyond those listed"`
	Refused int64         `json:"refused,omitempty"`
}

// ExchangesSummary tells of what an attempt's endpoints carried.
type ExchangesSummary struct {
	Count   int64 `json:"count"`
	Bytes   int64 `json:"bytes" doc:"of the record of them"`
	Dropped int64 `json:"dropped,omitempty" doc:"those that the record has no room for"`
	Broken  int64 `json:"broken,omitempty" doc:"those without a whole answer, or with one of 5xx"`
}
