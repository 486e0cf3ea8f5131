package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
)

func TestAWorldIsBuiltFromADockerfile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "box")
	h.must(t, "world", "alias", "debian:latest", "box")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"docker/Dockerfile": "FROM debian AS base\nARG GREETING=hello\nRUN echo $GREETING > /greeting; echo said\nFROM base\nWORKDIR /work\nCOPY f ./\nUSER agent\nCMD cat /greeting f\n",
		"f":                 "file\n", "other": "FROM box\nRUN echo words >&2; wget -q http://a.test/; exit 3\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := []string{"world", "build", "-f", dir + "/docker/Dockerfile", "--name", "app", "--build-arg", "GREETING=good day", dir}
	code, out, errs := h.paddock(t, nil, build...)
	if code != 0 || !strings.Contains(out, "app, ") || !strings.Contains(errs, "[3/8] RUN echo $GREETING > /greeting; echo said\nsaid\n") {
		t.Fatalf("exit code %d, out %q, errors %q", code, out, errs)
	}
	if out := h.must(t, "run", "app", "--entrypoint"); out != "good day\nfile\n" {
		t.Errorf("it says %q", out)
	}
	var built api.Built
	if err := json.Unmarshal([]byte(h.must(t, append([]string{"--json"}, build...)...)), &built); err != nil || !built.Hit || len(built.Steps) != 3 || built.Network {
		t.Errorf("the second build: %+v, %v; want three steps of the cache", built, err)
	}
	if out := h.must(t, "world", "ls"); strings.Contains(out, "dockerfile step") {
		t.Errorf("steps are listed:\n%s", out)
	}
	if out := h.must(t, "world", "ls", "--steps"); !strings.Contains(out, "dockerfile step") {
		t.Errorf("--steps lists none:\n%s", out)
	}
	code, _, errs = h.paddock(t, nil, "world", "build", "-f", dir+"/other", "--network", "allow:b.test:8080,c.test", dir)
	for _, want := range []string{"have a network: b.test:8080 c.test", "words\n", `build_failed: "other:2"`, "exited with 3", "it asked for a.test:80: host_refused"} {
		if code != exitFailed || !strings.Contains(errs, want) || strings.Count(errs, "words\n") != 1 {
			t.Errorf("a failed step: exit code %d, %s, want %q and the words once", code, errs, want)
		}
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no file":           {[]string{"-f", dir + "/none", dir}, "no such file"},
		"context is a file": {[]string{"-f", dir + "/other", dir + "/f"}, "is no directory"},
		"network":           {[]string{"-f", dir + "/other", "--network", "bridge", dir}, "none of none, host, and allow"},
		"host":              {[]string{"-f", dir + "/other", "--network", "allow:127.0.0.1/x", dir}, "is neither a host name"},
		"builder":           {[]string{"-f", dir + "/other", "--builder", "kaniko", dir}, "neither paddock nor docker"},
		"flag without -f":   {[]string{"--build-arg", "A=1", dir}, "give -f"},
		"argument":          {[]string{"-f", dir + "/other", "--build-arg", "=1", dir}, "is not NAME=value"},
		"base":              {[]string{"-f", dir + "/other", "--base", "box", dir}, "does not go with a Dockerfile"},
		"allow for docker":  {[]string{"-f", dir + "/other", "--builder", "docker", "--network", "allow:a.test", dir}, "no allow list"},
	} {
		if code, _, errs := h.paddock(t, nil, append([]string{"world", "build"}, c.args...)...); code == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit code %d, %s, want ...%s...", name, code, errs, c.want)
		}
	}
	d.stop(t)
	h.noStrays(t)
}

func TestNetworkFlagIsHostsAndPorts(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"none": "", "host allow:a.test": "a.test host", "allow:a.test": "a.test", "allow:a.test:80,443,b.test": "a.test:80,443 b.test", "allow:a.test allow:b.test:*": "a.test b.test:*",
	} {
		d := dockerfileFlags{network: strings.Fields(flags)}
		got, host, err := d.allow()
		if host {
			got = append(got, "host")
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("--network %s: %q, %v; want %q", flags, got, err, want)
		}
	}
	for _, bad := range []string{"hosts", "allow:", "bridge", ""} {
		d := dockerfileFlags{network: []string{bad}}
		if got, _, err := d.allow(); err == nil {
			t.Errorf("--network %q: %q, want an error", bad, got)
		}
	}
}
