package sandbox

import "fmt"

// UserError says that a user named in a request is not one of the world's.
type UserError struct {
	// Kind is user_not_found, group_not_found or invalid_user.
	Kind string
	Ref  string
}

func (e *UserError) Error() string { return fmt.Sprintf("user %q: %s", e.Ref, e.Kind) }

// LookupUser finds who ref names in the contents of a world's passwd and group files,
// which are hostile input. ref is "name", "uid", "name:group", "uid:gid" or a mixture. A
// number needs no entry. home and shell are "" where there is no entry. Supplementary
// groups are those that list the user, unless ref names a group.
func LookupUser(passwd, group []byte, ref string) (user User, home, shell string, err error) {
	return User{}, "", "", &UserError{Kind: "user_not_found", Ref: ref}
}
