package dockerfile_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/runner/dockerfile"
)

// asDocker are Dockerfiles that Docker 20.10's builder knows, each with its context.
var asDocker = []struct {
	name, text string
	files      map[string]string
	args       map[string]string
	target     string
}{
	{
		name: "instructions",
		text: `FROM box
ARG WHO=nobody
ENV GREETING="hello $WHO" DIR=/srv/app
WORKDIR $DIR
RUN echo "$GREETING" > greeting && mkdir -p a/b && chmod 750 a && ln -s a/b link && ln greeting hard
RUN ["/bin/sh", "-c", "echo exec > exec; id -u > id; id -g >> id; pwd > pwd; umask > umask"]
WORKDIR ../deeper/$WHO
RUN pwd > pwd; echo $HOME > home
RUN echo app:x:1234:1234::/home/app:/bin/sh >> /etc/passwd && echo app:x:1234: >> /etc/group && mkdir -p /home/app && chown app:app . && mkdir /var/mine && chown app /var/mine
USER app
RUN id -u > id; id -g >> id; echo $HOME > home2
WORKDIR /var/mine
RUN touch made-by-app
SHELL ["/bin/sh", "-e", "-c"]
RUN echo "$0" > shell; false || true
LABEL a=b "c d"="$WHO"
EXPOSE 80 53/udp 8000-8002
VOLUME /data /logs
HEALTHCHECK --interval=5s --retries=2 CMD test -f /srv/app/greeting
STOPSIGNAL SIGINT
ENTRYPOINT ["/bin/echo"]
CMD run $WHO
`,
		args: map[string]string{"WHO": "world"},
	},
	{
		name: "copies",
		text: `FROM box
RUN mkdir -p /have/sub /real && chmod 700 /have && chmod 711 /have/sub && ln -s real /lnk && echo x > /real/file && ln -s real/file /flnk
COPY d /have/
COPY d /new/dir
COPY d/a /lnk/
COPY d/a /flnk
COPY d/a d/l suid s* /many/
COPY sl /from-link
COPY dl /from-dir-link
COPY --chown=3:4 d /owned/by
COPY --chown=5 suid /owned-file/by/
COPY --chown=agent d/sub /agents
COPY ["with space", "/spaces/with space"]
COPY . /all
WORKDIR /have
COPY d ./
COPY d/sub/b sub
COPY over/a over/b /merged/
COPY d* /wild/
COPY */sub /wild2/
COPY /d/../d/a ./n/
ADD suid /added/
ADD pack.tgz /unpacked/
ADD --chown=9:9 pack.tar /unpacked2
COPY pack.tgz /not-unpacked/
`,
		files: map[string]string{
			"d/a": "a", "d/sub/b": "0640 b", "d/sub/": "0750 ", "d/l": "-> a", "d/zhard": "= d/a", "d/empty/": "", "suid": "04755 #!/bin/sh\n", "sl": "-> suid", "dl": "-> d",
			"with space": "s", "over/a/p": "1", "over/a/q": "1", "over/b/p": "2", "over/b/r/s": "2",
		},
	},
	{
		name: "stages",
		text: `ARG BASE=box
FROM $BASE AS build
RUN mkdir -p /out/bin /out/etc && echo bin > /out/bin/tool && chmod 4755 /out/bin/tool && echo conf > /out/etc/conf && chown -R 7:8 /out/etc && ln /out/bin/tool /out/bin/tool2
FROM scratch AS files
COPY --from=build /out /
FROM build AS more
RUN rm /out/etc/conf && echo more > /out/etc/more
FROM ${BASE}
COPY --from=files / /files
COPY --from=files /bin/tool /usr/local/bin/
COPY --from=more /out /more
COPY --from=1 --chown=1:2 /etc /chowned
COPY --from=box /etc/passwd /image/
COPY --from=0 /out/bin /bin2
`,
	},
	{
		name: "ignored",
		text: "FROM box\nCOPY . /all\nCOPY src /src\nADD *.md /docs/\n",
		files: map[string]string{
			".dockerignore": "# secrets\n*.key\n**/node_modules\ndocs/*\n!docs/keep\n!docs/deep/this\n*.md\n!README.md\n", "a.key": "k", "src/b.key": "not at the top", "src/node_modules/x/y": "n",
			"node_modules/z": "n", "docs/a": "a", "docs/keep": "k", "docs/deep/this": "t", "docs/deep/that": "t", "README.md": "r", "OTHER.md": "o",
		},
	},
	{
		name: "changes",
		text: `FROM box
RUN mkdir -p /x/y && echo 1 > /x/y/f && echo 2 > /x/g && mkfifo /x/fifo && ln -s nowhere /x/dangling
RUN rm -r /x/y && mkdir /x/y && echo 3 > /x/y/h
RUN rm /x/g && mkdir /x/g && echo 4 > /x/g/in
RUN chmod 2770 /x && chown 10:20 /x && chmod u+s /x/y/h
RUN mv /x/g /x/moved && rm -rf /home/agent && touch "/x/.hidden file" /x/-dash
COPY again /x/moved/in
RUN rm /x/moved/in
COPY again /x/moved/in
`,
		files: map[string]string{"again": "5"},
	},
	{
		name: "target",
		text: `FROM box AS base
ENV A=1
RUN echo $A > /a
FROM base AS wanted
ARG B=2
ENV A=$A$B
RUN echo $A > /b
ENTRYPOINT run
FROM wanted AS never
RUN false
`,
		target: "wanted",
	},
	{
		name: "entrypoint over the base's command",
		text: `FROM box AS one
CMD ["old"]
FROM one
ENTRYPOINT ["new"]
RUN printf '%s\n' a\
  # a comment in between
  b \
  c > /continued
RUN echo \$HOME '$HOME' "${NONE:-unset}" ${UNSET:+x} > /quoted
ENV X=${X:-default} Y=${X:+never}
RUN echo "$X-$Y" > /xy
`,
	},
}

// packs are the archives of the context "copies".
func packs(t *testing.T, dir string) {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 70, Gid: 80},
		{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 77, Gid: 88},
		{Name: "sub/run", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 77, Gid: 88},
		{Name: "sub/link", Typeflag: tar.TypeSymlink, Linkname: "run", Uid: 1, Gid: 2},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "sub/run", Mode: 0o4755, Uid: 77, Gid: 88},
		{Name: "etc", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "deep/er/file", Typeflag: tar.TypeReg, Mode: 0o600, Uid: 5},
	} {
		must(t, w.WriteHeader(&h))
	}
	must(t, w.Close())
	must(t, os.WriteFile(dir+"/pack.tar", plain.Bytes(), 0o600))
	must(t, os.WriteFile(dir+"/pack.tgz", gzipped(t, plain.Bytes()), 0o600))
}

// Whatever Docker's own builder makes of a Dockerfile, this one makes, too: the same tree,
// modes, owners, contents and links, and the same config.
func TestBuildsWhatDockerBuilds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	docker, err := engine.Dial(t.Context(), need.StartEngine(t))
	must(t, err)
	t.Cleanup(func() { must(t, docker.Close()) })
	b.give(docker, "box")
	for _, c := range asDocker {
		t.Run(c.name, func(t *testing.T) {
			b := b.on(t)
			dir := contextOf(t, c.files)
			if c.name == "copies" {
				packs(t, dir)
			}
			must(t, os.WriteFile(dir+"/Dockerfile", []byte(c.text), 0o600))
			got, log := b.build(dockerfile.Recipe{Dir: dir, Args: c.args, Target: c.target})
			theirs := b.take(docker, dir, engine.BuildSpec{Args: c.args, Target: c.target, Network: "none"})
			if diff := difference(b.files(theirs.ID), b.files(got.World.ID)); diff != "" {
				t.Errorf("the files differ:\n%s\n%s", diff, log)
			}
			if diff := cmp.Diff(theirs.Config, got.World.Config, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("config, - is Docker's:\n%s", diff)
			}
		})
	}
}

// give brings a world of one layer into an engine.
func (b *bench) give(docker *engine.Engine, name string) {
	b.t.Helper()
	held, err := b.store.Hold(name)
	must(b.t, err)
	defer held.Release()
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(held.Write(b.t.Context(), 0, pw)) }()
	must(b.t, docker.Import(b.t.Context(), name, pr))
}

// take builds a Dockerfile by an engine and brings the image back.
func (b *bench) take(docker *engine.Engine, dir string, spec engine.BuildSpec) overlay.World {
	b.t.Helper()
	pr, pw := io.Pipe()
	go func() {
		pw.CloseWithError(dockerfile.Context{Dir: dir, File: "Dockerfile", ForEngine: true}.Write(b.t.Context(), pw))
	}()
	var log bytes.Buffer
	spec.Dockerfile = "Dockerfile"
	id, err := docker.Build(b.t.Context(), spec, pr, &log)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, log.String())
	}
	archive, err := docker.Save(b.t.Context(), id)
	must(b.t, err)
	defer func() { must(b.t, archive.Close()) }()
	w, err := image.Worlds{Store: b.store}.Import(b.t.Context(), overlay.Source{Stream: archive}, "", nil)
	must(b.t, err)
	return w
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(data)
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}
