package native

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/undo"
	"github.com/paddock-run/paddock/sandbox"
)

// A blank is the part of a sandbox that needs its name and its range of ids only: cgroups
// without limits, the first call's among them, and a guest that waits in new namespaces to
// be told its view. Whoever knows that a sandbox will be asked for has one made ahead. It
// is used for that sandbox alone: nothing of any other has been in it.

// newBlank makes a blank.
func (l *launcher) newBlank(r *request) (*building, error) {
	b := &building{l: l, r: r}
	err := undo.Run(
		undo.Step{Name: "cgroups", Do: func() error { return l.tree.create(r.Name) }, Undo: func() error { return l.tree.remove(r.Name) }},
		undo.Step{Name: "clone guest", Do: b.clone},
	)
	if err != nil {
		// A half-made cgroup tree is not undone by its own step.
		err = errors.Join(err, l.tree.remove(r.Name))
		b.close()
		return nil, err
	}
	return b, nil
}

// blankFor returns the blank that was made for a request, or makes it now.
func (l *launcher) blankFor(r *request) (*building, error) {
	b := l.takeBlank(r.Name)
	if b != nil && (b.r.IDs != r.IDs || b.ended()) {
		if err := b.drop(); err != nil {
			return nil, err
		}
		b = nil
	}
	if b == nil {
		return l.newBlank(r)
	}
	return b, nil
}

// prepare makes a blank ahead and answers when it is there.
func (l *launcher) prepare(r *request) {
	b, err := l.newBlank(r)
	if err != nil {
		_ = l.daemon.reply(reply{ID: r.ID, Error: err.Error()})
		return
	}
	b.slot = newSlot(l.tree, r.Name, 0).make() == nil // or a call makes it, and says why not
	if r.Frame != nil {
		_ = b.sendAhead() // what is not made ahead is made later
	}
	l.mu.Lock()
	l.blanks[r.Name] = b
	l.mu.Unlock()
	_ = l.daemon.reply(reply{ID: r.ID})
}

// sendAhead has the guest make a part of its view.
func (b *building) sendAhead() error {
	var files []*os.File
	defer func() { closeAll(files) }()
	for _, part := range []string{"empty", "dev"} {
		m, err := b.l.shared.clone(part)
		if err != nil {
			return err
		}
		files = append(files, m)
	}
	return sendRaw(int(b.socket.Fd()), b.r.Frame, files)
}

func sendRaw(socket int, b []byte, files []*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	return unix.Sendmsg(socket, b, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
}

func (l *launcher) takeBlank(name string) *building {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.blanks[name]
	delete(l.blanks, name)
	return b
}

// ended says whether the guest is gone: somebody outside killed it.
func (b *building) ended() bool {
	p := []unix.PollFd{{Fd: int32(b.pidfd.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err != nil || n > 0
}

// drop ends a blank and removes what it had.
func (b *building) drop() error {
	err := errors.Join(b.kill(), b.l.tree.remove(b.r.Name))
	b.close()
	return err
}

// Prepare makes a blank for the sandbox of this name and range of ids, and returns when it
// is there. The Start that asks for both uses it; until then, or Drop, the range is in use.
// After an error nothing of it is left.
func (l *Launcher) Prepare(_ context.Context, name string, ids sandbox.IDMap) error {
	if err := checkName(name, ids); err != nil {
		return err
	}
	p, err := l.launcher()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.nextID++
	r := &request{ID: l.nextID, Prepare: true, Name: name, IDs: ids}
	if p := l.lastProc.Load(); p != nil {
		r.Frame = p.Ahead()
	}
	l.mu.Unlock()
	answer, err := p.ask(r, nil)
	if err != nil {
		return err // a dead launcher made nothing
	}
	// Not given up before the launcher has answered or died: whoever gave the ids may use
	// them again after an error.
	a, ok := <-answer
	if err := a.failure(ok); err != nil {
		return errors.Join(fmt.Errorf("prepare sandbox %s: %w", name, err), l.tree.remove(name))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prepared[name] = p
	return nil
}

// Drop ends the blank of a name; without one it does nothing.
func (l *Launcher) Drop(name string) error {
	l.mu.Lock()
	p := l.prepared[name]
	l.mu.Unlock()
	if p == nil {
		return nil
	}
	return l.unprepare(name, nil)
}

// unprepare takes a name off the prepared ones. Where the blank's process is not to, it is
// removed.
func (l *Launcher) unprepare(name string, to *launcherProcess) error {
	l.mu.Lock()
	p := l.prepared[name]
	delete(l.prepared, name)
	l.mu.Unlock()
	if p == nil || p == to {
		return nil
	}
	_ = p.conn.request(&request{Drop: true, Name: name}) // one that is gone holds nothing
	return l.tree.remove(name)
}

// removeBlanks removes what is left of blanks when the launcher process has ended.
func (l *Launcher) removeBlanks() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for name := range l.prepared {
		errs = append(errs, l.tree.remove(name))
	}
	clear(l.prepared)
	return errors.Join(errs...)
}
