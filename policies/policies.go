// Package policies holds the named lock-downs and turns one, with limits, into an OCI
// runtime-spec. It touches nothing: the same policy and limits give the same spec on
// every host of an architecture.
//
// A policy is a file of data beside this code (default.json, strict.json), checked when
// it is loaded: unknown and missing fields, capabilities that no sandbox may have, and
// system calls that the base profile does not know are refused.
package policies

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

//go:embed *.json
var embedded embed.FS

// Set is the policies of this binary.
type Set struct {
	byName map[string]*Policy
	names  []string
}

// Policy is one named lock-down. It is immutable.
type Policy struct {
	file    *file
	data    []byte
	seccomp *specs.LinuxSeccomp
	hash    string
}

// Load reads and checks the embedded policies.
func Load() (*Set, error) { return load(embedded, runtime.GOARCH) }

func load(files fs.FS, goarch string) (*Set, error) {
	names, err := fs.Glob(files, "*.json")
	if err != nil {
		return nil, err
	}
	s := &Set{byName: map[string]*Policy{}}
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		p, err := newPolicy(data, goarch)
		if err != nil {
			return nil, fmt.Errorf("policy file %s: %w", name, err)
		}
		if p.file.Name+".json" != name {
			return nil, fmt.Errorf("policy file %s: its name is %q", name, p.file.Name)
		}
		s.byName[p.file.Name] = p
	}
	s.names = slices.Sorted(maps.Keys(s.byName))
	return s, nil
}

func newPolicy(data []byte, goarch string) (*Policy, error) {
	f, err := parse(data)
	if err != nil {
		return nil, err
	}
	p := &Policy{file: f, data: bytes.Clone(data)}
	if p.seccomp, err = f.Seccomp.profile(goarch); err != nil {
		return nil, err
	}
	// The spec is part of the hash because the base profile comes from a library: a newer
	// one is another lock-down though the file is the same.
	spec, err := p.Spec(f.limits(), "hash", "/hash")
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(struct {
		File *file
		Spec *specs.Spec
	}{f, spec})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	p.hash = "sha256:" + hex.EncodeToString(sum[:])
	return p, nil
}

// Get returns the policy of that name or an *UnknownError.
func (s *Set) Get(name string) (*Policy, error) {
	p, ok := s.byName[name]
	if !ok {
		return nil, &UnknownError{Name: name, Known: s.Names()}
	}
	return p, nil
}

// Names lists the policies in order.
func (s *Set) Names() []string { return slices.Clone(s.names) }

// Name is the policy's name.
func (p *Policy) Name() string { return p.file.Name }

// Description says in a sentence what the policy is for.
func (p *Policy) Description() string { return p.file.Description }

// Hash identifies the policy's content, the seccomp profile it ends in included:
// "sha256:" and 64 hex digits.
func (p *Policy) Hash() string { return p.hash }

// Data is the policy's file, in JSON, for people to read.
func (p *Policy) Data() json.RawMessage { return bytes.Clone(p.data) }

// Network is the network that a sandbox has: always "none" so far.
func (p *Policy) Network() string { return p.file.Network }

// User is whom a call runs as where neither the call nor the world says.
func (p *Policy) User() (uid, gid uint32) { return p.file.User.UID, p.file.User.GID }

// Umask is the file mode creation mask of calls.
func (p *Policy) Umask() uint32 { return uint32(p.file.Umask) }

// Defaults are the limits of a request that sets none.
func (p *Policy) Defaults() Limits { return p.file.limits() }

// Env is the pinned environment, as KEY=value, sorted. What the world and the call set
// overrides it. HOME is not in it: it is the user's home directory, see Home.
func (p *Policy) Env(envSeed uint32) []string {
	env := make([]string, 0, len(p.file.Environment)+len(p.file.SeedVariables))
	for k, v := range p.file.Environment {
		env = append(env, k+"="+v)
	}
	for _, k := range p.file.SeedVariables {
		env = append(env, k+"="+strconv.FormatUint(uint64(envSeed), 10))
	}
	slices.Sort(env)
	return env
}

// Home is HOME for a user whose passwd entry names home ("" when there is none): that,
// else /root for uid 0 and /tmp, which every policy lets it write, for all others.
func (p *Policy) Home(uid uint32, home string) string {
	switch {
	case path.IsAbs(home) && !strings.ContainsRune(home, 0):
		return home
	case uid == 0:
		return "/root"
	}
	return "/tmp"
}

// Writable lists the directories that a sandbox may write, given its working directory;
// "/" alone is everything. A working directory of / adds nothing: it would undo the
// read-only root.
func (p *Policy) Writable(workdir string) []string {
	if p.file.Root == "writable" {
		return []string{"/"}
	}
	dirs := slices.Clone(p.file.Writable)
	if w := path.Clean(workdir); path.IsAbs(w) && w != "/" {
		dirs = append(dirs, w)
	}
	slices.Sort(dirs)
	// A directory below another of the list is covered by it, and a second mount there
	// would only be in the way.
	var kept []string
	for _, d := range dirs {
		if !slices.ContainsFunc(kept, func(k string) bool { return within(k, d) }) {
			kept = append(kept, d)
		}
	}
	return kept
}

// Effective fills what asked leaves unset with the policy's defaults and lowers what is
// above the host's to the host's. clamped names the fields that were lowered. A negative
// or undefined number, or one too small to start with, is a *LimitError.
func (p *Policy) Effective(asked Limits, host Host) (eff Limits, clamped []string, err error) {
	return p.file.limits().fill(asked, host)
}

// within says whether p is dir or below it; both are clean and absolute.
func within(dir, p string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
