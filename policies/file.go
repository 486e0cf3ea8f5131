package policies

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// schemaVersion is the version of the policy files that this code reads.
const schemaVersion = 1

// file is a policy file. Every field is required; unknown ones are refused.
type file struct {
	Schema int `json:"schema"`
	// Version counts the changes of the policy under its name, from 1.
	Version     int      `json:"version"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	User        fileUser `json:"user"`
	// Runtime, when set, is the one that a launcher must start sandboxes by.
	Runtime string `json:"runtime,omitempty"`
	// RefuseRoot refuses to run anything as uid 0.
	RefuseRoot   bool     `json:"refuse_root"`
	Capabilities []string `json:"capabilities"`
	// Network is "none" or "allow-list"; Egress is there with the latter alone.
	Network string      `json:"network"`
	Egress  *fileEgress `json:"egress,omitempty"`
	// Root is "writable" or "read-only"; Writable are the directories that stay writable
	// under a read-only one, beside the working directory.
	Root     string     `json:"root"`
	Writable []string   `json:"writable"`
	Limits   fileLimits `json:"limits"`
	// Shm bounds /dev/shm.
	Shm     size               `json:"shm"`
	Rlimits map[string][2]size `json:"rlimits"`
	Umask   octal              `json:"umask"`
	// Environment is pinned; SeedVariables get the env seed in decimal.
	Environment   map[string]string `json:"environment"`
	SeedVariables []string          `json:"seed_variables"`
	MaskedPaths   []string          `json:"masked_paths"`
	ReadonlyPaths []string          `json:"readonly_paths"`
	Seccomp       fileSeccomp       `json:"seccomp"`
}

type fileUser struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

type fileLimits struct {
	CPUs   float64 `json:"cpus"`
	Memory size    `json:"memory"`
	Disk   size    `json:"disk"`
	Inodes int64   `json:"inodes"`
	Pids   int64   `json:"pids"`
}

type fileSeccomp struct {
	// Base is the allow list that the rest takes from: "moby".
	Base string `json:"base"`
	// Allow are system calls that are allowed beside the base's: of extraCalls alone.
	Allow []string `json:"allow,omitempty"`
	// Deny are system calls of the base that are not allowed here.
	Deny []string `json:"deny"`
	// SocketFamilies are the address families that socket(2) may ask for; netlink has
	// its own list, by protocol.
	SocketFamilies   []string `json:"socket_families"`
	NetlinkProtocols []string `json:"netlink_protocols"`
}

// size is a number of bytes, in JSON a number or a text such as "512MiB".
type size int64

var sizeForm = regexp.MustCompile(`^([0-9]{1,9})(KiB|MiB|GiB)$`)

// UnmarshalJSON reads a number of bytes or a text with a binary unit.
func (s *size) UnmarshalJSON(b []byte) error {
	var n int64
	if json.Unmarshal(b, &n) == nil && n >= 0 {
		*s = size(n)
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("size %s: want a number of bytes or a text such as \"512MiB\"", b)
	}
	m := sizeForm.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("size %q: want a number of bytes or a text such as \"512MiB\"", text)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return fmt.Errorf("size %q: %w", text, err)
	}
	shift := map[string]uint{"KiB": 10, "MiB": 20, "GiB": 30}[m[2]]
	if n > math.MaxInt64>>shift {
		return fmt.Errorf("size %q: too large", text)
	}
	*s = size(n << shift)
	return nil
}

// octal is file mode bits, in JSON a text of octal digits.
type octal uint32

// UnmarshalJSON reads a text of octal digits.
func (o *octal) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("mode %s: want a text of octal digits", b)
	}
	n, err := strconv.ParseUint(text, 8, 12)
	if err != nil {
		return fmt.Errorf("mode %q: want octal digits", text)
	}
	*o = octal(n)
	return nil
}

// parse reads one policy file and checks everything that can be checked without
// building a spec.
func parse(data []byte) (*file, error) {
	// A field that is missing must not pass as its zero value: no capabilities list would
	// read as "none", but no limits as "no limits".
	var present map[string]json.RawMessage
	if err := json.Unmarshal(data, &present); err != nil {
		return nil, err
	}
	if err := checkTwice(json.NewDecoder(bytes.NewReader(data))); err != nil {
		return nil, err
	}
	if err := checkEgressFields(present["egress"]); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	f := new(file)
	if err := dec.Decode(f); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the end of the policy")
	}
	for _, field := range jsonFields {
		if _, ok := present[field]; !ok {
			return nil, fmt.Errorf("field %s is missing", field)
		}
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

// checkTwice refuses a field that is given twice, in whatever case: the reader of a file
// may see the first and the decoder takes the last.
func checkTwice(dec *json.Decoder) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	open, nested := token.(json.Delim)
	if !nested {
		return nil
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '{' {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			name := strings.ToLower(fmt.Sprint(key))
			if seen[name] {
				return fmt.Errorf("field %v is given twice", key)
			}
			seen[name] = true
		}
		if err := checkTwice(dec); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

var jsonFields = []string{
	"schema", "version", "name", "description", "user", "refuse_root", "capabilities", "network", "root", "writable", "limits",
	"shm", "rlimits", "umask", "environment", "seed_variables", "masked_paths", "readonly_paths", "seccomp",
}

var (
	nameForm     = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	capForm      = regexp.MustCompile(`^CAP_[A-Z_]{3,30}$`)
	variableForm = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)
	// runtimes are what a policy may insist on.
	runtimes    = []string{"crun", "runc", "runsc"}
	rlimitNames = []string{"core", "memlock", "msgqueue", "nofile", "stack"}
	// Capabilities that reach beyond the sandbox's own files and processes, or that make
	// the kernel's rarely used parts reachable. No policy may give them.
	forbiddenCaps = []string{
		"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_BOOT", "CAP_SYS_TIME", "CAP_SYS_PTRACE",
		"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON", "CAP_DAC_READ_SEARCH", "CAP_MKNOD", "CAP_SYSLOG",
		"CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_LINUX_IMMUTABLE", "CAP_SYS_RESOURCE",
	}
	// extraCalls may be allowed by a policy beside the base: package managers of Alpine run
	// every script after a chroot(2).
	extraCalls = []string{"chroot"}
)

func (f *file) check() error {
	switch {
	case f.Schema != schemaVersion:
		return fmt.Errorf("schema %d: this version reads schema %d", f.Schema, schemaVersion)
	case f.Version < 1:
		return fmt.Errorf("version %d: want 1 or more", f.Version)
	case !nameForm.MatchString(f.Name):
		return fmt.Errorf("name %q: want lower case letters, digits and dashes", f.Name)
	case f.Description == "":
		return errors.New("description is empty")
	case f.Runtime != "" && !slices.Contains(runtimes, f.Runtime):
		return fmt.Errorf("runtime %q: want one of %s", f.Runtime, strings.Join(runtimes, ", "))
	case f.Network != "none" && f.Network != "allow-list":
		return fmt.Errorf("network %q: want \"none\" or \"allow-list\"", f.Network)
	case (f.Network == "allow-list") != (f.Egress != nil):
		return errors.New("egress: want it with the network \"allow-list\", and with no other")
	case f.Root != "writable" && f.Root != "read-only":
		return fmt.Errorf("root %q: want \"writable\" or \"read-only\"", f.Root)
	case f.Root == "writable" && len(f.Writable) > 0:
		return errors.New("writable: means nothing under a writable root")
	case f.RefuseRoot && f.User.UID == 0:
		return errors.New("user: is 0, which refuse_root refuses")
	case f.Seccomp.Base != "moby":
		return fmt.Errorf("seccomp base %q: want \"moby\"", f.Seccomp.Base)
	case f.Shm <= 0:
		return errors.New("shm: want more than 0")
	}
	for _, c := range f.Capabilities {
		if !capForm.MatchString(c) || slices.Contains(forbiddenCaps, c) {
			return fmt.Errorf("capability %q: not one that a policy may give", c)
		}
	}
	if _, _, err := f.limits().fill(Limits{}, Host{}); err != nil {
		return err
	}
	for _, name := range f.Seccomp.Allow {
		if !slices.Contains(extraCalls, name) {
			return fmt.Errorf("seccomp allow %q: want one of %v", name, extraCalls)
		}
	}
	return errors.Join(f.checkRlimits(), f.checkPaths(), f.checkEnvironment(), f.Egress.check())
}

func (f *file) checkRlimits() error {
	for _, name := range rlimitNames {
		pair, ok := f.Rlimits[name]
		if !ok {
			return fmt.Errorf("rlimit %s is missing", name)
		}
		if pair[0] > pair[1] {
			return fmt.Errorf("rlimit %s: the soft limit is above the hard one", name)
		}
	}
	if len(f.Rlimits) != len(rlimitNames) {
		return fmt.Errorf("rlimits: want %s", strings.Join(rlimitNames, ", "))
	}
	return nil
}

func (f *file) checkPaths() error {
	for _, p := range slices.Concat(f.Writable, f.MaskedPaths, f.ReadonlyPaths) {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return fmt.Errorf("path %q: want a clean absolute path below /", p)
		}
	}
	return nil
}

func (f *file) checkEnvironment() error {
	for k, v := range f.Environment {
		if !variableForm.MatchString(k) || strings.ContainsRune(v, 0) || k == "HOME" {
			return fmt.Errorf("environment %q: not a variable that can be pinned", k)
		}
	}
	for _, k := range f.SeedVariables {
		if _, twice := f.Environment[k]; twice || !variableForm.MatchString(k) {
			return fmt.Errorf("seed variable %q: not a variable that can be set", k)
		}
	}
	return nil
}

func (f *file) limits() Limits {
	return Limits{
		CPUs: f.Limits.CPUs, MemoryBytes: int64(f.Limits.Memory), DiskBytes: int64(f.Limits.Disk),
		Inodes: f.Limits.Inodes, Pids: f.Limits.Pids,
	}
}
