package sandbox

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// UserError says that a user named in a request is not one of the world's.
type UserError struct {
	// Kind is user_not_found, group_not_found or invalid_user (a name out of form, or an
	// id that the sandbox's user namespace does not have).
	Kind string
	Ref  string
	// Detail is for people; may be empty.
	Detail string
}

func (e *UserError) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("user %q: %s", e.Ref, e.Kind)
	}
	return fmt.Sprintf("user %q: %s: %s", e.Ref, e.Kind, e.Detail)
}

// Bounds on passwd and group files, which a world or an agent wrote.
const (
	maxUserFile  = 4 << 20
	maxUserLine  = 64 << 10
	maxUserRef   = 256
	maxGroups    = 1024
	maxHomeShell = 4096
)

// LookupUser finds who ref names in the contents of a world's passwd and group files,
// which are hostile input: what is too long or out of form is passed over. ref is "name",
// "uid", "name:group", "uid:gid" or a mixture. A name of digits is always a number, so
// that no passwd line can make "1000" somebody else, and a number needs no entry: without
// one the group is 0, as in Docker. Of several entries with one name the first counts, as
// in libc. home and shell are "" where there is no entry. Supplementary groups are those
// that list the user, unless ref names a group.
func LookupUser(passwd, group []byte, ref string) (user User, home, shell string, err error) {
	name, groupName, hasGroup := strings.Cut(ref, ":")
	if !validRef(name) || hasGroup && !validRef(groupName) {
		return User{}, "", "", &UserError{Kind: "invalid_user", Ref: clip(ref), Detail: "want name, uid, name:group or uid:gid"}
	}
	entry, found := findUser(passwd, name)
	if !found {
		uid, isNumber := number(name)
		if !isNumber {
			return User{}, "", "", &UserError{Kind: "user_not_found", Ref: ref}
		}
		entry = passwdEntry{uid: uid}
	}
	user = User{UID: entry.uid, GID: entry.gid}
	switch {
	case hasGroup:
		gid, ok := findGroup(group, groupName)
		if !ok {
			return User{}, "", "", &UserError{Kind: "group_not_found", Ref: ref}
		}
		user.GID = gid
	case found:
		user.Groups = groupsOf(group, entry)
	}
	if user.UID >= IDRangeSize || user.GID >= IDRangeSize {
		return User{}, "", "", &UserError{
			Kind: "invalid_user", Ref: ref,
			Detail: fmt.Sprintf("the sandbox has the ids 0 to %d", IDRangeSize-1),
		}
	}
	return user, entry.home, entry.shell, nil
}

func clip(ref string) string { return ref[:min(len(ref), maxUserRef)] }

func validRef(s string) bool {
	return s != "" && len(s) <= maxUserRef && !strings.ContainsAny(s, ":\n\x00")
}

// number reads an id as an unsigned 32-bit decimal number: no sign, no white space.
func number(s string) (uint32, bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		// Digits that do not fit name no id of any sandbox; the bound on ids says so.
		return ^uint32(0), s != ""
	}
	return uint32(n), true
}

type passwdEntry struct {
	name        string
	uid, gid    uint32
	home, shell string
}

func findUser(passwd []byte, ref string) (passwdEntry, bool) {
	want, byNumber := number(ref)
	for f := range entries(passwd, 7) {
		uid, ok1 := number(string(f[2]))
		gid, ok2 := number(string(f[3]))
		if !ok1 || !ok2 || len(f[0]) == 0 || len(f[5]) > maxHomeShell || len(f[6]) > maxHomeShell {
			continue
		}
		if byNumber && uid == want || !byNumber && string(f[0]) == ref {
			return passwdEntry{string(f[0]), uid, gid, string(f[5]), string(f[6])}, true
		}
	}
	return passwdEntry{}, false
}

func findGroup(group []byte, ref string) (uint32, bool) {
	if gid, ok := number(ref); ok {
		return gid, true
	}
	for f := range entries(group, 4) {
		if gid, ok := number(string(f[2])); ok && string(f[0]) == ref {
			return gid, true
		}
	}
	return 0, false
}

// groupsOf lists the groups that name the user, without the primary one, sorted. Groups
// that the sandbox cannot have are left out.
func groupsOf(group []byte, e passwdEntry) []uint32 {
	var all []uint32
	for f := range entries(group, 4) {
		gid, ok := number(string(f[2]))
		if !ok || gid >= IDRangeSize || gid == e.gid || slices.Contains(all, gid) {
			continue
		}
		for member := range bytes.SplitSeq(f[3], []byte(",")) {
			if string(member) == e.name {
				all = append(all, gid)
				break
			}
		}
		if len(all) == maxGroups {
			break
		}
	}
	slices.Sort(all)
	return all
}

// entries yields the lines that have n fields; n-1 will do, as an empty last field is
// often left out. Comments, NIS lines (+, -) and lines with NUL bytes are passed over.
func entries(data []byte, n int) iter.Seq[[][]byte] {
	return func(yield func([][]byte) bool) {
		for line := range bytes.SplitSeq(data[:min(len(data), maxUserFile)], []byte("\n")) {
			if len(line) == 0 || len(line) > maxUserLine || bytes.IndexByte(line, 0) >= 0 || bytes.IndexByte([]byte("#+-"), line[0]) >= 0 {
				continue
			}
			fields := bytes.SplitN(line, []byte(":"), n+1)
			if len(fields) == n-1 {
				fields = append(fields, nil)
			}
			if len(fields) == n && !yield(fields) {
				return
			}
		}
	}
}
