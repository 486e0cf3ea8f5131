// Package policies holds the named lock-downs and turns one, with limits, into an OCI
// runtime-spec. It touches nothing: the same policy and limits give the same spec on
// every host of an architecture.
//
// A policy is a file of data beside this code (default.json and its siblings), checked when
// it is loaded: unknown and missing fields, capabilities that no sandbox may have, and
// system calls that the base profile does not know are refused. Operators add files of
// their own (LoadWith), which are held to the same checks and to a floor.
package policies

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Set is the policies of this binary and those that an operator added.
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
	added   bool
}

// Bounds of what an operator adds.
const (
	maxFiles    = 256
	maxFileSize = 256 << 10
)

// Load reads and checks the embedded policies.
func Load() (*Set, error) { return load(embedded, runtime.GOARCH) }

// LoadWith is Load with the policies of an operator's directory beside the embedded ones.
// Every file in it is a policy, NAME.json; those whose names begin with a dot are passed
// over. A file that is no whole policy, or that takes an embedded one's name, is an error
// that names it, so that no policy is ever less than what its file says.
func LoadWith(dir fs.FS) (*Set, error) {
	s, err := Load()
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	if len(entries) > maxFiles {
		return nil, fmt.Errorf("%d files: at most %d policies can be added", len(entries), maxFiles)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		p, err := s.add(dir, e.Name(), runtime.GOARCH)
		if err != nil {
			return nil, err
		}
		p.added = true
	}
	return s, nil
}

func load(files fs.FS, goarch string) (*Set, error) {
	names, err := fs.Glob(files, "*.json")
	if err != nil {
		return nil, err
	}
	s := &Set{byName: map[string]*Policy{}}
	for _, name := range names {
		if _, err := s.add(files, name, goarch); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Set) add(files fs.FS, name, goarch string) (*Policy, error) {
	p, err := readPolicy(files, name, goarch)
	if err != nil {
		return nil, fmt.Errorf("policy file %s: %w", name, err)
	}
	if _, taken := s.byName[p.file.Name]; taken {
		return nil, fmt.Errorf("policy file %s: policy %s is built in; give yours another name", name, p.file.Name)
	}
	s.byName[p.file.Name] = p
	s.names = slices.Sorted(maps.Keys(s.byName))
	return p, nil
}

func readPolicy(files fs.FS, name, goarch string) (*Policy, error) {
	if path.Ext(name) != ".json" {
		return nil, errors.New("a policy's file is called NAME.json")
	}
	// Opened before it is known to be a file, a FIFO would hold the daemon's start.
	info, err := fs.Stat(files, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("has more than %d bytes", maxFileSize)
	}
	p, err := newPolicy(data, goarch)
	if err != nil {
		return nil, err
	}
	if p.file.Name+".json" != name {
		return nil, fmt.Errorf("its name is %q", p.file.Name)
	}
	return p, nil
}

// Check reads one policy file as LoadWith does, whatever the file is called.
func Check(data []byte) (*Policy, error) { return newPolicy(data, runtime.GOARCH) }

func newPolicy(data []byte, goarch string) (*Policy, error) {
	f, err := parse(data)
	if err != nil {
		return nil, err
	}
	p := &Policy{file: f, data: bytes.Clone(data)}
	if p.seccomp, err = f.Seccomp.profile(goarch); err != nil {
		return nil, err
	}
	if err := f.checkFloor(p.seccomp); err != nil {
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

// Version counts the changes of the policy's file, as its author says; Hash is what counts.
func (p *Policy) Version() int { return p.file.Version }

// BuiltIn says whether the policy is one of the binary, not of LoadWith's directory.
func (p *Policy) BuiltIn() bool { return !p.added }

// Description says in a sentence what the policy is for.
func (p *Policy) Description() string { return p.file.Description }

// Hash identifies the policy's content, the seccomp profile it ends in included:
// "sha256:" and 64 hex digits.
func (p *Policy) Hash() string { return p.hash }

// Data is the policy's file, in JSON, for people to read.
func (p *Policy) Data() json.RawMessage { return bytes.Clone(p.data) }

// Runtime is the runtime that sandboxes of this policy must be started by, such as runsc; ""
// is any launcher.
func (p *Policy) Runtime() string { return p.file.Runtime }

// Network is the network that a sandbox has: "none", or "allow-list", which Egress describes.
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
