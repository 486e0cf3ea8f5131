// Package policies holds the named lock-downs and turns one, with limits, into an OCI
// runtime-spec. It touches nothing.
package policies

import (
	"errors"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Limits are the bounds of one sandbox. In a request a field that is zero is unset; what
// Policy.Effective returns has all of them set.
type Limits struct {
	CPUs        float64 `json:"cpus"`
	MemoryBytes int64   `json:"memory"`
	DiskBytes   int64   `json:"disk"`
	Inodes      int64   `json:"inodes"`
	Pids        int64   `json:"pids"`
}

// Host is what limits are clamped to.
type Host struct {
	CPUs        float64
	MemoryBytes int64
}

// Set is the policies of this binary.
type Set struct{}

// Policy is one named lock-down. It is immutable.
type Policy struct{}

// Load reads and checks the embedded policies.
func Load() (*Set, error) { return nil, errors.New("not built yet") }

// Get returns the policy of that name or an *UnknownError.
func (s *Set) Get(name string) (*Policy, error) { return nil, &UnknownError{Name: name} }

// Names lists the policies in order.
func (s *Set) Names() []string { return nil }

// Name is the policy's name.
func (p *Policy) Name() string { return "" }

// Description says in a sentence what the policy is for.
func (p *Policy) Description() string { return "" }

// Hash identifies the policy's content: "sha256:" and 64 hex digits.
func (p *Policy) Hash() string { return "" }

// Network is the network that a sandbox has: always "none" so far.
func (p *Policy) Network() string { return "" }

// User is whom a call runs as where neither the call nor the world says.
func (p *Policy) User() (uid, gid uint32) { return 0, 0 }

// CheckUser answers a *RefusalError where the policy does not let uid run.
func (p *Policy) CheckUser(uid uint32) error { return nil }

// Umask is the file mode creation mask of calls.
func (p *Policy) Umask() uint32 { return 0 }

// Env is the pinned environment, as KEY=value, sorted. What the world and the call set
// overrides it. HOME is not in it: it is the user's home directory, see Home.
func (p *Policy) Env(envSeed uint32) []string { return nil }

// Home is HOME for a user whose passwd entry names home ("" when there is none).
func (p *Policy) Home(uid uint32, home string) string { return "" }

// Writable lists the directories that a sandbox may write, given its working directory;
// "/" alone is everything.
func (p *Policy) Writable(workdir string) []string { return nil }

// Effective fills what asked leaves unset with the policy's defaults and lowers what is
// above the host's to the host's. clamped names the fields that were lowered. A negative
// or undefined number is a *LimitError.
func (p *Policy) Effective(asked Limits, host Host) (eff Limits, clamped []string, err error) {
	return asked, nil, nil
}

// Spec is the lock-down for these limits. Memory in Linux.Resources is
// MemoryBytes + DiskBytes, since the upper is a tmpfs charged to the sandbox. A mount of
// type bind whose source equals its destination names a directory of the world itself
// that stays writable under a read-only root.
func (p *Policy) Spec(eff Limits, hostname, workdir string) (*specs.Spec, error) {
	return nil, errors.New("not built yet")
}
