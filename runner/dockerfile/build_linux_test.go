package dockerfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/dockerfile"
)

func TestASecondBuildRunsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := contextOf(t, map[string]string{"f": "1", "g": "1"})
	r := dockerfile.Recipe{
		Dir: dir, Name: "made",
		Text: "FROM box AS one\nLABEL v=1\nRUN echo $RANDOM > /r\nCOPY f /f\nFROM one\nWORKDIR /w\nCOPY --from=one /r /f ./\nCOPY g .\nRUN echo $RANDOM > r2\n",
	}
	first, _ := b.build(r)
	if first.Hit || len(first.Steps) != 6 {
		t.Errorf("the first: hit %v, steps %+v", first.Hit, first.Steps)
	}
	touch(t, filepath.Join(dir, "f"), filepath.Join(dir, "g"))
	again, log := b.build(r)
	if !again.Hit || again.World.ID != first.World.ID || again.World.Recipe != "dockerfile" {
		t.Errorf("the second: hit %v, world %s, want %s\n%s", again.Hit, again.World.ID, first.World.ID, log)
	}
	// A label costs no step, another file only what comes after it.
	must(t, os.WriteFile(filepath.Join(dir, "g"), []byte("2"), 0o600))
	r.Text = strings.Replace(r.Text, "v=1", "v=2", 1)
	third, _ := b.build(r)
	for _, s := range third.Steps {
		if want := s.Line < 8; s.Hit != want {
			t.Errorf("line %d (%s): hit %v, want %v", s.Line, s.Text, s.Hit, want)
		}
	}
	if third.Hit || third.World.Config.Labels["v"] != "2" {
		t.Errorf("the third: hit %v, labels %v", third.Hit, third.World.Config.Labels)
	}
	r.Cache = "refresh"
	if res, _ := b.build(r); res.Hit || res.Steps[0].Hit {
		t.Error("refresh hit the cache")
	}
	r.Cache = "off"
	if res, _ := b.build(r); res.Hit || res.Steps[0].Hit {
		t.Error("off hit the cache")
	}
}

func touch(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		info, err := os.Stat(p)
		must(t, err)
		must(t, os.Chtimes(p, info.ModTime().Add(1e12), info.ModTime().Add(1e12)))
	}
}

func TestAnArgumentThatIsUsedMakesAnotherKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := dockerfile.Recipe{Text: "FROM box\nRUN echo a > /a\nARG X\nRUN echo $X > /x\n", Args: map[string]string{"X": "1"}}
	b.build(r)
	r.Args["X"] = "2"
	res, _ := b.build(r)
	if !res.Steps[0].Hit || res.Steps[1].Hit {
		t.Errorf("steps %+v, want the first alone from the cache", res.Steps)
	}
	if text := b.read(res.World.ID, "/x"); text != "2\n" {
		t.Errorf("/x is %q", text)
	}
	r.Args["NOBODY"] = "asks"
	if _, log := b.build(r); !strings.Contains(log, "argument NOBODY: no ARG takes it") {
		t.Errorf("log %s", log)
	}
}

func (b *bench) read(world, path string) string {
	b.t.Helper()
	v, err := b.store.View(b.t.Context(), world)
	must(b.t, err)
	defer v.Close()
	text, err := v.ReadFile(path, 1<<20)
	must(b.t, err)
	return string(text)
}

func TestHereDocuments(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	res, _ := b.build(dockerfile.Recipe{Args: map[string]string{"N": "7"}, Text: `FROM box
ARG N
RUN <<EOF
echo $N > /script
false | true
EOF
RUN cat <<EOF > /doc && cat <<'E2' >> /doc
n is $N
EOF
not $N
E2
RUN <<EOF
#!/bin/sh -e
case $- in *e*) echo own > /own;; esac
EOF
COPY <<a <<"b" /docs/
n is $N
a
n is $N
b
SHELL ["/bin/sh", "-ec"]
RUN <<EOF
echo dash-e > /e
EOF
`})
	for path, want := range map[string]string{
		"/script": "7\n", "/doc": "n is 7\nnot $N\n", "/own": "own\n", "/docs/a": "n is 7\n", "/docs/b": "n is $N\n", "/e": "dash-e\n",
	} {
		if got := b.read(res.World.ID, path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	for _, line := range b.files(res.World.ID) {
		if strings.Contains(line, ".paddock") {
			t.Errorf("left of a script: %s", line)
		}
	}
}

// What cannot be built says so by name and line, and before anything runs.
func TestRefusesByNameAndLineBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := contextOf(t, map[string]string{"f": "x"})
	for name, c := range map[string]struct{ text, want string }{
		"onbuild":           {"FROM box\nRUN exit 9\nONBUILD RUN x\n", `Dockerfile:3": ONBUILD is not supported`},
		"mount":             {"FROM box\nRUN exit 9\nRUN --mount=type=cache,target=/x true\n", `Dockerfile:3": RUN --mount is not supported`},
		"security":          {"FROM box\nRUN exit 9\nRUN --security=insecure true\n", `Dockerfile:3": `},
		"host network":      {"FROM box\nRUN exit 9\nRUN --network=host true\n", `Dockerfile:3": RUN --network=host`},
		"unknown":           {"FROM box\nRUN exit 9\nINCLUDE x\n", `Dockerfile:3": unknown instruction: INCLUDE`},
		"parents":           {"FROM box\nRUN exit 9\nCOPY --parents f /\n", `Dockerfile:3": COPY --parents is not supported`},
		"exclude":           {"FROM box\nRUN exit 9\nCOPY --exclude=x f /\n", `Dockerfile:3": COPY --exclude is not supported`},
		"mode":              {"FROM box\nRUN exit 9\nCOPY --chmod=u+x f /\n", `Dockerfile:3": --chmod=u+x is not an octal mode`},
		"url":               {"FROM box\nRUN exit 9\nADD https://a.test/b /\n", `Dockerfile:3": ADD from https://a.test/b is not supported`},
		"git":               {"FROM box\nRUN exit 9\nADD git@a.test:b.git /\n", `Dockerfile:3": ADD from git@a.test:b.git is not supported`},
		"checksum":          {"FROM box\nRUN exit 9\nADD --checksum=sha256:aa f /\n", `Dockerfile:3": ADD --checksum is not supported`},
		"no from":           {"RUN exit 9\n", `Dockerfile:1": RUN stands before the first FROM`},
		"empty":             {"# nothing\n", `Dockerfile:1": `},
		"stage to come":     {"FROM box\nRUN exit 9\nCOPY --from=1 /a /b\nFROM box\n", `Dockerfile:3": COPY --from=1: there is no such stage before`},
		"its own stage":     {"FROM box AS a\nRUN exit 9\nCOPY --from=a /a /b\n", `Dockerfile:3": COPY --from=a: that is the stage itself`},
		"two of one name":   {"FROM box AS a\nRUN exit 9\nFROM box AS A\n", `Dockerfile:3": there is a stage a before`},
		"another platform":  {"FROM --platform=linux/s390x box\nRUN exit 9\n", `Dockerfile:1": FROM --platform=linux/s390x`},
		"empty base":        {"ARG B\nFROM $B\nRUN exit 9\n", `Dockerfile:2": FROM names nothing`},
		"base":              {"FROM box AS a\nRUN exit 9\nFROM a\nCOPY --from=ghost:1 /a /b\n", `Dockerfile:4: no world "ghost:1"`},
		"no exec form":      {"FROM box\nRUN exit 9\nENTRYPOINT [\"\n", ""},
		"bad expansion":     {"FROM box\nRUN exit 9\nFROM ${X:\n", `Dockerfile:3": `},
		"unfinished":        {"FROM box\nRUN exit 9\nRUN <<EOF\nx\n", `Dockerfile:3": unterminated heredoc`},
		"not a Dockerfile":  {"FROM box\x00\n", `Dockerfile:1": holds a NUL byte`},
		"no such target":    {"FROM box\nRUN exit 9\n", `has no stage "ghost" to be the target`},
		"healthcheck":       {"FROM box\nRUN exit 9\nHEALTHCHECK SOMETIMES x\n", `Dockerfile:3": `},
		"shell":             {"FROM box\nRUN exit 9\nSHELL x\n", `Dockerfile:3": SHELL requires`},
		"a flag of nothing": {"FROM box\nRUN exit 9\nCOPY --unknown=1 f /\n", `Dockerfile:3": unknown flag`},
	} {
		if c.want == "" {
			continue
		}
		r := dockerfile.Recipe{Text: c.text, Dir: dir}
		if name == "no such target" {
			r.Target = "ghost"
		}
		err := b.refused(r)
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want ...%s...", name, err, c.want)
		}
		if _, ok := errors.AsType[*overlay.RecipeError](err); !ok && runner.KindOf(err) != runner.KindUnknownWorld {
			t.Errorf("%s: %T is no typed refusal", name, err)
		}
	}
	if list, err := b.store.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%d worlds, %v; want the base alone", len(list), err)
	}
}

func TestAFailedStepSaysItsLineAndLastWords(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, c := range map[string]struct {
		r    dockerfile.Recipe
		want []string
	}{
		"exit":    {dockerfile.Recipe{Text: "FROM box\nRUN true\nRUN echo out; echo err >&2; exit 3\n"}, []string{`build_failed "Dockerfile:3"`, "exited with 3", "\nout", "\nerr"}},
		"signal":  {dockerfile.Recipe{Text: "FROM box\nRUN kill -9 $$\n"}, []string{"Dockerfile:2", "exited with signal 9"}},
		"timeout": {dockerfile.Recipe{Text: "FROM box\nRUN sleep 100\n", StepS: 0.2}, []string{"was ended after 0.2 seconds, its limit"}},
		"program": {dockerfile.Recipe{Text: "FROM box\nRUN [\"/none\"]\n"}, []string{"could not be started: command_not_found /none"}},
		"disk":    {dockerfile.Recipe{Text: "FROM box\nRUN head -c 20000000 /dev/zero > /f\n", Limits: runner.Limits{DiskBytes: 1 << 20}}, []string{"1048576 bytes of disk full"}},
		"network": {dockerfile.Recipe{Text: "FROM box\nRUN wget -q http://a.test/ -O-\n"}, []string{"it asked for a.test:80: host_refused", "--network allow:"}},
		"user":    {dockerfile.Recipe{Text: "FROM box\nUSER ghost\nRUN true\n"}, []string{"Dockerfile:3", `user "ghost": user_not_found`}},
		"chown":   {dockerfile.Recipe{Text: "FROM box\nCOPY --chown=ghost <<f /f\nx\nf\n"}, []string{"Dockerfile:2", "--chown=ghost", "user_not_found"}},
		"source":  {dockerfile.Recipe{Text: "FROM box\nRUN true\nCOPY --from=0 /x /y\nFROM box\nCOPY --from=0 /ghost /\n"}, []string{`Dockerfile:3"`}},
		"file":    {dockerfile.Recipe{Text: "FROM box AS a\nFROM box\nCOPY --from=a /ghost /\n"}, []string{`Dockerfile:3"`, "/ghost is not there"}},
		"workdir": {dockerfile.Recipe{Text: "FROM box\nWORKDIR /etc/passwd\n"}, []string{`Dockerfile:2"`, "is a file"}},
		"context": {dockerfile.Recipe{Text: "FROM box\nCOPY f /\n"}, []string{`Dockerfile:2"`, "there is no context"}},
	} {
		err := b.refused(c.r)
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want ...%s...", name, err, w)
			}
		}
	}
}

func TestVolumesAndProxiesKeepNothingBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := dockerfile.Recipe{
		Text: "FROM box\nVOLUME /v\nRUN mkdir -p /v && echo kept > /v/f; echo $NO_PROXY > /np\n", Args: map[string]string{"NO_PROXY": "a.test"},
	}
	res, log := b.build(r)
	if got := b.read(res.World.ID, "/v/f") + b.read(res.World.ID, "/np"); got != "kept\na.test\n" || strings.Contains(log, "no ARG") {
		t.Errorf("files %q, log %s", got, log)
	}
	r.Args["NO_PROXY"] = "b.test"
	if again, _ := b.build(r); !again.Hit {
		t.Error("another proxy is another key")
	}
}

func TestContextAsATar(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := contextOf(t, map[string]string{
		"Dockerfile": "FROM box\nCOPY . /all\n", ".dockerignore": "*.key\n", "a.key": "secret", "d/f": "0755 x", "d/hard": "= d/f", "run": "top", "l": "-> ../../x",
	})
	want, _ := b.build(dockerfile.Recipe{Dir: dir})
	got, _ := b.build(dockerfile.Recipe{Tar: b.sent(dir, "Dockerfile", "")})
	if got.World.ID != want.World.ID || !got.Hit {
		t.Errorf("from a tar: %s, hit %v; want %s of the cache", got.World.ID, got.Hit, want.World.ID)
	}
	// A Dockerfile from elsewhere is not part of what is copied.
	const text = "FROM box\nCOPY . /all\n# from elsewhere\n"
	other, _ := b.build(dockerfile.Recipe{Tar: b.sent(dir, "", text), File: dockerfile.SentDockerfile})
	beside, _ := b.build(dockerfile.Recipe{Dir: dir, Text: text})
	if other.World.ID != want.World.ID || beside.World.ID != want.World.ID {
		t.Errorf("with a Dockerfile from elsewhere: %s as a tar, %s as a directory; want %s", other.World.ID, beside.World.ID, want.World.ID)
	}
}
