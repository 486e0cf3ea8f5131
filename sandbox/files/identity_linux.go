package files

import (
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/sandbox"
)

// session is a stretch of work under a sandbox user's identity, on one locked thread.
//
// The thread gets the user's groups, file system gid and uid, all as host ids. By that
// the kernel itself takes the capabilities over files away, and permission errors and
// owners are those of the user.
//
// Uid 0 of the sandbox is an ordinary uid of the host, but inside its own tree it is
// root. For it the thread keeps CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_FSETID,
// and only while it works on an inode whose owner and group are both of the sandbox's
// range: the very rule by which the kernel gives a user namespace's root its power. It
// never has CAP_DAC_READ_SEARCH, CAP_MKNOD or CAP_LINUX_IMMUTABLE. Directories on the way
// to the inode are walked with the same capabilities, whoever owns them.
type session struct {
	ids  sandbox.IDMap
	root bool
	// override says whether the thread has root's capabilities now.
	override bool
}

const rootCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// ownGroups are the daemon's supplementary groups, the same in all its threads.
var ownGroups = sync.OnceValues(unix.Getgroups)

// as runs work under the identity of user. Nothing in work may wait for a caller: the
// thread is locked meanwhile, and a caller's code must not run with these ids.
func (t *Tree) as(user sandbox.User, work func(*session) error) error {
	for _, id := range append([]uint32{user.UID, user.GID}, user.Groups...) {
		if id >= t.ids.Size {
			return refuse("permission_denied", "", fmt.Sprintf("the sandbox has no id %d", id))
		}
	}
	own, err := ownGroups()
	if err != nil {
		return err
	}
	groups := make([]int, len(user.Groups))
	for i, g := range user.Groups {
		groups[i] = int(t.ids.HostID + g)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Without the right to do this nothing has changed yet, and nothing is to be undone.
	// The errno stays hidden: it is the daemon that lacks a right, not the user.
	if err := unix.Setgroups(groups); err != nil {
		return refuse("io", "", "become a user of the sandbox: "+err.Error())
	}
	uid, gid := unix.Geteuid(), unix.Getegid()
	defer func() {
		// A thread that stays a sandbox's user must not serve anybody else again.
		if err := become(uid, gid, own); err != nil {
			panic(fmt.Sprintf("files: thread cannot become itself again: %v", err))
		}
	}()
	if err := become(int(t.ids.HostID+user.UID), int(t.ids.HostID+user.GID), groups); err != nil {
		return refuse("io", "", "become a user of the sandbox: "+err.Error())
	}
	s := &session{ids: t.ids, root: user.UID == 0 && t.ids.HostID != 0}
	if err := s.setOverride(true); err != nil {
		return err
	}
	return work(s)
}

// become sets this thread's file system ids and groups, and only this thread's: the raw
// system calls do, where package syscall would set them for all threads.
func become(uid, gid int, groups []int) error {
	if err := unix.Setgroups(groups); err != nil {
		return err
	}
	// These two calls report no error; asking for an impossible id tells the current one.
	if err := unix.Setfsgid(gid); err != nil {
		return err
	}
	if now, err := unix.SetfsgidRetGid(-1); err != nil || now != gid {
		return unix.EPERM
	}
	if err := unix.Setfsuid(uid); err != nil {
		return err
	}
	if now, err := unix.SetfsuidRetUid(-1); err != nil || now != uid {
		return unix.EPERM
	}
	return nil
}

// on gives or takes root's capabilities according to the owner of the inode that is
// worked on next.
func (s *session) on(st *unix.Stat_t) error {
	return s.setOverride(s.mine(st.Uid) && s.mine(st.Gid))
}

func (s *session) mine(id uint32) bool { return id-s.ids.HostID < s.ids.Size }

func (s *session) setOverride(want bool) error {
	if !s.root || want == s.override {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	if want {
		data[0].Effective |= rootCaps & data[0].Permitted
	} else {
		data[0].Effective &^= rootCaps
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return err
	}
	s.override = want
	return nil
}
