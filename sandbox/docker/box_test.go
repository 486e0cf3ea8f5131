package docker

import (
	"encoding/json"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-run/paddock/internal/golden"
	"github.com/paddock-run/paddock/policies"
)

func specOf(t *testing.T, policy string) *specs.Spec {
	t.Helper()
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	p, err := set.Get(policy)
	if err != nil {
		t.Fatal(err)
	}
	eff, _, err := p.Effective(policies.Limits{CPUs: 0.5}, policies.Host{CPUs: 2, MemoryBytes: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	oci, err := p.Spec(eff, "paddock", "/")
	if err != nil {
		t.Fatal(err)
	}
	return oci
}

func TestBoxHasThePolicysLockDown(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"build", "default", "networked-allowlist", "strict"} {
		oci := specOf(t, policy)
		b, err := box("ep", settings{Image: "paddock-guest:1", Parent: "paddock/x", Mark: "m", Cgroupfs: true}, "/paddock/x/ep", oci)
		if err != nil {
			t.Fatal(err)
		}
		var profile specs.LinuxSeccomp
		if err := json.Unmarshal([]byte(b.Seccomp), &profile); err != nil {
			t.Fatal(err)
		}
		if profile.DefaultAction != specs.ActErrno || len(profile.Syscalls) != len(oci.Linux.Seccomp.Syscalls) {
			t.Errorf("%s: seccomp profile is not the policy's", policy)
		}
		if !slices.Equal(b.Caps, guestCaps) {
			t.Errorf("%s: capabilities %v, want those of PID 1 alone", policy, b.Caps)
		}
		if b.MemoryBytes != *oci.Linux.Resources.Memory.Limit || b.Pids != *oci.Linux.Resources.Pids.Limit || b.NanoCPUs != 5e8 || b.Shm != 64<<20 {
			t.Errorf("%s: limits %d %d %d, shm %d", policy, b.MemoryBytes, b.Pids, b.NanoCPUs, b.Shm)
		}
		if !slices.Equal(b.Masked, oci.Linux.MaskedPaths) || b.CgroupParent != "/paddock/x/ep" || b.Labels[label] != "paddock/x" {
			t.Errorf("%s: %+v", policy, b)
		}
	}
}

// What the engine is asked for under each policy is read in review. The seccomp profile is
// the policy's own, whose golden file has it.
func TestBoxIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range set.Names() {
		p, err := set.Get(policy)
		if err != nil {
			t.Fatal(err)
		}
		if p.Runtime() != "" {
			continue // it wants a runtime of its own, which an engine is not
		}
		b, err := box("ep", settings{Image: "paddock-guest:1", Parent: "paddock/x", Mark: "m", Cgroupfs: true}, "/paddock/x/ep", specOf(t, policy))
		if err != nil {
			t.Fatal(err)
		}
		b.Seccomp = ""
		golden.JSON(t, "testdata/"+policy+".golden.json", b)
	}
}

func TestBoxUnderSystemdHasTheEnginesOwnCgroup(t *testing.T) {
	t.Parallel()
	b, err := box("ep", settings{}, "/paddock/x/ep", specOf(t, "default"))
	if err != nil || b.CgroupParent != "" {
		t.Errorf("cgroup parent %q, %v, want none: systemd takes slices alone", b.CgroupParent, err)
	}
}

func TestBoxWithoutAFilterIsRefused(t *testing.T) {
	t.Parallel()
	oci := specOf(t, "default")
	linux := *oci.Linux
	linux.Seccomp = nil
	bare := *oci
	bare.Linux = &linux
	if _, err := box("ep", settings{}, "/paddock/x/ep", &bare); err == nil {
		t.Error("a container without a seccomp profile of ours would have the engine's")
	}
}
