package oci

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-run/paddock/internal/golden"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

func containerOf(t *testing.T, policy string) *native.Container {
	t.Helper()
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	p, err := set.Get(policy)
	if err != nil {
		t.Fatal(err)
	}
	eff, _, err := p.Effective(policies.Limits{}, policies.Host{CPUs: 2, MemoryBytes: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	oci, err := p.Spec(eff, "paddock", "/")
	if err != nil {
		t.Fatal(err)
	}
	return &native.Container{
		Name: "x", IDs: sandbox.IDMap{HostID: 300000, Size: 65536}, OCI: oci, Dir: "/stage/1", Dev: "/stage/shared/dev",
		Cgroup: "/paddock/x", Parent: "/paddock/x",
		Parts: []native.Part{
			{Source: "/stage/1/w0", Destination: "/tmp", Writable: true},
			{Source: "/stage/shared/sys1", Destination: "/sys"},
			{Source: "/stage/shared/etc0/hosts", Destination: "/etc/hosts"},
		},
	}
}

func TestConfigOfEveryPolicyLocksDown(t *testing.T) {
	t.Parallel()
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range set.Names() {
		c := containerOf(t, name)
		got := config(c, Runc)
		var kinds []string
		for _, n := range got.Linux.Namespaces {
			kinds = append(kinds, string(n.Type))
			if n.Path != "" {
				t.Errorf("%s: namespace %s is joined at %s, want a new one", name, n.Type, n.Path)
			}
		}
		slices.Sort(kinds)
		if want := []string{"cgroup", "ipc", "mount", "network", "pid", "user", "uts"}; !slices.Equal(kinds, want) {
			t.Errorf("%s: namespaces %v, want %v", name, kinds, want)
		}
		caps := got.Process.Capabilities
		want := append(slices.Clone(guestCaps), c.OCI.Process.Capabilities.Bounding...)
		slices.Sort(want)
		if !slices.Equal(caps.Bounding, slices.Compact(want)) || len(caps.Inheritable)+len(caps.Ambient) > 0 {
			t.Errorf("%s: capabilities %+v, want those of the policy and of PID 1, none inheritable or ambient", name, caps)
		}
		if got.Linux.Seccomp != c.OCI.Linux.Seccomp || !got.Process.NoNewPrivileges {
			t.Errorf("%s: the policy's seccomp profile or no_new_privs is missing", name)
		}
		if got.Root.Readonly != c.OCI.Root.Readonly || got.Root.Path != "/stage/1/rootfs" {
			t.Errorf("%s: root %+v", name, got.Root)
		}
		if got.Linux.Resources.Memory != nil || got.Process.Rlimits != nil {
			t.Errorf("%s: the runtime is told of limits that others keep", name)
		}
		for _, path := range slices.Concat(c.OCI.Linux.ReadonlyPaths, guestScores) {
			if !slices.Contains(got.Linux.ReadonlyPaths, path) {
				t.Errorf("%s: %s is not read-only", name, path)
			}
		}
	}
}

// What a runtime is told of each policy is read in review: runc and crun are told the same,
// runsc a little else. The seccomp profile is the policy's own, whose golden file has it.
func TestConfigIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range set.Names() {
		for kind, file := range map[Kind]string{Runc: name, Crun: name, Runsc: name + ".runsc"} {
			p, err := set.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			if p.Runtime() != "" && p.Runtime() != string(kind) {
				continue
			}
			spec := config(containerOf(t, name), kind)
			spec.Linux.Seccomp = nil
			golden.JSON(t, "testdata/"+file+".golden.json", spec)
		}
	}
}

// The world's writable directories come first, or a mount of the launcher's would be below
// one; nothing is bound from a path that the world says.
func TestMountsAreInOrderAndTheLaunchersOwn(t *testing.T) {
	t.Parallel()
	var got []string
	for _, m := range mounts(containerOf(t, "strict"), Runc) {
		got = append(got, m.Destination+" "+strings.Join(m.Options, ","))
		if m.Type == "bind" && !strings.HasPrefix(m.Source, "/stage/") {
			t.Errorf("%s is bound from %s", m.Destination, m.Source)
		}
	}
	want := []string{
		"/tmp bind,nosuid,nodev,rw", "/proc nosuid,nodev,noexec", "/dev bind,nosuid,noexec,ro",
		"/dev/pts nosuid,noexec,newinstance,ptmxmode=0666,mode=0620", "/dev/shm nosuid,nodev,noexec,mode=1777,size=67108864",
		"/sys bind,nosuid,nodev,ro,noexec", "/etc/hosts bind,nosuid,nodev,ro,noexec",
	}
	if !slices.Equal(got, want) {
		t.Errorf("mounts:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestConfigLeavesThePolicysSpecAlone(t *testing.T) {
	t.Parallel()
	c := containerOf(t, "default")
	before := text(t, c.OCI)
	config(c, Runc)
	if after := text(t, c.OCI); after != before {
		t.Error("the spec that all sandboxes of a policy share was changed")
	}
}

func text(t *testing.T, s *specs.Spec) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
