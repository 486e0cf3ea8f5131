package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
)

// remoteFiles makes a certificate for 127.0.0.1, its key and a file of tokens for alice
// and bob in dir.
func remoteFiles(tb testing.TB, dir string) (flags []string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"cert": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		"key":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"tokens": []byte("alice alice-0123456789-0123456789-0123456789\n" +
			"bob bob-0123456789-0123456789-0123456789-01\n"),
		"alice": []byte("alice-0123456789-0123456789-0123456789\n"),
		"bob":   []byte("bob-0123456789-0123456789-0123456789-01\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return []string{
		"--listen", "127.0.0.1:0", "--tls-cert", filepath.Join(dir, "cert"), "--tls-key", filepath.Join(dir, "key"),
		"--token-file", filepath.Join(dir, "tokens"),
	}
}

var listening = regexp.MustCompile(`listen=(127\.0\.0\.1:\d+)`)

func TestCommandsReachADaemonOfAnotherHost(t *testing.T) {
	h, dir := newHost(t), t.TempDir()
	d := h.serve(t, remoteFiles(t, dir)...)
	at := listening.FindStringSubmatch(d.log.String())
	if at == nil {
		t.Fatalf("the log does not say where it listens:\n%s", d.log)
	}
	h.must(t, "world", "build", "--busybox", "--name", "box")
	h.must(t, "episode", "create", "box", "--id", "of-root")
	paddock := func(tenant string, args ...string) (int, string, string) {
		var out, errs strings.Builder
		code := run(t.Context(), append([]string{
			"--host", at[1], "--token-file", filepath.Join(dir, tenant), "--tls-ca", filepath.Join(dir, "cert"),
		}, args...), nil, &out, &errs)
		return code, out.String(), errs.String()
	}
	if code, out, errs := paddock("alice", "run", "box", "--", "echo", "far away"); code != 0 || out != "far away\n" {
		t.Errorf("a run from another host: exit code %d, %q, %s", code, out, errs)
	}
	if code, out, errs := paddock("alice", "episode", "create", "box", "--id", "mine"); code != 0 {
		t.Errorf("create: exit code %d, %s, %s", code, out, errs)
	}
	if code, out, _ := paddock("bob", "episode", "ls"); code != 0 || strings.Contains(out, "mine") || strings.Contains(out, "of-root") {
		t.Errorf("bob lists others' episodes: exit code %d, %s", code, out)
	}
	if code, _, errs := paddock("bob", "episode", "show", "mine"); code != exitFailed || !strings.Contains(errs, "not_found") {
		t.Errorf("bob sees alice's episode: exit code %d, %s", code, errs)
	}
	// A directory goes along as a tar: the daemon opens no path for another host.
	if err := os.WriteFile(filepath.Join(dir, "here"), []byte("of the client"), 0o644); err != nil { //nolint:gosec // the sandbox reads it
		t.Fatal(err)
	}
	if code, _, errs := paddock("alice", "world", "build", dir, "--base", "box", "--into", "/data", "--name", "own"); code != 0 {
		t.Fatalf("build from another host: exit code %d, %s", code, errs)
	}
	if code, out, errs := paddock("alice", "run", "own", "--", "cat", "/data/here"); code != 0 || out != "of the client" {
		t.Errorf("its world: exit code %d, %q, %s", code, out, errs)
	}
	if code, _, errs := paddock("bob", "run", "own", "--", "true"); code == 0 || !strings.Contains(errs, "unknown_world") {
		t.Errorf("bob runs alice's world by its name: exit code %d, %s", code, errs)
	}
	// So does a Dockerfile's context; what it starts from is what its tenant sees.
	dockerfile := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(dockerfile, []byte("FROM own\nCOPY . /copied\nRUN cat /copied/here /data/here > /both\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := paddock("alice", "world", "build", "-f", dockerfile, "--name", "built", dir); code != 0 {
		t.Fatalf("a Dockerfile from another host: exit code %d, %s", code, errs)
	}
	if code, out, errs := paddock("alice", "run", "built", "--", "cat", "/both"); code != 0 || out != "of the clientof the client" {
		t.Errorf("its world: exit code %d, %q, %s", code, out, errs)
	}
	if code, _, errs := paddock("bob", "world", "build", "-f", dockerfile, dir); code == 0 || !strings.Contains(errs, "Dockerfile:1: no world \"own\"") {
		t.Errorf("bob builds on alice's world: exit code %d, %s", code, errs)
	}
	bob := api.Connect(api.Target{Host: at[1], TokenFile: filepath.Join(dir, "bob"), CAFile: filepath.Join(dir, "cert")})
	defer bob.Close()
	for _, name := range []string{"own", "t:alice:own"} {
		_, err := bob.Judge(t.Context(), api.JudgeSpec{World: name, Language: "shell", Code: "cat /data/here", Cases: []api.JudgeCase{{Name: "a"}}}, nil)
		if p, ok := errors.AsType[*api.Error](err); !ok || p.Kind != api.UnknownWorld {
			t.Errorf("bob judges on alice's world %s: %v", name, err)
		}
	}
	if code, _, errs := paddock("bob", "world", "rm", "box"); code == 0 || !strings.Contains(errs, "permission_denied") {
		t.Errorf("bob removes root's world: exit code %d, %s", code, errs)
	}
	t.Setenv("PADDOCK_HOST", at[1])
	t.Setenv("PADDOCK_TOKEN_FILE", filepath.Join(dir, "alice"))
	t.Setenv("PADDOCK_TLS_CA", filepath.Join(dir, "cert"))
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"episode", "ls"}, nil, &out, &errs); code != 0 || !strings.Contains(out.String(), "mine") {
		t.Errorf("by the environment: exit code %d, %s, %s", code, out.String(), errs.String())
	}
	if out := h.must(t, "episode", "ls"); !strings.Contains(out, "of-root") || strings.Contains(out, "mine") {
		t.Errorf("--socket beside PADDOCK_HOST lists %s", out)
	}
}

func TestListenerWithoutTLSOrTokensIsAWrongUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := remoteFiles(t, dir)
	for i := 0; i < len(all); i += 2 {
		args := append([]string{"serve", "--root", filepath.Join(dir, "root")}, all[:i]...)
		args = append(args, all[i+2:]...)
		var out, errs strings.Builder
		if code := run(t.Context(), args, nil, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), "go together") {
			t.Errorf("without %s: exit code %d, %s", all[i], code, errs.String())
		}
	}
	for _, tenant := range []string{"team", "team=", "team=0", "team=x", "1000=1001", "Team=1000", "a=1,1"} {
		var out, errs strings.Builder
		if code := run(t.Context(), []string{"serve", "--root", filepath.Join(dir, "root"), "--tenant", tenant}, nil, &out, &errs); code != exitUsage {
			t.Errorf("--tenant %s: exit code %d, %s", tenant, code, errs.String())
		}
	}
}
