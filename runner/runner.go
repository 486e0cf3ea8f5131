// Package runner owns the life of episodes: create, calls, capture, scores, batches. It
// decides outcomes and rewards; it knows launchers, worlds and the record only through
// the interfaces in deps.go and record.go.
package runner

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// Config is what a Runner works with; all fields but Sockets, Log and Faults are needed.
type Config struct {
	// Root is the store's directory; the runner writes only below Root/run.
	Root     string
	Launcher Launcher
	Worlds   Worlds
	Record   Record
	Policies *policies.Set
	Host     policies.Host
	IDs      *sandbox.IDPool
	Sockets  EpisodeSockets
	Log      *slog.Logger
	// Faults, when set, fails a share of first attempts on purpose.
	Faults *Faults
	// MaxQueue bounds the episodes that wait for capacity; 0 is DefaultMaxQueue.
	MaxQueue int
}

// EpisodeSockets makes sockets that reach one episode only; the daemon implements it.
type EpisodeSockets interface {
	// Open makes a socket that uid may connect to.
	Open(ctx context.Context, key Key, uid uint32) (path string, closeSocket func() error, err error)
}

// Faults is the fault switch: it kills the sandboxes of a share of first attempts from
// outside, at a moment drawn from the seed.
type Faults struct {
	Share float64
	Seed  uint32
}

// Runner runs episodes. Its methods may be called from any goroutine.
type Runner struct {
	cfg Config
}

var errStub = errors.New("not built yet")

// New returns a Runner, after it has put the record in order: attempts that a crash left
// live become interrupted.
func New(ctx context.Context, cfg Config) (*Runner, error) { return &Runner{cfg: cfg}, nil }

// Drain refuses new episodes and waits until the live ones have ended, or ctx is done.
func (r *Runner) Drain(ctx context.Context) error { return errStub }

// Close ends every live episode (cancelled by the operator) and waits for that.
func (r *Runner) Close(ctx context.Context) error { return errStub }

// OpenRun makes or resumes a run.
func (r *Runner) OpenRun(ctx context.Context, owner string, spec RunSpec) (Run, error) {
	return Run{}, errStub
}

// Runs lists an owner's runs.
func (r *Runner) Runs(ctx context.Context, owner string) ([]Run, error) { return nil, errStub }

// Create makes an episode or finds it, as the table in semantics section 4 says.
// Generation is that of the driver's run; 0 is not checked. It returns when the episode
// is live or has ended; when ctx ends first, the episode goes on under its lease.
func (r *Runner) Create(ctx context.Context, owner string, generation int64, spec EpisodeSpec) (Created, error) {
	return Created{}, errStub
}

// Get returns an episode. Looking never renews a lease.
func (r *Runner) Get(ctx context.Context, key Key) (Episode, error) { return Episode{}, errStub }

// List lists episodes of a run by prefix, in order of id.
func (r *Runner) List(ctx context.Context, owner, run, prefix, after string, max int) (eps []Episode, more bool, err error) {
	return nil, false, errStub
}

// Call makes one tool call.
func (r *Runner) Call(ctx context.Context, key Key, spec CallSpec, cio CallIO) (CallResult, error) {
	return CallResult{}, errStub
}

// Upload unpacks a tar under dir, as a call.
func (r *Runner) Upload(ctx context.Context, key Key, dir, user string, rd io.Reader) (CallResult, error) {
	return CallResult{}, errStub
}

// Download writes path as a tar, as a call.
func (r *Runner) Download(ctx context.Context, key Key, path, user string, w io.Writer) (CallResult, error) {
	return CallResult{}, errStub
}

// Finish ends the agent's phase with status ok, scores, and returns the outcome.
func (r *Runner) Finish(ctx context.Context, key Key, spec FinishSpec) (Episode, error) {
	return Episode{}, errStub
}

// Abort ends the live attempt as the client's error.
func (r *Runner) Abort(ctx context.Context, key Key, reason string) (Episode, error) {
	return Episode{}, errStub
}

// Cancel ends the live attempts at and below a prefix.
func (r *Runner) Cancel(ctx context.Context, owner, run, prefix, reason string) (n int, err error) {
	return 0, errStub
}

// Pause freezes an episode and its clocks.
func (r *Runner) Pause(ctx context.Context, key Key) (Episode, error) { return Episode{}, errStub }

// Resume lets a paused episode go on.
func (r *Runner) Resume(ctx context.Context, key Key) (Episode, error) { return Episode{}, errStub }

// KeepAlive renews a ttl lease.
func (r *Runner) KeepAlive(ctx context.Context, key Key) (Episode, error) {
	return Episode{}, errStub
}

// Delete removes an episode and everything kept of it; a live one is cancelled first.
func (r *Runner) Delete(ctx context.Context, key Key) error { return errStub }

// Changes returns the capture of an ended attempt; attempt 0 is the last.
func (r *Runner) Changes(ctx context.Context, key Key, attempt int) (overlay.Capture, error) {
	return overlay.Capture{}, errStub
}

// Trajectory reads the journal of an attempt's calls; attempt 0 is the last.
func (r *Runner) Trajectory(ctx context.Context, key Key, attempt int) (io.ReadCloser, error) {
	return nil, errStub
}

// Payload returns what finish was given; attempt 0 is the last.
func (r *Runner) Payload(ctx context.Context, key Key, attempt int) ([]byte, error) {
	return nil, errStub
}

// OpenLease opens a connection lease; release starts its grace.
func (r *Runner) OpenLease(owner string) (id string, release func()) { return "", func() {} }
