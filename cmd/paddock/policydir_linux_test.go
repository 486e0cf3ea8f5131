package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
)

// policyDir is a directory with one policy, mine: strict with room for 7 processes.
func policyDir(tb testing.TB) string {
	tb.Helper()
	data, err := os.ReadFile("../../policies/strict.json")
	if err != nil {
		tb.Fatal(err)
	}
	data = bytes.Replace(data, []byte(`"name": "strict"`), []byte(`"name": "mine"`), 1)
	data = bytes.Replace(data, []byte(`"pids": 64`), []byte(`"pids": 7`), 1)
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine.json"), data, 0o600); err != nil {
		tb.Fatal(err)
	}
	return dir
}

func TestPolicyOfADirectoryRulesItsEpisodes(t *testing.T) {
	t.Parallel()
	h, dir := newHost(t), policyDir(t)
	file := filepath.Join(dir, "mine.json")
	checked := h.must(t, "policy", "check", file)
	h.serve(t, "--policy-dir", dir)
	h.must(t, "world", "build", "--busybox", "--name", "box")
	var p api.Policy
	if err := json.Unmarshal([]byte(h.must(t, "policy", "show", "mine", "--json")), &p); err != nil {
		t.Fatal(err)
	}
	if p.BuiltIn || p.Version != 1 || !strings.Contains(checked, p.Hash) {
		t.Errorf("shown %+v, checked %s", p, checked)
	}
	if out := h.must(t, "policy", "show", "mine"); !strings.Contains(out, "added by this host's operator") || !strings.Contains(out, "User 0 is refused.") {
		t.Errorf("shown in words: %s", out)
	}
	h.must(t, "episode", "create", "box", "--id", "e", "--policy", "mine")
	code, _, errs := h.paddock(t, nil, "episode", "call", "e", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 100 & done")
	if !strings.Contains(errs, "can't fork") {
		t.Errorf("more processes than the policy has room for: exit code %d, %s", code, errs)
	}
	h.must(t, "episode", "finish", "e")
	var e api.Episode
	if err := json.Unmarshal([]byte(h.must(t, "episode", "show", "e", "--json")), &e); err != nil {
		t.Fatal(err)
	}
	if e.Policy != "mine" || e.PolicyHash != p.Hash {
		t.Errorf("on record: policy %s %s, want mine %s", e.Policy, e.PolicyHash, p.Hash)
	}
}

func TestPolicyDirectoryThatOthersCouldWriteIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(dir string) error
		want  string
	}{
		"missing":        {os.RemoveAll, "no such file"},
		"open directory": {func(dir string) error { return os.Chmod(dir, 0o777) }, "chmod go-w"},
		"open file":      {func(dir string) error { return os.Chmod(filepath.Join(dir, "mine.json"), 0o666) }, "mine.json may be written by others"},
		"foreign file":   {func(dir string) error { return os.Chown(filepath.Join(dir, "mine.json"), 12345, 0) }, "mine.json belongs to another user"},
		"broken file":    {func(dir string) error { return os.WriteFile(filepath.Join(dir, "b.json"), []byte("{"), 0o600) }, "policy file b.json"},
	} {
		dir := policyDir(t)
		if err := c.spoil(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := loadPolicies(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: loadPolicies() = %v, want an error with %q", name, err, c.want)
		}
	}
}
