package daemon

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// peer is who connected: over the unix socket as the kernel says, over TCP as its token
// says. Refusal is empty for those let in.
type peer struct {
	uid, gid uint32
	pid      int32
	refusal  string
	// tenant is whose runs it drives. Of a remote peer it is empty until the guard has seen
	// a token.
	tenant string
	// remote is the address of one who came over TCP, whose ids are noID. known takes it out
	// of the count of strangers.
	remote string
	known  func()
	// loopback says that it came over the apps' port.
	loopback bool
}

// noID is no user's and no group's, as the kernel has it.
const noID = ^uint32(0)

// owner is the peer as the owner of runs.
func (p peer) owner() string { return p.tenant }

// root says whether the kernel vouches that the peer is root of this host.
func (p peer) root() bool { return p.remote == "" && p.uid == 0 }

// gate decides who is let in.
type gate struct {
	own   uint32
	group int // -1: none
	// only, when set, lets this uid in and nobody else but root and the daemon's own.
	only *uint32
	// tenants are those of uids that are not their own.
	tenants map[uint32]string
}

func newGate(group int) gate { return gate{own: uint32(os.Geteuid()), group: group} }

// tenant is whose runs a uid drives: those of the tenant it was given to, else its own.
func (g gate) tenant(uid uint32) string {
	if name, ok := g.tenants[uid]; ok {
		return name
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// check asks the kernel who is at the other end of conn.
func (g gate) check(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	var p peer
	var asked error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); asked != nil {
			return
		}
		p = peer{uid: cred.Uid, gid: cred.Gid, pid: cred.Pid, tenant: g.tenant(cred.Uid)}
		if g.admits(p, nil) {
			return
		}
		// The other groups are asked for only when they matter.
		groups, err := peerGroups(int(fd))
		if err != nil || !g.admits(p, groups) {
			p.refusal = g.refusal(p)
		}
	})
	if err != nil {
		return peer{}, err
	}
	return p, asked
}

func (g gate) admits(p peer, groups []uint32) bool {
	switch {
	case p.uid == 0 || p.uid == g.own:
		return true
	case g.only != nil:
		return p.uid == *g.only
	case g.group < 0:
		return false
	}
	return p.gid == uint32(g.group) || slices.Contains(groups, uint32(g.group))
}

func (g gate) refusal(p peer) string {
	who := fmt.Sprintf("uid %d (pid %d) is not let in", p.uid, p.pid)
	switch {
	case g.only != nil:
		return fmt.Sprintf("%s: this socket is for uid %d alone", who, *g.only)
	case g.group < 0:
		return fmt.Sprintf("%s: only root and uid %d are; start the daemon with --socket-group GROUP and add the user to that group", who, g.own)
	}
	return fmt.Sprintf("%s: only root, uid %d and members of group %s are; add the user with `usermod -aG %s USER` and log in again",
		who, g.own, groupName(g.group), groupName(g.group))
}
