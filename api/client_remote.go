package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

// Environment of a client of another host.
const (
	// HostEnv is HOST:PORT of the daemon.
	HostEnv = "PADDOCK_HOST"
	// TokenFileEnv names a file that holds the token.
	TokenFileEnv = "PADDOCK_TOKEN_FILE"
	// CAFileEnv names the PEM certificates that the daemon's is checked against; without it
	// they are the system's.
	CAFileEnv = "PADDOCK_TLS_CA"
)

// maxTokenBytes bounds a file that holds a token.
const maxTokenBytes = 64 << 10

// Target says which daemon a client is for. Empty fields are taken from the environment.
type Target struct {
	// Socket is the unix socket of a daemon of this host.
	Socket string
	// Host is HOST:PORT of a daemon that listens for other hosts.
	Host string
	// TokenFile holds the token: its first word, or the second of a line "TENANT TOKEN".
	TokenFile string
	// CAFile are PEM certificates that the daemon's is checked against; empty is the system's.
	CAFile string
}

// Connect makes a client of a target. A field that is set wins over the environment, so
// that a Socket stands against PADDOCK_HOST and a Host against PADDOCK_SOCKET. It connects
// when first used; what is wrong with the target is the error of every request.
func Connect(t Target) *Client {
	c, err := t.client()
	if err != nil {
		return &Client{failed: err}
	}
	return c
}

func (t Target) client() (*Client, error) {
	if t.Socket != "" && t.Host != "" {
		return nil, &Error{Kind: BadRequest, Field: "host", Detail: "a socket and a host are given; a client is for one daemon"}
	}
	if t.Socket != "" {
		return NewClient(t.Socket), nil
	}
	if t.Host == "" {
		t.Host = os.Getenv(HostEnv)
		if t.Host != "" && os.Getenv(SocketEnv) != "" {
			return nil, &Error{Kind: BadRequest, Field: HostEnv, Detail: HostEnv + " and " + SocketEnv + " are both set; a client is for one daemon"}
		}
	}
	if t.Host == "" {
		return NewClient(SocketPath("")), nil
	}
	return t.remote()
}

func (t Target) remote() (*Client, error) {
	if _, port, err := net.SplitHostPort(t.Host); err != nil || port == "" {
		return nil, &Error{Kind: BadRequest, Field: "host", Detail: fmt.Sprintf("host %q: want HOST:PORT", t.Host)}
	}
	if t.TokenFile == "" {
		t.TokenFile = os.Getenv(TokenFileEnv)
	}
	if t.CAFile == "" {
		t.CAFile = os.Getenv(CAFileEnv)
	}
	token, err := readToken(t.TokenFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	if t.CAFile != "" {
		if config.RootCAs, err = readCAs(t.CAFile); err != nil {
			return nil, err
		}
	}
	return &Client{host: t.Host, token: token, http: httpClient(&http.Transport{TLSClientConfig: config})}, nil
}

func readToken(file string) (string, error) {
	if file == "" {
		return "", &Error{
			Kind: Unauthenticated, Detail: "a daemon of another host wants a token",
			Hint: "name the file that holds it with --token-file or " + TokenFileEnv,
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return "", &Error{Kind: Unauthenticated, Field: "token-file", Detail: "token: " + err.Error()}
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes))
	if err != nil {
		return "", &Error{Kind: Unauthenticated, Field: "token-file", Detail: "token: " + err.Error()}
	}
	words := strings.Fields(string(data))
	if len(words) != 1 && len(words) != 2 {
		return "", &Error{Kind: Unauthenticated, Field: "token-file", Detail: fmt.Sprintf("token file %s: want a token, or one line TENANT TOKEN", file)}
	}
	return words[len(words)-1], nil
}

func readCAs(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, &Error{Kind: BadRequest, Field: "tls-ca", Detail: "certificates: " + err.Error()}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &Error{Kind: BadRequest, Field: "tls-ca", Detail: "certificates: there are none in " + file}
	}
	return pool, nil
}

// explainRemote makes an error of reaching another host one that says what to do; nil when
// it is none of those.
func (c *Client) explainRemote(err error) *Error {
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &Error{
			Kind: Unavailable, Detail: fmt.Sprintf("host %s: its certificate is not trusted: %v", c.host, cert.Err),
			Hint: "ask for it under a name of its certificate, and name who signed that with --tls-ca or " + CAFileEnv,
		}
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return &Error{
			Kind: Unavailable, Detail: fmt.Sprintf("host %s: %v", c.host, dial.Err),
			Hint: "the daemon listens there when it is started with --listen, --tls-cert, --tls-key and --token-file",
		}
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return &Error{Kind: Unavailable, Detail: fmt.Sprintf("host %s: what answers there does not speak TLS", c.host)}
	}
	return nil
}
