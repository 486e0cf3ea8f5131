package runner

import (
	"context"
	"io"
	"net"
	"os"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/sandbox"
)

// Launcher starts sandboxes. runner/contract holds the suite that each implementation
// must pass.
type Launcher interface {
	// Start builds a sandbox and returns when its PID 1 answers. After an error nothing of
	// it is left.
	Start(ctx context.Context, spec sandbox.Spec) (Sandbox, error)
	Info() sandbox.Info
	// Close stops every sandbox and the launcher.
	Close() error
}

// Sandbox is one running sandbox.
type Sandbox interface {
	// Start starts a command; several may run at once.
	Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error)
	// Files acts on the fork's root without any process of the sandbox.
	Files() Files
	// Freeze stops (true) or lets go (false) every process of the sandbox.
	Freeze(ctx context.Context, frozen bool) error
	// Usage is what the sandbox has used so far.
	Usage(ctx context.Context) (sandbox.Usage, error)
	// Listeners are the sockets of Spec.Listen, in that order; Close closes them.
	Listeners() []net.Listener
	Ending
}

// Ending is how a sandbox ends and what stays of it.
type Ending interface {
	// Done is closed when PID 1 is gone, for whatever reason; Fate then says why.
	Done() <-chan struct{}
	Fate() sandbox.Fate
	// Stop kills every process and returns when they are proven gone. Files and Upper stay
	// usable until Close. Stop and Close are idempotent.
	Stop(ctx context.Context) error
	// Upper is the writable layer's directory; owned by the sandbox.
	Upper() *os.File
	// Close stops the sandbox and releases everything, the upper's contents included.
	Close() error
}

// Breaker is implemented by sandboxes on which the fault switch works: Break kills PID 1
// from outside, with SIGKILL, as an administrator would. The fate is then sandbox.Killed.
type Breaker interface {
	Break() error
}

// Dialer is implemented by sandboxes into whose loopback their caller can connect.
type Dialer interface {
	// Dial connects to a TCP port of the sandbox's own 127.0.0.1. Where nobody listens it is
	// syscall.ECONNREFUSED, of a sandbox that is gone sandbox.ErrGone.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
}

// Files reads and writes a sandbox's tree as one of its users: owners and permission
// errors are the kernel's. Paths are absolute inside the sandbox, symlinks are resolved
// inside it, other mounts (/proc, /dev, /sys) are not reached. Errors are
// *sandbox.FileError.
type Files interface {
	// Read copies at most max bytes from offset off to w (max < 0: all).
	Read(ctx context.Context, as sandbox.User, path string, w io.Writer, off, max int64) (sandbox.FileInfo, error)
	// Write makes or replaces the file's contents, atomically: a broken reader leaves the
	// old contents. Parent directories must exist.
	Write(ctx context.Context, as sandbox.User, path string, r io.Reader, mode uint32) (sandbox.FileInfo, error)
	// List lists a directory in byte order, at most max entries.
	List(ctx context.Context, as sandbox.User, path string, max int) (entries []sandbox.FileInfo, more bool, err error)
	// Stat does not follow a final symlink.
	Stat(ctx context.Context, as sandbox.User, path string) (sandbox.FileInfo, error)
	Archives
}

// Archives moves whole trees in and out.
type Archives interface {
	// Untar unpacks a tar (plain, gzip or zstd) under dir, which is made when missing;
	// ownership is that of as. Nothing is left of a refused archive's entries that were
	// not yet reached; entries before it stay.
	Untar(ctx context.Context, as sandbox.User, dir string, r io.Reader, limits sandbox.TarLimits) (entries int64, err error)
	// Tar writes path (a file or a tree) as a PAX tar; names are relative to path's parent.
	Tar(ctx context.Context, as sandbox.User, path string, w io.Writer) error
	// Remove deletes a file or, recursively, a directory.
	Remove(ctx context.Context, as sandbox.User, path string) error
}

// Worlds is the store of worlds and forks. runner/contract holds its suite.
type Worlds interface {
	// World resolves an id, a unique prefix of one, or a name. *overlay.NotFoundError.
	World(ctx context.Context, ref string) (overlay.World, error)
	List(ctx context.Context) ([]overlay.World, error)
	Build(ctx context.Context, r overlay.Recipe, p overlay.Progress) (overlay.Built, error)
	// Fork pins the world's layers until Release. overlay.ErrCorrupt.
	Fork(ctx context.Context, id string) (Fork, error)
	Upkeep
	Transfer
}

// Upkeep is what is done to worlds that are there.
type Upkeep interface {
	// Name points a name at a world, whatever it meant before. *overlay.NotFoundError.
	Name(ctx context.Context, name, ref string) (overlay.World, error)
	// Unname takes a name away; the world stays. A name that is not there is no error.
	Unname(ctx context.Context, name string) error
	// Remove removes a world, or the ref alone where it is one of several names.
	// overlay.ErrInUse.
	Remove(ctx context.Context, ref string) error
	// Collect removes what nothing needs, down to a bound.
	Collect(ctx context.Context, in overlay.Collection) (overlay.Collected, error)
}

// Transfer moves worlds in and out as images.
type Transfer interface {
	// Import makes an image a world and points name, unless empty, at it.
	// *overlay.RecipeError.
	Import(ctx context.Context, from overlay.Source, name string, p overlay.Progress) (overlay.World, error)
	// Export writes a world as an OCI image layout tar.
	Export(ctx context.Context, ref string, w io.Writer) error
	// Push sends a world to a registry and answers the reference of its manifest.
	// *overlay.RegistryError.
	Push(ctx context.Context, ref string, to overlay.Remote, p overlay.Progress) (string, error)
}

// Fork is a pinned world on which one sandbox stands.
type Fork interface {
	World() overlay.World
	// Lowers are the host directories of the layers, the topmost first.
	Lowers() []string
	// Capture reads an upper directory against this world.
	Capture(ctx context.Context, in overlay.CaptureInput) (overlay.Capture, error)
	// Track watches an upper directory between calls.
	Track(upper *os.File, hostID uint32) Tracker
	Sealer
	Release()
}

// Sealer makes layers again of what sandboxes left.
type Sealer interface {
	// Restore makes a capture again as a layer directory, owners shifted by hostID.
	Restore(ctx context.Context, c overlay.Capture, pack string, dir *os.File, hostID uint32) error
	// Seal makes a world of the fork's and what an upper directory changed.
	Seal(ctx context.Context, in overlay.SealInput) (overlay.World, error)
	// Compact makes ahead what the next Seal of a branch needs first; mostly that is nothing.
	Compact(ctx context.Context) error
}

// Tracker tells which paths changed since it was last asked. It is a hint for people and
// rewards (who wrote what in which call); the capture is the truth.
type Tracker interface {
	// Changes returns changed paths in order, at most max; more says that it stopped there.
	Changes(ctx context.Context, max int) (changes []overlay.Change, more bool, err error)
}
