// Package overlay owns worlds and what episodes change in them: it builds and seals
// layers, names worlds, hands out forks, and reads an overlay's upper directory back as
// a capture. It mounts nothing and runs nothing.
package overlay

import (
	"context"
	"encoding/json"
	"os"
	"time"
)

// World is a sealed, immutable OCI image.
type World struct {
	// ID is the image id: "sha256:" + digest of the config.
	ID string `json:"id"`
	// Layers are the diffIDs, the lowest first, as in the image config.
	Layers []string `json:"layers"`
	Config Config   `json:"config"`
	// Names are the names that point here.
	Names []string `json:"names,omitempty"`
	// SizeBytes and Entries count the layers' contents.
	SizeBytes int64 `json:"size_bytes"`
	Entries   int64 `json:"entries"`
	// Recipe says what it was built from, for people: "dir", "tar", "busybox", "debian:bookworm", "oci".
	Recipe string `json:"recipe"`
	// Key is the build-cache key, empty for imports.
	Key     string    `json:"key,omitempty"`
	Created time.Time `json:"created"`
	// Branched is how many of the layers, the topmost, were left by branches: see
	// SealInput.Branch.
	Branched int `json:"branched,omitempty"`
	// ConfigBytes is the size of the image config.
	ConfigBytes int64 `json:"config_bytes"`
	// Dropped says what of an imported image the world does not have: attributes that
	// mean nothing here. At most 33 lines for each layer.
	Dropped []string `json:"dropped,omitempty"`
}

// Config is what a world says about the programs that run in it.
type Config struct {
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	// User is as in an image config: name or uid, optionally :group.
	User       string   `json:"user,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Tools are the tools that the world itself defines (label run.paddock.tools).
	Tools []Tool `json:"tools,omitempty"`
	// Setup, when set, is run once in every fresh fork before the agent's phase.
	Setup []string `json:"setup,omitempty"`
	ImageWords
}

// ImageWords is what an image says beside: kept, and given back to who asks, and of no
// meaning to an episode.
type ImageWords struct {
	Labels map[string]string `json:"labels,omitempty"`
	// ExposedPorts are as "80/tcp", sorted like Volumes, which are paths.
	ExposedPorts []string     `json:"exposed_ports,omitempty"`
	Volumes      []string     `json:"volumes,omitempty"`
	StopSignal   string       `json:"stop_signal,omitempty"`
	Healthcheck  *Healthcheck `json:"healthcheck,omitempty"`
	// Shell is what the shell form of a Dockerfile's commands is run by.
	Shell   []string `json:"shell,omitempty"`
	OnBuild []string `json:"on_build,omitempty"`
}

// Healthcheck is how an engine would ask a container whether it works.
type Healthcheck struct {
	// Test begins with NONE, CMD or CMD-SHELL.
	Test          []string      `json:"test,omitempty"`
	Interval      time.Duration `json:"interval,omitempty"`
	Timeout       time.Duration `json:"timeout,omitempty"`
	StartPeriod   time.Duration `json:"start_period,omitempty"`
	StartInterval time.Duration `json:"start_interval,omitempty"`
	Retries       int           `json:"retries,omitempty"`
}

// Tool is a command of the world that an agent may call by name. Its arguments arrive
// as one JSON object on stdin.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON schema
	Command     []string        `json:"command"`
	TimeoutS    float64         `json:"timeout_s,omitempty"`
}

// Recipe is what a world is built from. Exactly one of Dir, Tar, Busybox, Debian is set.
type Recipe struct {
	// Base is a world's id or name to put the layer on; empty is none.
	Base string `json:"base,omitempty"`
	// Dir is a host directory whose contents become the layer, under Into.
	Dir string `json:"dir,omitempty"`
	// Tar is a host file: plain, gzip or zstd, told apart by content.
	Tar string `json:"tar,omitempty"`
	// Busybox is the base recipe from the host's static busybox.
	Busybox bool `json:"busybox,omitempty"`
	// Debian is the base recipe made by mmdebstrap.
	Debian *Debian `json:"debian,omitempty"`
	// Into is the directory inside the world that Dir's or Tar's contents go to; "/" by default.
	Into string `json:"into,omitempty"`
	// Ignore are patterns (as in .dockerignore) of a Dir left out.
	Ignore []string `json:"ignore,omitempty"`
	// Config, where set, replaces what the base says, field by field.
	Config Config `json:"config,omitzero"`
	// Version is a salt for the cache key.
	Version string `json:"version,omitempty"`
	// Name to point at the result; optional.
	Name string `json:"name,omitempty"`
	// Cache is "auto" (default), "off" or "refresh".
	Cache string `json:"cache,omitempty"`
}

// Debian asks for a minimal Debian with packages.
type Debian struct {
	Suite    string   `json:"suite"`
	Packages []string `json:"packages,omitempty"`
}

// Built is the answer to a build.
type Built struct {
	World World `json:"world"`
	// Hit says that nothing was done: the cache had it.
	Hit bool `json:"hit"`
	// Network says that a step of the recipe used the network.
	Network bool          `json:"network"`
	Took    time.Duration `json:"took"`
}

// Collection says which worlds to remove: see Store.Collect.
type Collection struct {
	// MaxBytes is what worlds may take in the end; 0 removes all that may go.
	MaxBytes int64
	// All lets worlds that have a name go as well.
	All bool
	// DryRun only tells what would go.
	DryRun bool
	// Needed lists the worlds, by id or name, that must stay. It is asked once, after the
	// collection began: what is forked from then on stays too.
	Needed func(ctx context.Context) ([]string, error)
}

// Collected is what a collection did.
type Collected struct {
	Removed []World
	// FreedBytes were taken by Removed and downloads, Bytes are taken now: contents of
	// layers, each once, and blobs.
	FreedBytes int64
	Bytes      int64
	// Needed, InUse and Named are how many worlds stayed for that reason.
	Needed, InUse, Named int
}

// Progress tells how far long work is. Total is 0 when unknown.
type Progress func(step string, done, total int64)

// ChangeKind says what an episode did to a path.
type ChangeKind string

// The kinds of change. TypeChanged is a path that was one type in the world and is
// another now.
const (
	Created     ChangeKind = "created"
	Modified    ChangeKind = "modified"
	Deleted     ChangeKind = "deleted"
	TypeChanged ChangeKind = "type_changed"
)

// Change is one path that differs from the world.
type Change struct {
	// Path is absolute inside the world, raw bytes.
	Path string     `json:"-"`
	Kind ChangeKind `json:"kind"`
	// Type is as sandbox.FileType's words: file, dir, symlink, fifo, socket, char, block; empty when deleted.
	Type   string `json:"type,omitempty"`
	Mode   uint32 `json:"mode,omitempty"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of a regular file's bytes, hex
	Target string `json:"-"`                // of a symlink, raw bytes
	// Opaque: a directory that hides everything the world had under it.
	Opaque bool `json:"opaque,omitempty"`
	// LinkedTo is the first path, in order, of the same hard-link set; empty for that one itself.
	LinkedTo string `json:"-"`
	Rdev     uint64 `json:"rdev,omitempty"`
	// ModTime is in no digest; a restored tree has it again.
	ModTime time.Time         `json:"mtime,omitzero"`
	Xattrs  map[string][]byte `json:"xattrs,omitempty"`
	// Offset is where the bytes lie in the pack; -1 when they were not stored.
	Offset int64 `json:"offset"`
}

// Capture is what an episode changed, from its upper directory alone.
type Capture struct {
	Changes []Change `json:"changes"`
	// State and StateFull are the digests of semantics section 5, "sha256:...".
	State     string `json:"state"`
	StateFull string `json:"state_full"`
	// Bytes is the sum of the sizes of changed files, Stored what the pack holds.
	Bytes  int64 `json:"bytes"`
	Stored int64 `json:"stored"`
	// Rescorable: the pack holds everything, so the end state can be made again.
	Rescorable bool `json:"rescorable"`
	// Truncated: the bound on entries was reached; Changes and the digests cover the
	// first ones in path order only.
	Truncated bool          `json:"truncated,omitempty"`
	Took      time.Duration `json:"took"`
}

// CaptureInput says what to capture and where to keep the bytes.
type CaptureInput struct {
	// Upper is the fork's upper directory; nothing may be writing to it.
	Upper *os.File
	// HostID is what to subtract from owners.
	HostID uint32
	// Pack is the path of the pack file to make (tmp, fsync, rename); empty keeps no bytes.
	// When there are none to keep, no file is made.
	Pack string
	// Passing says that the pack need not outlive a crash, so it is not synced.
	Passing bool
	// MaxBytes bounds what the pack may hold, MaxEntries the changes listed; 0 is the default.
	MaxBytes   int64
	MaxEntries int64
}

// Defaults of CaptureInput.
const (
	DefaultCaptureBytes   = 1 << 30
	DefaultCaptureEntries = 1_000_000
)
