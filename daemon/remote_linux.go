package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paddock-run/paddock/api"
)

// RemoteOptions say where the daemon listens for clients of other hosts. The zero value is
// nowhere. There is no way to listen there without TLS and tokens.
type RemoteOptions struct {
	// Address is HOST:PORT; port 0 is one that is free.
	Address string
	// CertFile and KeyFile are PEM. The certificate's names are those under which clients
	// may ask for the daemon; any other Host is refused.
	CertFile, KeyFile string
	// TokenFile has lines "TENANT TOKEN" and may be read by the daemon's user alone.
	TokenFile string
}

// Strangers are connections that have not shown a token yet; they have five seconds. These
// cap them, in all and from one address.
const (
	maxStrangers       = 4096
	maxStrangersOfHost = 1024
)

// remote is the side of the daemon that other hosts see. A changed certificate or token
// file holds from the next connection or request on; one that is wrong leaves the last
// that was right in force.
type remote struct {
	options RemoteOptions
	log     *slog.Logger
	cert    *watched[*tls.Certificate]
	tokens  *watched[tokens]
}

func newRemote(o RemoteOptions, log *slog.Logger) (*remote, error) {
	if o.CertFile == "" || o.KeyFile == "" || o.TokenFile == "" {
		return nil, errors.New("to listen for other hosts takes a certificate, its key and a file of tokens")
	}
	r := &remote{options: o, log: log}
	r.cert = &watched[*tls.Certificate]{files: []string{o.CertFile, o.KeyFile}, load: r.loadCert}
	r.tokens = &watched[tokens]{files: []string{o.TokenFile}, load: r.loadTokens}
	if err := r.cert.refresh(); err != nil {
		return nil, err
	}
	return r, r.tokens.refresh()
}

func (r *remote) loadCert() (*tls.Certificate, error) {
	if err := onlyOurs(r.options.KeyFile); err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(r.options.CertFile, r.options.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s, key %s: %w", r.options.CertFile, r.options.KeyFile, err)
	}
	if cert.Leaf == nil || len(cert.Leaf.DNSNames)+len(cert.Leaf.IPAddresses) == 0 {
		return nil, fmt.Errorf("certificate %s: names no host (subjectAltName), so no client could check it", r.options.CertFile)
	}
	return &cert, nil
}

func (r *remote) loadTokens() (tokens, error) {
	if err := onlyOurs(r.options.TokenFile); err != nil {
		return nil, err
	}
	f, err := os.Open(r.options.TokenFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxTokenFile {
		return nil, fmt.Errorf("token file %s: has more than %d bytes", r.options.TokenFile, maxTokenFile)
	}
	all, err := parseTokens(data)
	if err != nil {
		return nil, fmt.Errorf("token file %s: %w", r.options.TokenFile, err)
	}
	return all, nil
}

// onlyOurs refuses a secret that others could read or change.
func onlyOurs(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: is not a regular file", file)
	case !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s: belongs to another user; give it to root with chown", file)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s: others may read or write it (mode %04o); take that away with chmod go=", file, info.Mode().Perm())
	}
	return nil
}

// listen makes the socket. Who connects has five seconds for the handshake and the head of
// a request.
func (r *remote) listen(ctx context.Context, all *caps) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", r.options.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", r.options.Address, err)
	}
	strangers := &caps{max: maxStrangers, perAccount: maxStrangersOfHost, refused: all.refused, open: map[string]int{}}
	return tls.NewListener(&remoteListener{Listener: l, caps: all, strangers: strangers}, &tls.Config{
		MinVersion: tls.VersionTLS13,
		// One request a connection at a time, as on the unix socket: a lease is a connection.
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := r.cert.get()
			if err != nil {
				r.log.Error("certificate not read again; the last one stays", slog.Any("error", err))
			}
			return cert, nil
		},
	}), nil
}

// ownHost says whether the certificate is good for the host that a client asked for.
func (r *remote) ownHost(host string) bool {
	cert, _ := r.cert.get() // an error is logged by the handshake
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	return name != "" && isFor(cert.Leaf, name)
}

func isFor(leaf *x509.Certificate, name string) bool {
	if net.ParseIP(name) != nil {
		name = "[" + name + "]"
	}
	return leaf.VerifyHostname(name) == nil
}

// authenticate finds the tenant whose token the request carries.
func (r *remote) authenticate(req *http.Request) (tenant string, err error) {
	text := req.Header.Get("Authorization")
	scheme, token, _ := strings.Cut(text, " ")
	if text == "" || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", &api.Error{Kind: api.Unauthenticated, Field: "Authorization", Detail: "this listener wants the header Authorization: Bearer TOKEN"}
	}
	all, err := r.tokens.get()
	if err != nil {
		r.log.Error("tokens not read again; the last ones stay", slog.Any("error", err))
	}
	tenant, ok := all.tenant(token)
	if !ok {
		return "", &api.Error{Kind: api.Unauthenticated, Field: "Authorization", Detail: "the token is not one of this daemon's"}
	}
	return tenant, nil
}

// remoteListener accepts connections of other hosts within the caps.
type remoteListener struct {
	net.Listener
	// caps are of all connections, strangers of those without a token so far.
	caps, strangers *caps
}

// Accept returns the next connection that is within the caps. Others are closed: a word
// to them would take a handshake.
func (l *remoteListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, ok := l.admit(conn); ok {
			return c, nil
		}
		_ = conn.Close()
	}
}

func (l *remoteListener) admit(conn net.Conn) (*peerConn, bool) {
	address := conn.RemoteAddr().String()
	host, _, _ := net.SplitHostPort(address) // TCP's addresses have a port
	release, ok := l.caps.admit(host, false)
	if !ok {
		return nil, false
	}
	known, ok := l.strangers.admit(host, false)
	if !ok {
		release()
		return nil, false
	}
	return &peerConn{
		Conn: conn, peer: peer{uid: noID, gid: noID, remote: address, known: known},
		release: func() { known(); release() },
	}, true
}

// watched is a value that is read from files, again when they have changed.
type watched[T any] struct {
	files []string
	load  func() (T, error)

	mu    sync.Mutex
	stamp []stamp
	value T
	// wrong is why the files as they are now cannot be used; it is told once.
	wrong error
}

// stamp tells versions of a file apart.
type stamp struct {
	size  int64
	mtime time.Time
	ino   uint64
}

func (w *watched[T]) refresh() error {
	_, err := w.get()
	return err
}

// get is the value of the files as they are. Where they cannot be read, it is the last
// that could, and the error says why, once for each change.
func (w *watched[T]) get() (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := stampsOf(w.files)
	if err == nil && sameStamps(now, w.stamp) {
		return w.value, nil
	}
	if err == nil {
		var v T
		if v, err = w.load(); err == nil {
			w.value, w.stamp, w.wrong = v, now, nil
			return v, nil
		}
	}
	if w.wrong != nil && w.wrong.Error() == err.Error() {
		return w.value, nil
	}
	w.wrong = err
	return w.value, err
}

func stampsOf(files []string) ([]stamp, error) {
	all := make([]stamp, len(files))
	for i, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		all[i] = stamp{size: info.Size(), mtime: info.ModTime(), ino: inode(info)}
	}
	return all, nil
}

func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

func sameStamps(a, b []stamp) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].size != b[i].size || a[i].ino != b[i].ino || !a[i].mtime.Equal(b[i].mtime) {
			return false
		}
	}
	return true
}
