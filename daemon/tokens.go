package daemon

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// minToken is the least length of a token: 32 characters of base64 are 192 bits.
const minToken = 32

// maxTokenFile bounds a file of tokens.
const maxTokenFile = 1 << 20

// tenantForm is what a tenant may be called. A user id in digits is one, so that a token
// can be that of a local user.
var tenantForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// CheckTenant says why name cannot be a tenant's.
func CheckTenant(name string) error {
	if !tenantForm.MatchString(name) {
		return fmt.Errorf("tenant %q: want lower case letters, digits and ._-, at most 64", name)
	}
	return nil
}

// rootTenant is root's name as a tenant. Only the kernel says who is root.
const rootTenant = "0"

// tokens are the tenants by the SHA-256 of their tokens: a look-up by digest takes no time
// that depends on how much of a guess was right.
type tokens map[[sha256.Size]byte]string

// tenant is whose token it is.
func (t tokens) tenant(token string) (string, bool) {
	name, ok := t[sha256.Sum256([]byte(token))]
	return name, ok
}

// parseTokens reads a file of lines "TENANT TOKEN"; empty lines and those that begin with
// # say nothing. A tenant may have several tokens, so that one can be replaced. An error
// names the line and never the token.
func parseTokens(data []byte) (tokens, error) {
	all := tokens{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 2 {
			return nil, fmt.Errorf("line %d: want TENANT TOKEN", n)
		}
		if !tenantForm.MatchString(words[0]) { // it may be the token, so it is not told
			return nil, fmt.Errorf("line %d: the first word is no tenant's name: want lower case letters, digits and ._-, at most 64", n)
		}
		if words[0] == rootTenant {
			return nil, fmt.Errorf("line %d: tenant %s is root of this host, who comes by the unix socket", n, rootTenant)
		}
		if err := checkToken(words[1]); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		key := sha256.Sum256([]byte(words[1]))
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("line %d: the token is an earlier line's too", n)
		}
		all[key] = words[0]
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("there is no token in it; make one with: echo NAME $(head -c 32 /dev/urandom | base64)")
	}
	return all, nil
}

func checkToken(token string) error {
	if len(token) < minToken {
		return fmt.Errorf("the token has %d characters, want %d or more", len(token), minToken)
	}
	for _, r := range token {
		if r <= ' ' || r > '~' {
			return errors.New("the token is not printable ASCII")
		}
	}
	return nil
}
