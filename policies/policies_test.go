package policies

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-run/paddock/internal/golden"
)

func mustLoad(t *testing.T) *Set {
	t.Helper()
	s, err := load(embedded, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustGet(t *testing.T, name string) *Policy {
	t.Helper()
	p, err := mustLoad(t).Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLoadWorksOnThisHost(t *testing.T) {
	t.Parallel()
	s, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Names(), []string{"build", "default", "gvisor", "networked-allowlist", "strict"}; !slices.Equal(got, want) {
		t.Errorf("Names() = %v, want %v", got, want)
	}
}

func TestUnknownPolicyNamesTheKnownOnes(t *testing.T) {
	t.Parallel()
	_, err := mustLoad(t).Get("none")
	var unknown *UnknownError
	if !errors.As(err, &unknown) || unknown.Name != "none" {
		t.Fatalf("Get() = %v, want an *UnknownError for none", err)
	}
	if got, want := err.Error(), `unknown policy "none"; there are: build, default, gvisor, networked-allowlist, strict`; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}

// The spec of each policy is read in review: a change of the base profile, too, shows here.
func TestSpecIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	for _, name := range mustLoad(t).Names() {
		p := mustGet(t, name)
		spec, err := p.Spec(p.Defaults(), "paddock", "/workdir")
		if err != nil {
			t.Fatal(err)
		}
		golden.JSON(t, filepath.Join("testdata", name+".golden.json"), spec)
	}
}

func allowedNames(p *Policy) map[string]bool {
	names := map[string]bool{}
	for _, c := range p.seccomp.Syscalls {
		if c.Action == specs.ActAllow {
			for _, n := range c.Names {
				names[n] = true
			}
		}
	}
	return names
}

func TestNoPolicyAllowsADangerousCall(t *testing.T) {
	t.Parallel()
	for _, name := range mustLoad(t).Names() {
		allowed := allowedNames(mustGet(t, name))
		for _, call := range append(slices.Clone(neverAllowed), "chroot") {
			if call == "chroot" && name == "build" {
				continue // its own root is all that it can leave
			}
			if allowed[call] {
				t.Errorf("policy %s allows %s", name, call)
			}
		}
		for call, why := range map[string]string{"clone3": "its flags cannot be checked", "sync": "it writes out the host's disks"} {
			if allowed[call] {
				t.Errorf("policy %s allows %s: %s", name, call, why)
			}
		}
	}
}

func TestStrictAllowsNothingThatDefaultRefuses(t *testing.T) {
	t.Parallel()
	lax, tight := mustGet(t, "default"), mustGet(t, "strict")
	more := allowedNames(lax)
	for call := range allowedNames(tight) {
		if !more[call] {
			t.Errorf("strict allows %s, default does not", call)
		}
	}
	for _, call := range []string{"ptrace", "process_vm_readv", "shmget", "mq_open", "io_setup", "personality"} {
		if !more[call] || allowedNames(tight)[call] {
			t.Errorf("%s: want it allowed by default and not by strict", call)
		}
	}
	if len(tight.file.Capabilities) != 0 {
		t.Errorf("strict gives capabilities %v", tight.file.Capabilities)
	}
}

func TestHashFollowsTheContent(t *testing.T) {
	t.Parallel()
	data, err := embedded.ReadFile("default.json")
	if err != nil {
		t.Fatal(err)
	}
	hash := func(data []byte) string {
		p, err := newPolicy(data, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		return p.Hash()
	}
	if got := mustGet(t, "default").Data(); !bytes.Equal(got, data) {
		t.Errorf("Data() = %s", got)
	}
	first := hash(data)
	if !strings.HasPrefix(first, "sha256:") || len(first) != 71 {
		t.Errorf("Hash() = %q", first)
	}
	if again := hash(append([]byte("\n"), data...)); again != first {
		t.Error("white space changes the hash")
	}
	if other := hash(bytes.Replace(data, []byte(`"pids": 512`), []byte(`"pids": 511`), 1)); other == first {
		t.Error("another limit gives the same hash")
	}
	if other := hash(bytes.Replace(data, []byte(`"vmsplice"`), []byte(`"vmsplice", "tee"`), 1)); other == first {
		t.Error("another denied call gives the same hash")
	}
}

func TestBadPolicyFilesAreRefused(t *testing.T) {
	t.Parallel()
	good, err := embedded.ReadFile("default.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown field", `"schema": 1,`, `"schema": 1, "privileged": true,`, `unknown field "privileged"`},
		{"unknown nested field", `"base": "moby",`, `"base": "moby", "permit": [],`, `unknown field "permit"`},
		{"a call that no policy may allow", `"base": "moby",`, `"base": "moby", "allow": ["mount"],`, `seccomp allow "mount"`},
		{"an allow list that is not there", `"network": "none"`, `"network": "allow-list"`, "egress: want it"},
		{"an allow list of nobody", `"network": "none",`, `"network": "none", "egress": {"port": 1, "allow": [], "grants": true, "refused_ranges": [], "limits": {"requests": 1, "requests_per_second": 1, "connections": 1, "bytes_up": 1, "bytes_down": 1, "head": 1024, "idle_s": 1, "life_s": 1}},`, "egress: want it"},
		{"missing field", `"network": "none",`, ``, "field network is missing"},
		{"other schema", `"schema": 1`, `"schema": 2`, "schema 2"},
		{"forbidden capability", `"CAP_KILL"`, `"CAP_SYS_ADMIN"`, "CAP_SYS_ADMIN"},
		{"no capability", `"CAP_KILL"`, `"kill"`, `"kill"`},
		{"network", `"network": "none"`, `"network": "host"`, `network "host"`},
		{"misspelt call", `"vmsplice"`, `"vmsplise"`, `"vmsplise"`},
		{"socket family", `"inet6"`, `"alg"`, `"alg"`},
		{"size", `"2GiB"`, `"2GB"`, `"2GB"`},
		{"negative limit", `"pids": 512`, `"pids": -1`, "limit pids: is negative"},
		{"rlimit", `"core": [0, 0],`, ``, "rlimit core is missing"},
		{"rlimit order", `[4096, 8192]`, `[8192, 4096]`, "rlimit nofile"},
		{"path", `"/proc/acpi"`, `"proc/acpi"`, `"proc/acpi"`},
		{"environment", `"TZ": "UTC"`, `"HOME": "/"`, `"HOME"`},
		{"root refused as default user", `"refuse_root": false`, `"refuse_root": true`, "refuse_root"},
	} {
		data := bytes.Replace(good, []byte(c.old), []byte(c.new), 1)
		if bytes.Equal(data, good) {
			t.Fatalf("%s: nothing replaced", c.name)
		}
		if _, err := newPolicy(data, "amd64"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: newPolicy() = %v, want an error with %q", c.name, err, c.want)
		}
	}
	if _, err := newPolicy(append(slices.Clone(good), "{}"...), "amd64"); err == nil {
		t.Error("text after the policy is accepted")
	}
	if _, err := load(fstest.MapFS{"other.json": {Data: good}}, "amd64"); err == nil {
		t.Error("a policy in a file of another name is accepted")
	}
}

// TestBadEgressIsRefused: what a policy of the network leaves out is not taken as "all may pass".
func TestBadEgressIsRefused(t *testing.T) {
	t.Parallel()
	good, err := embedded.ReadFile("networked-allowlist.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"no ranges", `"refused_ranges"`, `"other_ranges"`, "egress/refused_ranges is missing"},
		{"metadata reachable", `"169.254.0.0/16",`, ``, "169.254.169.254 is in none"},
		{"loopback reachable", `"127.0.0.0/8",`, ``, "127.0.0.1 is in none"},
		{"private IPv6 reachable", `"4000::/2",
      "8000::/1"`, `"4000::/2"`, "is in none"},
		{"mapped reachable by IPv6 alone", `"10.0.0.0/8",`, `"::ffff:10.0.0.0/104",`, "the range itself"},
		{"a range that is none", `"10.0.0.0/8"`, `"10.0.0.1/8"`, "the range itself"},
		{"no limit", `"requests": 20000,`, ``, "egress/limits/requests is missing"},
		{"limit of nothing", `"bytes_up": "1GiB"`, `"bytes_up": 0`, "egress/limits: want more than 0"},
		{"rate", `"requests_per_second": 50`, `"requests_per_second": 0`, "requests_per_second"},
		{"connections", `"connections": 32`, `"connections": 100000`, "egress/limits/connections"},
		{"head", `"head": "32KiB"`, `"head": "32MiB"`, "egress/limits/head"},
		{"no port", `"port": 3128`, `"port": 0`, "egress/port"},
		{"unknown field", `"grants": true`, `"grants": true, "all": true`, `unknown field "all"`},
		{"no egress", `"egress"`, `"regress"`, `unknown field "regress"`},
	} {
		data := bytes.Replace(good, []byte(c.old), []byte(c.new), 1)
		if bytes.Equal(data, good) {
			t.Fatalf("%s: nothing replaced", c.name)
		}
		if _, err := newPolicy(data, "amd64"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: newPolicy() = %v, want an error with %q", c.name, err, c.want)
		}
	}
	for _, name := range []string{"default", "strict"} {
		if e, ok := mustGet(t, name).Egress(); ok {
			t.Errorf("policy %s has a way out: %+v", name, e)
		}
	}
	if e, ok := mustGet(t, "networked-allowlist").Egress(); !ok || len(e.Allow) != 0 || !e.Grants || e.Limits.Life <= 0 || len(e.Refused) == 0 {
		t.Errorf("networked-allowlist: %+v, %v", e, ok)
	}
}

func TestEffectiveFillsAndClamps(t *testing.T) {
	t.Parallel()
	p := mustGet(t, "default")
	host := Host{CPUs: 2, MemoryBytes: 4 << 30}
	defaults := p.Defaults()
	defaults.DiskOn = DiskInMemory
	for _, c := range []struct {
		name    string
		asked   Limits
		want    Limits
		clamped []string
	}{
		{"nothing asked", Limits{}, defaults, nil},
		{"all asked", Limits{0.5, 1 << 30, 1 << 20, 100, 8, "floppy"}, Limits{0.5, 1 << 30, 1 << 20, 100, 8, DiskInMemory}, nil},
		{
			"all too much",
			Limits{math.MaxFloat64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, ""},
			Limits{2, 4 << 30, 4 << 30, 4 << 20, 1 << 22, DiskInMemory},
			[]string{"cpus", "memory", "disk", "inodes", "pids"},
		},
	} {
		got, clamped, err := p.Effective(c.asked, host)
		if err != nil || got != c.want || !slices.Equal(clamped, c.clamped) {
			t.Errorf("%s: Effective() = %+v, %v, %v, want %+v, %v", c.name, got, clamped, err, c.want, c.clamped)
		}
	}
	if got, clamped, err := p.Effective(Limits{CPUs: 8}, Host{CPUs: 2, MemoryBytes: 1 << 30}); err != nil ||
		got.CPUs != 2 || got.MemoryBytes != 1<<30 || !slices.Equal(clamped, []string{"cpus", "memory"}) {
		t.Errorf("a default above the host's: %+v, %v, %v", got, clamped, err)
	}
}

// A layer on the host's disk is bounded by that, not by memory, and is no part of it.
func TestLargeDiskLimitsGoToTheDisk(t *testing.T) {
	t.Parallel()
	p := mustGet(t, "default")
	host := Host{CPUs: 2, MemoryBytes: 4 << 30, Disk: HostDisk{Kind: "project", Above: 1 << 30, Bytes: 100 << 30}}
	for _, c := range []struct {
		asked, want int64
		on          string
		clamped     []string
	}{
		{1 << 20, 1 << 20, DiskInMemory, nil},
		{1 << 30, 1 << 30, DiskInMemory, nil},
		{1<<30 + 1, 1<<30 + 1, "project", nil},
		{50 << 30, 50 << 30, "project", nil},
		{500 << 30, 100 << 30, "project", []string{"disk"}},
	} {
		eff, clamped, err := p.Effective(Limits{MemoryBytes: 1 << 29, DiskBytes: c.asked}, host)
		if err != nil || eff.DiskBytes != c.want || eff.DiskOn != c.on || !slices.Equal(clamped, c.clamped) {
			t.Errorf("Effective(disk %d) = %d on %s, %v, %v; want %d on %s, %v", c.asked, eff.DiskBytes, eff.DiskOn, clamped, err, c.want, c.on, c.clamped)
		}
		spec, err := p.Spec(eff, "h", "/")
		if err != nil {
			t.Fatal(err)
		}
		memory := int64(1 << 29)
		if c.on == DiskInMemory {
			memory += c.want
		}
		if got := *spec.Linux.Resources.Memory.Limit; got != memory || *spec.Linux.Resources.Memory.Swap != memory {
			t.Errorf("disk %d on %s: a memory limit of %d, want %d", c.asked, c.on, got, memory)
		}
	}
}

func TestEffectiveRefusesWhatMeansNothing(t *testing.T) {
	t.Parallel()
	p := mustGet(t, "strict")
	for field, asked := range map[string][]Limits{
		"cpus":   {{CPUs: -1}, {CPUs: math.NaN()}, {CPUs: math.Inf(1)}, {CPUs: math.Inf(-1)}, {CPUs: 0.001}},
		"memory": {{MemoryBytes: -1}, {MemoryBytes: 4096}, {MemoryBytes: math.MinInt64}},
		"disk":   {{DiskBytes: -1}, {DiskBytes: 1}},
		"inodes": {{Inodes: -5}, {Inodes: 1}},
		"pids":   {{Pids: -1}, {Pids: 1}},
	} {
		for _, a := range asked {
			_, _, err := p.Effective(a, Host{CPUs: 2, MemoryBytes: 1 << 30})
			var limit *LimitError
			if !errors.As(err, &limit) || limit.Field != field {
				t.Errorf("Effective(%+v) = %v, want a *LimitError for %s", a, err, field)
			}
		}
	}
}

func TestSpecCarriesTheLimits(t *testing.T) {
	t.Parallel()
	spec, err := mustGet(t, "default").Spec(Limits{1.5, 64 << 20, 32 << 20, 1000, 33, ""}, "h", "/w")
	if err != nil {
		t.Fatal(err)
	}
	r := spec.Linux.Resources
	got := []int64{*r.CPU.Quota, int64(*r.CPU.Period), *r.Memory.Limit, *r.Memory.Swap, *r.Pids.Limit}
	if want := []int64{150_000, 100_000, 96 << 20, 96 << 20, 33}; !slices.Equal(got, want) {
		t.Errorf("quota, period, memory, memory and swap, pids = %v, want %v", got, want)
	}
}

func TestSpecRefusesBadNames(t *testing.T) {
	t.Parallel()
	p := mustGet(t, "strict")
	for _, c := range []struct{ hostname, workdir string }{
		{"", "/w"},
		{"a b", "/w"},
		{"-x", "/w"},
		{strings.Repeat("a", 64), "/w"},
		{"h", ""},
		{"h", "w"},
		{"h", "/w/"},
		{"h", "/w/.."},
		{"h", "/proc"},
		{"h", "/dev/shm"},
		{"h", "/a\x00b"},
	} {
		if _, err := p.Spec(p.Defaults(), c.hostname, c.workdir); err == nil {
			t.Errorf("Spec(%q, %q) is accepted", c.hostname, c.workdir)
		}
	}
}

// All of a spec is its own but the seccomp profile, which specs share.
func TestChangingASpecLeavesThePolicy(t *testing.T) {
	t.Parallel()
	p := mustGet(t, "strict")
	first, err := p.Spec(p.Defaults(), "h", "/w")
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	first.Linux.MaskedPaths[0] = "/"
	first.Process.Rlimits[0].Hard = 1
	second, err := p.Spec(p.Defaults(), "h", "/w")
	if err != nil {
		t.Fatal(err)
	}
	after, err := json.Marshal(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("a change of one spec shows in the next")
	}
}

func TestWritableDirectories(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy, workdir string
		want            []string
	}{
		{"default", "/workdir", []string{"/"}},
		{"strict", "/workdir", []string{"/tmp", "/workdir"}},
		{"strict", "/", []string{"/tmp"}},
		{"strict", "/tmp", []string{"/tmp"}},
		{"strict", "/tmp/x", []string{"/tmp"}},
		{"strict", "/tmpx", []string{"/tmp", "/tmpx"}},
	} {
		if got := mustGet(t, c.policy).Writable(c.workdir); !slices.Equal(got, c.want) {
			t.Errorf("%s: Writable(%q) = %v, want %v", c.policy, c.workdir, got, c.want)
		}
	}
}

func TestEnvironmentIsPinned(t *testing.T) {
	t.Parallel()
	want := []string{
		"LANG=C.UTF-8", "PADDOCK_SEED=4294967295", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PYTHONHASHSEED=4294967295", "TZ=UTC",
	}
	for _, name := range mustLoad(t).Names() {
		p := mustGet(t, name)
		if got := p.Env(math.MaxUint32); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: Env() = %q, want %q", name, got, want)
		}
		if p.Umask() != 0o022 {
			t.Errorf("%s: Umask() = %o", name, p.Umask())
		}
	}
	p := mustGet(t, "default")
	for _, c := range []struct {
		uid        uint32
		home, want string
	}{{0, "", "/root"}, {0, "/r", "/r"}, {5, "/home/x", "/home/x"}, {5, "", "/tmp"}, {5, "relative", "/tmp"}, {5, "/a\x00", "/tmp"}} {
		if got := p.Home(c.uid, c.home); got != c.want {
			t.Errorf("Home(%d, %q) = %q, want %q", c.uid, c.home, got, c.want)
		}
	}
}

func TestRefusalsSayWhichPolicy(t *testing.T) {
	t.Parallel()
	strict, lax := mustGet(t, "strict"), mustGet(t, "default")
	if err := lax.CheckUser(0); err != nil {
		t.Errorf("default: CheckUser(0) = %v", err)
	}
	if err := strict.CheckUser(1000); err != nil {
		t.Errorf("strict: CheckUser(1000) = %v", err)
	}
	var refusal *RefusalError
	if err := strict.CheckUser(0); !errors.As(err, &refusal) || err.Error() != "user 0 is refused by policy strict" {
		t.Errorf("strict: CheckUser(0) = %v", err)
	}
	if !slices.Contains(lax.Refusals(), "network is off by policy default") {
		t.Errorf("default: Refusals() = %q", lax.Refusals())
	}
	long := strings.Repeat("noise\n", 1<<17)
	for _, c := range []struct {
		p      *Policy
		stderr string
		want   []string
	}{
		{lax, "curl: (6) Could not resolve host: example.org\n", []string{"network is off by policy default"}},
		{lax, long + "connect: Network is unreachable", []string{"network is off by policy default"}},
		{lax, "touch: cannot touch '/x': Read-only file system", nil},
		{strict, "touch: cannot touch '/x': Read-only file system", []string{"the root is read-only by policy strict; writable: /tmp, /w"}},
		{strict, "ptrace: Operation not permitted.", []string{"ptrace is off by policy strict"}},
		{lax, "ptrace: Operation not permitted.", nil},
		{lax, "read: Bad address\n", nil},
		{lax, "wget: bad address 'example.org'\n", []string{"network is off by policy default"}},
		{lax, "", nil},
		{mustGet(t, "networked-allowlist"), "curl: (6) Could not resolve host: example.org", []string{"hosts are reached through the proxy at http://127.0.0.1:3128 (HTTP_PROXY) alone, by policy networked-allowlist"}},
	} {
		if got := c.p.Explain([]byte(c.stderr), "/w"); !slices.Equal(got, c.want) {
			t.Errorf("%s: Explain() = %q, want %q", c.p.Name(), got, c.want)
		}
	}
}
