package egress

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
)

// Target is where an endpoint leads: a socket of the host, a port, or a served app.
type Target struct {
	network, address string
	health           string
}

// maxSocketPath is what a socket's name may have.
const maxSocketPath = 107

// errOwnSocket says that a target is a socket of this very process: there, the daemon would
// be taken for its own client, with its own rights.
var errOwnSocket = errors.New("that is a socket of the daemon's own")

var appName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// ParseTarget reads unix:/PATH, app:NAME or HOST:PORT. HOST is looked up by the host's own resolver and
// may be anything that the daemon reaches: it is the client that names it, never a sandbox.
func ParseTarget(text string) (Target, error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) || len(path) > maxSocketPath {
			return Target{}, fmt.Errorf("%.200q: want unix: and a clean absolute path of at most %d bytes", text, maxSocketPath)
		}
		return Target{network: "unix", address: path}, nil
	}
	if name, ok := strings.CutPrefix(text, "app:"); ok {
		if !appName.MatchString(name) {
			return Target{}, fmt.Errorf("%.200q: want app: and a name %s", text, appName)
		}
		return Target{network: "app", address: name}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return Target{}, fmt.Errorf("%.200q: want unix:/PATH, app:NAME or HOST:PORT", text)
	}
	if _, err := parsePort(port); err != nil {
		return Target{}, fmt.Errorf("%.200q: %w", text, err)
	}
	return Target{network: "tcp", address: text}, nil
}

// String is what ParseTarget reads.
func (t Target) String() string {
	if t.network != "tcp" {
		return t.network + ":" + t.address
	}
	return t.address
}

// maxHealthPath bounds a path of WithHealth.
const maxHealthPath = 256

// WithHealth has the target asked for a path where it is in doubt whether it works; empty is
// the root. An answer of 5xx to it says that it does not.
func (t Target) WithHealth(path string) (Target, error) {
	if path != "" && (path[0] != '/' || len(path) > maxHealthPath || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' })) {
		return Target{}, fmt.Errorf("health %.300q: want a path from / on, of at most %d printable letters", path, maxHealthPath)
	}
	t.health = path
	return t, nil
}

func (t Target) healthPath() string {
	if t.health == "" {
		return "/"
	}
	return t.health
}

// App is the served app that the target is; empty is none.
func (t Target) App() string {
	if t.network == "app" {
		return t.address
	}
	return ""
}

// hostHeader is what requests call the target.
func (t Target) hostHeader() string {
	if t.network != "tcp" {
		return "localhost"
	}
	return t.address
}
