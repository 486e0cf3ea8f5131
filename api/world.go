package api

import (
	"encoding/json"
	"time"
)

// World is a sealed, immutable image.
type World struct {
	ID        string      `json:"id"`
	Layers    []string    `json:"layers"`
	Config    WorldConfig `json:"config"`
	Names     []string    `json:"names,omitempty"`
	SizeBytes int64       `json:"size_bytes"`
	Entries   int64       `json:"entries"`
	Recipe    string      `json:"recipe"`
	Key       string      `json:"key,omitempty"`
	Created   time.Time   `json:"created"`
	Dropped   []string    `json:"dropped,omitempty" doc:"what of an imported image the world does not have"`
}

// WorldConfig is what a world says about the programs that run in it.
type WorldConfig struct {
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Tools      []Tool   `json:"tools,omitempty"`
	Setup      []string `json:"setup,omitempty"`
	ImageWords
}

// ImageWords is what an image says beside: kept, and of no meaning to an episode.
type ImageWords struct {
	Labels       map[string]string `json:"labels,omitempty"`
	ExposedPorts []string          `json:"exposed_ports,omitempty" doc:"as 80/tcp"`
	Volumes      []string          `json:"volumes,omitempty"`
	StopSignal   string            `json:"stop_signal,omitempty"`
	Healthcheck  *Healthcheck      `json:"healthcheck,omitempty"`
	Shell        []string          `json:"shell,omitempty" doc:"what the shell form of a Dockerfile's commands is run by"`
	OnBuild      []string          `json:"on_build,omitempty"`
}

// Healthcheck is how an engine would ask a container whether it works.
type Healthcheck struct {
	Test           []string `json:"test,omitempty" doc:"begins with NONE, CMD or CMD-SHELL"`
	IntervalS      float64  `json:"interval_s,omitempty"`
	TimeoutS       float64  `json:"timeout_s,omitempty"`
	StartPeriodS   float64  `json:"start_period_s,omitempty"`
	StartIntervalS float64  `json:"start_interval_s,omitempty"`
	Retries        int      `json:"retries,omitempty"`
}

// Tool is a command of the world that an agent may call by name; its arguments arrive as
// one JSON object on stdin.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Command     []string        `json:"command"`
	TimeoutS    float64         `json:"timeout_s,omitempty"`
}

// Worlds is a list of worlds.
type Worlds struct {
	Worlds []World `json:"worlds"`
}

// Recipe is what a world is built from; exactly one of Dir, Tar, Busybox, Debian is set, and
// with Dockerfile at most one of Dir and Tar, which is then its context. Paths are the daemon's
// host's.
type Recipe struct {
	Base    string  `json:"base,omitempty" doc:"id or name of the world to put the layer on"`
	Dir     string  `json:"dir,omitempty" doc:"host directory whose contents become the layer"`
	Tar     string  `json:"tar,omitempty" doc:"host file: plain, gzip or zstd"`
	Busybox bool    `json:"busybox,omitempty" doc:"the base recipe from the host's static busybox"`
	Debian  *Debian `json:"debian,omitempty" doc:"the base recipe made by mmdebstrap"`
	// Dockerfile goes with Dir, Tar, Config, Version, Name and Cache.
	Dockerfile *Dockerfile `json:"dockerfile,omitempty" doc:"build what a Dockerfile says; dir, or tar, is its context"`
	Into       string      `json:"into,omitempty" doc:"directory inside the world that Dir's or Tar's contents go to; / by default"`
	Ignore     []string    `json:"ignore,omitempty" doc:"patterns, as in .dockerignore, of a Dir left out"`
	Config     WorldConfig `json:"config,omitzero" doc:"replaces, where set, what the base says"`
	Version    string      `json:"version,omitempty" doc:"a salt for the cache key"`
	Name       string      `json:"name,omitempty" doc:"a name to point at the result"`
	Cache      string      `json:"cache,omitempty" doc:"auto (default), off or refresh"`
}

// Dockerfile says how to build by one.
type Dockerfile struct {
	Text   string            `json:"text,omitempty" doc:"the Dockerfile; unset, it is read from the context"`
	File   string            `json:"file,omitempty" doc:"its path in the context; Dockerfile by default"`
	Args   map[string]string `json:"args,omitempty" doc:"values of ARGs"`
	Target string            `json:"target,omitempty" doc:"the stage to build, by name or number; the last by default"`
	Allow  []string          `json:"allow,omitempty" doc:"hosts that RUN reaches through a proxy, HOST[:PORT,...]; none is no network"`
	Host   bool              `json:"host_network,omitempty" doc:"RUN reaches through the proxy whatever the daemon's host does, but private networks and the host itself; for root alone"`
	Limits Limits            `json:"limits,omitzero" doc:"of each RUN; the policy build's by default. Only cpus, memory, disk, inodes and pids count"`
	StepS  float64           `json:"step_s,omitempty" doc:"wall time that each RUN may take; 3600 by default"`
}

// ImportSpec says which image to import when the body of the request is not the archive
// itself: exactly one of Path and Registry is set.
type ImportSpec struct {
	Path     string    `json:"path,omitempty" doc:"an archive or an OCI layout directory of the daemon's host; for root alone"`
	Registry *Registry `json:"registry,omitempty" doc:"an image to pull"`
	Image    string    `json:"image,omitempty" doc:"picks one by its name where an archive holds several"`
	Name     string    `json:"name,omitempty" doc:"a name to point at the world"`
}

// Registry names an image of a registry. Credentials are used for the one transfer, and
// neither kept nor logged; without any, root's transfers use the Docker config of the
// daemon's user, and others are anonymous.
type Registry struct {
	Ref       string `json:"ref" doc:"HOST/NAME:TAG or HOST/NAME@sha256:...; short forms mean docker.io"`
	Username  string `json:"username,omitempty"`
	Password  string `json:"password,omitempty"`
	Token     string `json:"token,omitempty" doc:"a bearer token, in the place of a name and password"`
	PlainHTTP bool   `json:"plain_http,omitempty" doc:"the registry speaks no TLS; one on loopback need not say so"`
}

// WorldName is a name to point at a world.
type WorldName struct {
	Name string `json:"name"`
}

// Collection says which worlds to remove. Those that an episode, a capture or a batch needs
// stay whatever it says.
type Collection struct {
	MaxBytes Size `json:"max_bytes,omitempty" doc:"what worlds may take in the end; 0 removes all that may go"`
	All      bool `json:"all,omitempty" doc:"also those that have a name"`
	DryRun   bool `json:"dry_run,omitempty" doc:"only tell"`
}

// Collected is what a collection did.
type Collected struct {
	Removed    []World `json:"removed"`
	FreedBytes int64   `json:"freed_bytes"`
	Bytes      int64   `json:"bytes" doc:"what worlds take now: contents of layers, each once, and blobs"`
	Needed     int     `json:"needed" doc:"worlds that stayed for an episode, a capture or a batch"`
	InUse      int     `json:"in_use"`
	Named      int     `json:"named" doc:"worlds that stayed because they have a name"`
}

// Debian asks for a minimal Debian with packages.
type Debian struct {
	Suite    string   `json:"suite"`
	Packages []string `json:"packages,omitempty"`
}

// Built is the answer to a build.
type Built struct {
	World   World `json:"world"`
	Hit     bool  `json:"hit" doc:"the cache had it: nothing was done"`
	Network bool  `json:"network" doc:"a step used the network"`
	// TookS is in seconds.
	TookS float64 `json:"took_s"`
	// Steps are the instructions of a Dockerfile that touched files.
	Steps []BuildStep `json:"steps,omitempty"`
}

// BuildStep is one instruction of a Dockerfile.
type BuildStep struct {
	Line    int             `json:"line"`
	Text    string          `json:"text" doc:"its first line"`
	Hit     bool            `json:"hit" doc:"the cache had it"`
	TookS   float64         `json:"took_s"`
	Network *NetworkSummary `json:"network,omitempty" doc:"what a RUN asked for"`
}

// Progress says how far long work is; Total is 0 where that is unknown.
type Progress struct {
	Step  string `json:"step"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
}

// BuildEvent is one line of a build's or import's stream: progress, then, last, built or
// an error.
type BuildEvent struct {
	Progress *Progress `json:"progress,omitempty"`
	Log      string    `json:"log,omitempty" doc:"text for people: instructions of a Dockerfile and what their commands write"`
	Built    *Built    `json:"built,omitempty"`
	Pushed   string    `json:"pushed,omitempty" doc:"of a push: the reference of the manifest"`
	Error    *Error    `json:"error,omitempty"`
}

// Policy is a named lock-down.
type Policy struct {
	Name        string         `json:"name"`
	Version     int            `json:"version" doc:"of its file, as the author counts"`
	Description string         `json:"description"`
	Hash        string         `json:"hash" doc:"of all that it means; recorded with every attempt"`
	BuiltIn     bool           `json:"built_in" doc:"false when an operator added it"`
	Network     string         `json:"network"`
	UID         uint32         `json:"uid"`
	GID         uint32         `json:"gid"`
	Defaults    PolicyLimits   `json:"defaults"`
	Env         []string       `json:"env"`
	Writable    []string       `json:"writable" doc:"beside the working directory"`
	Refusals    []string       `json:"refusals" doc:"what it refuses, for people"`
	Words       []PolicyWords  `json:"words" doc:"what it means, for people; all that is not named is denied"`
	Spec        map[string]any `json:"spec,omitempty" doc:"the OCI runtime-spec with the default limits"`
}

// PolicyWords explain one topic of a policy.
type PolicyWords struct {
	Topic string   `json:"topic"`
	Lines []string `json:"lines"`
}

// PolicyLimits are a policy's defaults.
type PolicyLimits struct {
	CPUs   float64 `json:"cpus"`
	Memory int64   `json:"memory"`
	Disk   int64   `json:"disk"`
	Inodes int64   `json:"inodes"`
	Pids   int64   `json:"pids"`
}

// Policies is a list of policies.
type Policies struct {
	Policies []Policy `json:"policies"`
}

// VersionInfo says what answers.
type VersionInfo struct {
	Version  string   `json:"version"`
	API      string   `json:"api"`
	Launcher Launcher `json:"launcher"`
	PID      int      `json:"pid"`
	UptimeS  float64  `json:"uptime_s"`
}

// Launcher is how sandboxes are started and what that can do here.
type Launcher struct {
	Name    string `json:"name"`
	Runtime string `json:"runtime,omitempty" doc:"the program behind the launcher, with its version"`
	UserNS  bool   `json:"userns" doc:"whether a sandbox's users are those of a user namespace of its own"`
	Root    bool   `json:"root" doc:"whether user 0 has the policy's capabilities; otherwise it is an ordinary user that owns the world's files"`
	Cgroup  string `json:"cgroup"`
	PTY     bool   `json:"pty"`
	Freeze  bool   `json:"freeze"`
	Listen  bool   `json:"listen" doc:"whether endpoints and the proxy of allow-listed hosts work"`
	PerCall bool   `json:"per_call" doc:"whether usage and limits are told for each call, and whatever a call started is found"`
	Disk    string `json:"disk" doc:"what large writable layers stand on: project, loop, btrfs, none (no limit) or, without a disk, tmpfs"`
}

// Health says whether the daemon takes work.
type Health struct {
	Status string `json:"status" doc:"ok or draining"`
}

// Capacity is what episodes may reserve of the host, and what they have.
type Capacity struct {
	CPUs            float64 `json:"cpus"`
	MemoryBytes     int64   `json:"memory_bytes"`
	UsedCPUs        float64 `json:"used_cpus"`
	UsedMemoryBytes int64   `json:"used_memory_bytes"`
	Queued          int     `json:"queued"`
	MaxQueue        int     `json:"max_queue"`
	Live            int     `json:"live"`
	Draining        bool    `json:"draining"`
	// Blanks and Warm are the sandboxes made ahead that wait to be used, begun ones and whole ones.
	Blanks int `json:"blanks"`
	Warm   int `json:"warm"`
	// Stock says how many are kept.
	Stock Stock `json:"stock"`
	// Sandboxes are the names of those that the daemon has; null for all but root.
	Sandboxes []string `json:"sandboxes" doc:"null for all but root"`
}

// Stock says how many sandboxes are kept ready ahead of need.
type Stock struct {
	Blanks    int         `json:"blanks" doc:"begun ones that fit any world, at most"`
	Warm      int         `json:"warm" doc:"whole ones of each world, policy and limits, at most"`
	WarmTotal int         `json:"warm_total" doc:"whole ones together, at most"`
	IdleS     float64     `json:"idle_s" doc:"how long a whole one waits for an episode"`
	Kinds     []StockKind `json:"kinds" doc:"null for all but root"`
}

// StockKind is the whole sandboxes kept ready for one world, policy and limits.
type StockKind struct {
	World      string `json:"world"`
	PolicyHash string `json:"policy_hash"`
	Limits     Limits `json:"limits"`
	Warm       int    `json:"warm" doc:"those that wait now"`
	Low        int    `json:"low" doc:"when fewer wait, they are filled up to high"`
	High       int    `json:"high"`
	Expected   int    `json:"expected" doc:"how many the next episodes of batches will need"`
}
