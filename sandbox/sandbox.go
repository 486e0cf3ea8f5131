// Package sandbox is the vocabulary between the runner and the launchers: what a
// sandbox is asked to be (Spec), what runs in it (Command), and how that ended
// (Exit, Fate). It holds no mechanism; sandbox/native and its siblings do.
package sandbox

import (
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// IDMap says which host ids a sandbox's user namespace uses: uid and gid N inside,
// 0 <= N < Size, is HostID+N outside. One map serves uids and gids.
type IDMap struct {
	HostID uint32 `json:"host_id"`
	Size   uint32 `json:"size"`
}

// Spec asks a launcher for one sandbox.
type Spec struct {
	// Name names the sandbox's cgroups and log lines: [a-z0-9-], at most 40 bytes,
	// unique among live sandboxes of one launcher.
	Name string
	// Root is the file system the sandbox sees at /.
	Root Root
	// IDs is the user namespace's map. The range must not be in use by another sandbox,
	// except by an ended one whose Upper is a lower layer here.
	IDs IDMap
	// OCI is the lock-down: namespaces, capabilities, seccomp, masked and read-only
	// paths, rlimits, hostname, and Linux.Resources with the memory, cpu and pids limits.
	// Launchers take limits from nowhere else.
	OCI *specs.Spec
	// Listen are TCP ports of the sandbox's own 127.0.0.1, at most MaxListen and each once,
	// that are opened before any program runs; who started the sandbox serves them.
	Listen []uint16
}

// MaxListen bounds Spec.Listen.
const MaxListen = 32

// Root describes an overlay mount.
type Root struct {
	// Lowers are the layers, the topmost first; at least one.
	Lowers []Lower
	// Upper is the writable layer.
	Upper Upper
}

// Lower is one read-only layer in overlay form (whiteouts as character device 0:0,
// opaque directories by trusted.overlay.opaque=y).
type Lower struct {
	// Path names the layer's directory on the host; used when Dir is nil.
	Path string
	// Dir is the layer's directory as an open descriptor (an ended sandbox's Upper).
	// The caller keeps ownership.
	Dir *os.File
	// Shifted says that the layer's owners are already those of Spec.IDs, so it is
	// mounted as it is; otherwise owners 0..Size-1 are mapped by an idmapped mount.
	Shifted bool
}

// Upper is the writable layer, a file system or part of one with both bounds. Unless it
// is OnDisk it is a tmpfs, whose pages count against the sandbox's memory limit: the caller
// then asks for memory + disk there.
type Upper struct {
	// Bytes bounds the contents; writing more is ENOSPC inside.
	Bytes int64
	// Inodes bounds the number of files; one more is ENOSPC inside.
	Inodes int64
	// OnDisk wants it on the launcher's disk (Info.Disk), which must be there.
	OnDisk bool
}

// Info says what a launcher is and what it can do here.
type Info struct {
	// Name is "native", "oci" or "docker".
	Name string `json:"name"`
	// Runtime is the program behind it with its version, such as "runc 1.1.5"; empty for
	// native.
	Runtime string `json:"runtime,omitempty"`
	// UserNS says that a sandbox's users are those of a user namespace of its own. Without
	// one they are the same users of the host, by their numbers there.
	UserNS bool `json:"userns"`
	// Root says that user 0 has the capabilities of the policy inside; otherwise it is an
	// ordinary user that owns the world's files.
	Root bool `json:"root"`
	// Cgroup is "v1", "hybrid" or "v2".
	Cgroup string `json:"cgroup"`
	// PTY, Freeze say whether Command.PTY and Freeze work.
	PTY    bool `json:"pty"`
	Freeze bool `json:"freeze"`
	// Listen says whether Spec.Listen works, and dialling into the sandbox.
	Listen bool `json:"listen"`
	// PerCall says that the kernel accounts for and ends each command by itself. Without it
	// a command's usage is the whole sandbox's, and what left its process tree is not found.
	PerCall bool `json:"per_call"`
	// Disk is what uppers OnDisk stand on: project, loop, btrfs or none (and then nothing
	// bounds them); tmpfs when there is no disk.
	Disk string `json:"disk"`
}

// FateKind says why a sandbox is gone.
type FateKind string

// The fates of a sandbox. LauncherDied, Killed and HostOOM are evidence of a platform
// fault; a guest that dies for no reason seen from outside is the agent's doing (semantics, section 1).
const (
	// Stopped: the runner asked for it.
	Stopped FateKind = "stopped"
	// GuestDied: PID 1 ended or was killed from inside, or the memory limit took it.
	GuestDied FateKind = "guest_died"
	// GuestOOM: the kernel's OOM killer took PID 1 or left nothing that can go on.
	GuestOOM FateKind = "guest_oom"
	// HostOOM: the OOM killer took PID 1 while the sandbox had never met its own limit, so
	// it was the host that had no memory left.
	HostOOM FateKind = "host_oom"
	// GuestBroke: PID 1 broke the protocol.
	GuestBroke FateKind = "guest_protocol"
	// Killed: PID 1 was killed by a process outside the sandbox (the fault switch, an
	// administrator); the launcher saw SIGKILL with no OOM record and no request.
	Killed FateKind = "killed_outside"
	// LauncherDied: the launcher process is gone.
	LauncherDied FateKind = "launcher_died"
)

// Fate says how a sandbox ended; Evidence is for people.
type Fate struct {
	Kind     FateKind `json:"kind"`
	Evidence string   `json:"evidence,omitempty"`
}
