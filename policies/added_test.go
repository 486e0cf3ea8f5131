package policies

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/paddock-run/paddock/internal/golden"
)

// own is a policy of an operator: default under another name, with one change.
func own(t *testing.T, change ...string) []byte {
	t.Helper()
	data, err := embedded.ReadFile("default.json")
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte(`"name": "default"`), []byte(`"name": "mine"`), 1)
	for i := 0; i+1 < len(change); i += 2 {
		before := data
		if data = bytes.Replace(data, []byte(change[i]), []byte(change[i+1]), 1); bytes.Equal(before, data) {
			t.Fatalf("nothing replaced by %q", change[i+1])
		}
	}
	return data
}

func TestAddedPoliciesStandBesideTheBuiltIn(t *testing.T) {
	t.Parallel()
	s, err := LoadWith(fstest.MapFS{"mine.json": {Data: own(t, `"pids": 512`, `"pids": 9`)}, ".git": {}})
	if err != nil {
		t.Fatal(err)
	}
	if want := append(mustLoad(t).Names(), "mine"); !slices.Equal(s.Names(), slices.Sorted(slices.Values(want))) {
		t.Errorf("Names() = %v, want those built in and mine", s.Names())
	}
	mine, err := s.Get("mine")
	if err != nil {
		t.Fatal(err)
	}
	if mine.BuiltIn() || mine.Defaults().Pids != 9 || mine.Version() != 1 {
		t.Errorf("mine: built in %v, %+v, version %d", mine.BuiltIn(), mine.Defaults(), mine.Version())
	}
	if d := mustGet(t, "default"); !d.BuiltIn() || d.Hash() == mine.Hash() {
		t.Errorf("default: built in %v, hash %s", d.BuiltIn(), d.Hash())
	}
}

func TestAddedPoliciesAreWholeOrTheDaemonDoesNotStart(t *testing.T) {
	t.Parallel()
	builtIn, err := embedded.ReadFile("default.json")
	if err != nil {
		t.Fatal(err)
	}
	many := fstest.MapFS{}
	for i := range maxFiles + 1 {
		many["p"+strings.Repeat("x", i)+".json"] = &fstest.MapFile{}
	}
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		want  string
	}{
		{"a built-in name", fstest.MapFS{"default.json": {Data: builtIn}}, "policy default is built in"},
		{"another name than the file's", fstest.MapFS{"other.json": {Data: own(t)}}, `its name is "mine"`},
		{"another form", fstest.MapFS{"mine.yaml": {Data: own(t)}}, "mine.yaml: a policy's file is called NAME.json"},
		{"a directory", fstest.MapFS{"mine.json/x": {}}, "mine.json: is not a regular file"},
		{"too large", fstest.MapFS{"mine.json": {Data: bytes.Repeat([]byte(" "), maxFileSize+1)}}, "more than 262144 bytes"},
		{"empty", fstest.MapFS{"mine.json": {}}, "mine.json: unexpected end"},
		{"too many", many, "at most 256 policies"},
		{"unknown field", fstest.MapFS{"mine.json": {Data: own(t, `"schema": 1`, `"schema": 1, "privileged": true`)}}, `unknown field "privileged"`},
		{"a field twice", fstest.MapFS{"mine.json": {Data: own(t, `"schema": 1`, `"schema": 1, "root": "read-only"`)}}, "root is given twice"},
		{"a field twice in another case", fstest.MapFS{"mine.json": {Data: own(t, `"schema": 1`, `"schema": 1, "Root": "read-only"`)}}, "root is given twice"},
		{"version", fstest.MapFS{"mine.json": {Data: own(t, `"version": 1`, `"version": 0`)}}, "version 0"},
		{"a call that nobody may have", fstest.MapFS{"mine.json": {Data: own(t, `"uretprobe",`, ``)}}, `deny lacks "uretprobe"`},
		{"a path of the host", fstest.MapFS{"mine.json": {Data: own(t, `"/proc/kcore",`, ``)}}, "masked_paths: lacks /proc/kcore"},
		{"a path that steers the host", fstest.MapFS{"mine.json": {Data: own(t, `"/proc/sys", `, ``)}}, "readonly_paths: lacks /proc/sys"},
		{"core files", fstest.MapFS{"mine.json": {Data: own(t, `"core": [0, 0]`, `"core": [0, 1]`)}}, "rlimit core"},
		{
			"writes to the kernel's files",
			fstest.MapFS{"mine.json": {Data: own(t, `"root": "writable"`, `"root": "read-only"`, `"writable": []`, `"writable": ["/proc/sys"]`)}},
			`writable "/proc/sys"`,
		},
	} {
		if s, err := LoadWith(c.files); err == nil || !strings.Contains(err.Error(), c.want) || s != nil {
			t.Errorf("%s: LoadWith() = %v, %v, want an error with %q", c.name, s, err, c.want)
		}
	}
}

// The words of each policy are read in review, as its spec is.
func TestWordsAreTheGoldenOnes(t *testing.T) {
	t.Parallel()
	for _, name := range mustLoad(t).Names() {
		var got bytes.Buffer
		for _, w := range mustGet(t, name).Words() {
			got.WriteString(w.Topic + ":\n")
			for _, line := range w.Lines {
				got.WriteString("  " + line + "\n")
			}
		}
		golden.Check(t, filepath.Join("testdata", name+".words.txt"), got.Bytes())
	}
}

func TestEveryCapabilityThatIsGivenIsExplained(t *testing.T) {
	t.Parallel()
	for _, name := range mustLoad(t).Names() {
		for _, c := range mustGet(t, name).file.Capabilities {
			if _, ok := capabilityNames[c]; !ok {
				t.Errorf("policy %s gives %s, which Words does not explain", name, c)
			}
		}
	}
}

// FuzzPolicyFile feeds files of any form: what is accepted is a whole lock-down.
func FuzzPolicyFile(f *testing.F) {
	for _, name := range []string{"default.json", "strict.json"} {
		data, err := embedded.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"schema":1,"version":1,"name":"a"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := newPolicy(data, "amd64")
		if err != nil {
			return
		}
		for call := range allowedNames(p) {
			if slices.Contains(neverAllowed, call) {
				t.Errorf("allows %s", call)
			}
		}
		spec, err := p.Spec(p.Defaults(), "paddock", "/workdir")
		if err != nil {
			t.Fatal(err)
		}
		if !spec.Process.NoNewPrivileges || len(spec.Process.Capabilities.Inheritable) > 0 || len(spec.Process.Capabilities.Ambient) > 0 ||
			len(spec.Linux.Namespaces) != 7 || spec.Linux.Seccomp.DefaultAction != "SCMP_ACT_ERRNO" {
			t.Errorf("not a lock-down: %+v", spec.Process)
		}
		if _, err := json.Marshal(spec); err != nil {
			t.Error(err)
		}
		for _, w := range p.Words() {
			if w.Topic == "" || len(w.Lines) == 0 {
				t.Errorf("no words on %q", w.Topic)
			}
		}
	})
}
