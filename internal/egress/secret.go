package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"

	"golang.org/x/net/http/httpguts"
)

// Secret is a header that the proxy adds to requests for certain hosts, so that its value is
// never inside a sandbox. It is put into plain requests alone, for a tunnel is closed to the
// proxy: where TLS is set, a plain request http://HOST/ goes out as https://HOST/, with the
// host's certificate held against the host's roots.
//
// The value is nowhere but in the request that goes out: not in a spec, a record or a
// ledger. A service that prints its requests tells it.
type Secret struct {
	Name string
	// Hosts are those whose requests get it; the ports are those that are dialled.
	Hosts  []Entry
	Header string
	Value  string
	// TLS makes the proxy speak TLS to the host; a request without a port then goes to 443.
	TLS bool
}

// Secrets are those of a host, by name. They are the operator's: a client can only name them.
type Secrets map[string]Secret

// secretFile is the form of a file of secrets.
type secretFile struct {
	Secrets []struct {
		Name   string   `json:"name"`
		Hosts  []string `json:"hosts"`
		Header string   `json:"header"`
		Value  string   `json:"value"`
		TLS    bool     `json:"tls"`
	} `json:"secrets"`
}

var secretName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,63}$`)

// Bounds of a file of secrets.
const (
	maxSecretFile = 1 << 20
	maxSecrets    = 256
)

// ReadSecrets reads a file that nobody but its owner may read:
//
//	{"secrets": [{"name": "judge", "hosts": ["api.example.com:443"], "tls": true,
//	              "header": "Authorization", "value": "Bearer ..."}]}
//
// No error holds a value.
func ReadSecrets(path string) (Secrets, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("secrets %s: others than its owner may read or write it (mode %04o)", path, st.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, err
	}
	s, err := parseSecrets(b)
	if err != nil {
		return nil, fmt.Errorf("secrets %s: %w", path, err)
	}
	return s, nil
}

func parseSecrets(b []byte) (Secrets, error) {
	if len(b) > maxSecretFile {
		return nil, fmt.Errorf("more than %d bytes", maxSecretFile)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var file secretFile
	if err := dec.Decode(&file); err != nil {
		return nil, errors.New("not the JSON that is documented") // the decoder's words may hold a value
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the end")
	}
	if len(file.Secrets) > maxSecrets {
		return nil, fmt.Errorf("%d secrets, at most %d are allowed", len(file.Secrets), maxSecrets)
	}
	all := Secrets{}
	for i, s := range file.Secrets {
		hosts, err := ParseEntries(s.Hosts)
		_, twice := all[s.Name]
		switch {
		case !secretName.MatchString(s.Name):
			return nil, fmt.Errorf("secrets/%d/name: want %s", i, secretName)
		case twice:
			return nil, fmt.Errorf("secrets/%d/name: %q is there twice", i, s.Name)
		case err != nil:
			return nil, fmt.Errorf("secrets/%d/hosts: %w", i, err)
		case len(hosts) == 0:
			return nil, fmt.Errorf("secrets/%d/hosts: is empty", i)
		case !httpguts.ValidHeaderFieldName(s.Header) || slices.Contains(hopByHop, s.Header):
			return nil, fmt.Errorf("secrets/%d/header: not a header that can be set", i)
		case s.Value == "" || !httpguts.ValidHeaderFieldValue(s.Value):
			return nil, fmt.Errorf("secrets/%d/value: empty, or not the text of a header", i)
		}
		all[s.Name] = Secret{Name: s.Name, Hosts: hosts, Header: s.Header, Value: s.Value, TLS: s.TLS}
	}
	return all, nil
}

// UnknownSecretError says that Rules name a secret that the host has not.
type UnknownSecretError struct{ Name string }

func (e *UnknownSecretError) Error() string { return fmt.Sprintf("unknown secret %q", e.Name) }

// HasSecrets says which of the named secrets the host has not, as an *UnknownSecretError.
func (h *Host) HasSecrets(names []string) error { return h.Secrets.Check(names) }

// Check says whether the host has the secrets of that name.
func (s Secrets) Check(names []string) error {
	for _, n := range names {
		if _, ok := s[n]; !ok {
			return &UnknownSecretError{Name: n}
		}
	}
	return nil
}

// injection is what is added to one request.
type injection struct {
	headers []Secret
	tls     bool
}

// injected finds the secrets for a plain request, and makes t the destination that is meant:
// with TLS, port 80 (none was named, or the usual one) becomes 443.
func (s Secrets) injected(names []string, t *target) injection {
	var in injection
	secure := *t
	if secure.port == 80 {
		secure.port = 443
	}
	for _, n := range names {
		secret := s[n]
		at := *t
		if secret.TLS {
			at = secure
		}
		for i := range secret.Hosts {
			if e := &secret.Hosts[i]; e.names(at) && e.hasPort(at.port) {
				in.headers = append(in.headers, secret)
				in.tls = in.tls || secret.TLS
				break
			}
		}
	}
	if !in.tls {
		return in
	}
	*t = secure
	// A secret for the plain port does not go out on the other one.
	in.headers = slices.DeleteFunc(in.headers, func(s Secret) bool { return !s.TLS })
	return in
}
