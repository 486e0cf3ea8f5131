package api

import "time"

// Headers of requests to an app and of its answers. HeaderSession names a session, which one
// replica serves; the cookie CookieSession does the same. HeaderReplica says which replica
// answered. HeaderError is the kind of an answer that is the daemon's and not the app's.
const (
	HeaderSession = "Paddock-Session"
	HeaderReplica = "Paddock-Replica"
	HeaderError   = "Paddock-Error"
	CookieSession = "paddock-session"
)

// AppSpec describes a program of a world that many clients reach over HTTP.
type AppSpec struct {
	Name    string            `json:"name,omitempty" doc:"[a-z][a-z0-9-]{0,62}; an update's is that of its path"`
	World   string            `json:"world"`
	Command []string          `json:"command,omitempty" doc:"what each replica runs, with its port in PORT; the world's own entrypoint and command unless set"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`

	Port   uint16    `json:"port" doc:"of 127.0.0.1, on which the program serves HTTP/1.1"`
	Health AppHealth `json:"health,omitzero"`
	StartS float64   `json:"start_s,omitempty" doc:"how long a replica may take to be ready, and a request waits for one; 60 unless set"`

	Policy   string      `json:"policy,omitempty"`
	Limits   Limits      `json:"limits,omitzero" doc:"of each replica"`
	Requests Requests    `json:"requests,omitzero"`
	Network  NetworkSpec `json:"network,omitzero" doc:"hosts beside the policy's own, where it has a network"`

	Sessions     string  `json:"sessions,omitempty" doc:"sticky (default): one replica serves a session's requests; or none"`
	SessionIdleS float64 `json:"session_idle_s,omitempty" doc:"how long a session lasts without a request; 600 unless set"`
	DrainS       float64 `json:"drain_s,omitempty" doc:"how long a replica that is to stop waits for its sessions to end; 300 unless set"`
	IdleS        float64 `json:"idle_s,omitempty" doc:"after how long without requests and sessions all replicas stop until the next request; 0 is never"`
	AnswerS      float64 `json:"answer_s,omitempty" doc:"bounds the time to the head of an answer; 300 unless set"`
	MaxInFlight  int     `json:"max_in_flight,omitempty" doc:"requests that one replica has at a time; 256 unless set"`

	Scale AppScale `json:"scale,omitzero"`
}

// AppHealth is how a replica is found to be well.
type AppHealth struct {
	Path      string  `json:"path,omitempty" doc:"GET of it answers with a status of 200 to 399; unset: the port takes connections"`
	IntervalS float64 `json:"interval_s,omitempty" doc:"10 unless set; after three bad looks in a row the replica is replaced"`
	TimeoutS  float64 `json:"timeout_s,omitempty" doc:"5 unless set"`
}

// AppScale is how many replicas an app has.
type AppScale struct {
	Min    int     `json:"min,omitempty" doc:"1 unless set"`
	Max    int     `json:"max,omitempty" doc:"min unless set; at most 64"`
	Target int     `json:"target,omitempty" doc:"sessions (requests, without sessions) that one replica is to have; 16 unless set"`
	DownS  float64 `json:"down_s,omitempty" doc:"for how long fewer replicas must do until one is stopped; 60 unless set"`
}

// App is an app as it is now.
type App struct {
	Name     string    `json:"name"`
	URL      string    `json:"url" doc:"where the app is, below the daemon's address"`
	Spec     AppSpec   `json:"spec" doc:"with the defaults filled in; world is its id"`
	Revision int64     `json:"revision"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`

	State    string       `json:"state" doc:"idle, starting, running, updating or failing"`
	Wanted   int          `json:"wanted" doc:"replicas that there are to be now"`
	Replicas []AppReplica `json:"replicas"`
	Sessions int          `json:"sessions"`
	InFlight int          `json:"in_flight" doc:"requests under way"`

	Restarts  int64     `json:"restarts" doc:"replicas that failed since the daemon started"`
	Failure   string    `json:"failure,omitempty" doc:"why the last of them did"`
	FailureAt time.Time `json:"failure_at,omitzero"`
}

// AppReplica is one of an app's programs.
type AppReplica struct {
	ID       string    `json:"id"`
	Revision int64     `json:"revision"`
	State    string    `json:"state" doc:"starting, ready, draining or stopping"`
	Episode  string    `json:"episode" doc:"its id in the run apps"`
	Since    time.Time `json:"since"`
	Sessions int       `json:"sessions"`
	InFlight int       `json:"in_flight"`
}

// Apps is the list of apps.
type Apps struct {
	Apps []App `json:"apps"`
}

// AppSession is a session of an app.
type AppSession struct {
	Session string `json:"session" doc:"the value of the header Paddock-Session"`
	Replica string `json:"replica"`
}

// AppLine is one line of an app's log.
type AppLine struct {
	Time    time.Time `json:"time"`
	Replica string    `json:"replica"`
	Stream  string    `json:"stream" doc:"stdout, stderr, or paddock for the daemon's own words"`
	Text    string    `json:"text,omitempty"`
	Bytes   []byte    `json:"bytes,omitempty" doc:"in place of a text that is no UTF-8"`
}
