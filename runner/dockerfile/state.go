package dockerfile

import (
	"errors"
	"maps"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/paddock-run/paddock/overlay"
)

// state is what a stage has come to, but for its files. It is pure: apply changes it by one
// instruction and says what is to be done to the files, if anything is.
type state struct {
	file *File
	// given are the build's arguments, global those of before the first FROM with their values.
	given, global map[string]string
	config        overlay.Config
	args          map[string]string // declared in this stage so far
	cmdSet        bool
	used          map[string]bool // arguments that some ARG took
}

// action is what an instruction does to files. One of run, copy and dir is set.
type action struct {
	command
	run  *runAction
	copy *copyAction
	dir  string
}

// runAction is a RUN.
type runAction struct {
	argv   []string
	script []byte
	env    []string
	// silent are variables that are in no key: those that name proxies.
	silent  []string
	dir     string
	user    string
	network string // default, none or host
}

// copyAction is a COPY or an ADD.
type copyAction struct {
	from    string
	sources []string
	files   []overlay.InlineFile
	dest    string
	chown   string
	mode    *uint32
	unpack  bool
}

// proxies are arguments that need no ARG, as everywhere.
var proxies = []string{
	"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy",
}

// platform are the arguments that say for what is built; an ARG brings them in.
func platform() map[string]string {
	os, arch := "linux", runtime.GOARCH
	return map[string]string{
		"TARGETPLATFORM": os + "/" + arch, "TARGETOS": os, "TARGETARCH": arch, "TARGETVARIANT": "",
		"BUILDPLATFORM": os + "/" + arch, "BUILDOS": os, "BUILDARCH": arch, "BUILDVARIANT": "",
	}
}

// globals are the arguments of before the first FROM.
func (f *File) globals(given map[string]string, used map[string]bool) (map[string]string, error) {
	out := platform()
	for _, a := range f.args {
		if v, ok := given[a.Key]; ok {
			out[a.Key], used[a.Key] = v, true
			continue
		}
		if a.Value == nil {
			continue
		}
		v, err := f.expand(1, *a.Value, out)
		if err != nil {
			return nil, err
		}
		out[a.Key] = v
	}
	return out, nil
}

// defaultPath is the PATH of a stage whose base has none, as every builder sets it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// begin is FROM, when the base's config is there.
func (s *state) begin() {
	if _, ok := s.variables()["PATH"]; !ok {
		s.setEnv("PATH", defaultPath)
	}
}

// variables are what words are expanded with: what ENV says comes before what ARG says.
func (s *state) variables() map[string]string {
	out := maps.Clone(s.args)
	for _, e := range s.config.Env {
		k, v, _ := strings.Cut(e, "=")
		out[k] = v
	}
	return out
}

// apply is one instruction. The action is nil where no file is touched.
func (s *state) apply(c command) (*action, error) {
	vars := s.variables()
	if err := s.expand(c, vars); err != nil {
		return nil, err
	}
	switch i := c.Command.(type) {
	case *instructions.RunCommand:
		return s.run(c, i)
	case *instructions.CopyCommand:
		return s.copy(c, copyAction{from: i.From, chown: i.Chown}, i.Chmod, i.SourcesAndDest)
	case *instructions.AddCommand:
		return s.copy(c, copyAction{chown: i.Chown, unpack: true}, i.Chmod, i.SourcesAndDest)
	case *instructions.WorkdirCommand:
		if i.Path == "" {
			return nil, s.file.refuse(c.line, "WORKDIR is empty")
		}
		dir := i.Path
		if !path.IsAbs(dir) {
			dir = path.Join("/", s.config.WorkingDir, dir)
		}
		s.config.WorkingDir = path.Clean(dir)
		return &action{command: c, dir: s.config.WorkingDir}, nil
	case *instructions.ArgCommand:
		return nil, s.arg(c.line, i)
	}
	return nil, s.configure(c)
}

// expand replaces the variables of an instruction, in its place: a stage is built once.
func (s *state) expand(c command, vars map[string]string) error {
	if _, ok := c.Command.(*instructions.ArgCommand); ok {
		return nil // its words see each other
	}
	word := func(w string) (string, error) { return s.file.expand(c.line, w, vars) }
	if e, ok := c.Command.(instructions.SupportsSingleWordExpansion); ok {
		if err := e.Expand(word); err != nil {
			return s.refused(c.line, err)
		}
	}
	raw, ok := c.Command.(instructions.SupportsSingleWordExpansionRaw)
	if !ok {
		return nil
	}
	lex := shell.NewLex(s.file.escape)
	lex.SkipProcessQuotes = true
	return s.refused(c.line, raw.ExpandRaw(func(w string) (string, error) { return s.file.expandBy(lex, c.line, w, vars) }))
}

// refused keeps an error that has its line, and gives one to others.
func (s *state) refused(line int, err error) error {
	if _, ok := errors.AsType[*overlay.RecipeError](err); ok || err == nil {
		return err
	}
	return s.file.refuse(line, "%v", err)
}

func (s *state) arg(line int, i *instructions.ArgCommand) error {
	for _, a := range i.Args {
		key, err := s.file.expand(line, a.Key, s.variables())
		if err != nil {
			return err
		}
		if v, ok := s.given[key]; ok {
			s.args[key], s.used[key] = v, true
			continue
		}
		if a.Value != nil {
			v, err := s.file.expand(line, *a.Value, s.variables())
			if err != nil {
				return err
			}
			s.args[key] = v
			continue
		}
		if v, ok := s.global[key]; ok {
			s.args[key] = v
		}
	}
	return nil
}

func (s *state) shell() []string {
	if len(s.config.Shell) > 0 {
		return s.config.Shell
	}
	return []string{"/bin/sh", "-c"}
}

// argv is a command in its shell or its exec form.
func (s *state) argv(c instructions.ShellDependantCmdLine) []string {
	if !c.PrependShell {
		return slices.Clone(c.CmdLine)
	}
	return append(slices.Clone(s.shell()), strings.Join(c.CmdLine, " "))
}

func (s *state) run(c command, i *instructions.RunCommand) (*action, error) {
	r := &runAction{argv: s.argv(i.ShellDependantCmdLine), dir: s.workdir(), user: s.config.User, network: instructions.GetNetwork(i)}
	if len(i.Files) > 0 {
		s.heredoc(r, i.ShellDependantCmdLine)
	}
	if slices.Contains(r.argv, "") && r.argv[0] == "" {
		return nil, s.file.refuse(c.line, "RUN names no program")
	}
	env := s.variables()
	for _, name := range proxies {
		if v, ok := s.given[name]; ok {
			s.used[name] = true
			if _, set := env[name]; !set {
				r.silent = append(r.silent, name+"="+v)
			}
		}
	}
	for k, v := range env {
		r.env = append(r.env, k+"="+v)
	}
	slices.Sort(r.env)
	return &action{command: c, run: r}, nil
}

func (s *state) workdir() string { return path.Join("/", s.config.WorkingDir) }

// heredoc makes here-documents part of the command. One that is the whole command is a
// script: of its own interpreter where it begins with #!, of the shell where not. Others are
// the shell's to read.
func (s *state) heredoc(r *runAction, c instructions.ShellDependantCmdLine) {
	data := func(f instructions.ShellInlineFile) string {
		if f.Chomp {
			return parser.ChompHeredocContent(f.Data)
		}
		return f.Data
	}
	doc, err := parser.ParseHeredoc(c.CmdLine[0])
	switch {
	case err == nil && doc != nil && strings.HasPrefix(c.Files[0].Data, "#!"):
		r.script = []byte(data(c.Files[0]))
		r.argv = []string{c.Files[0].Name}
	case err == nil && doc != nil:
		r.argv = append(slices.Clone(s.shell()), data(c.Files[0]))
	default:
		var text strings.Builder
		text.WriteString(c.CmdLine[0])
		for _, f := range c.Files {
			text.WriteString("\n" + f.Data + f.Name)
		}
		r.argv = append(slices.Clone(s.shell()), text.String())
	}
}

func (s *state) copy(c command, a copyAction, chmod string, paths instructions.SourcesAndDest) (*action, error) {
	var err error
	if chmod != "" {
		if a.mode, err = s.file.mode(c.line, chmod); err != nil {
			return nil, err
		}
	}
	for _, source := range paths.SourcePaths {
		if a.unpack && remote(source) {
			return nil, s.file.refuse(c.line, "ADD from %s is not supported; fetch it in a RUN, with --network", source)
		}
		if clean := path.Clean(strings.TrimLeft(source, "/")); a.from == "" && (clean == ".." || strings.HasPrefix(clean, "../")) {
			return nil, s.file.refuse(c.line, "%s is outside of the context", source)
		}
		a.sources = append(a.sources, source)
	}
	for _, f := range paths.SourceContents {
		a.files = append(a.files, overlay.InlineFile{Name: f.Path, Data: []byte(f.Data)})
	}
	a.dest = paths.DestPath
	if a.dest == "" {
		return nil, s.file.refuse(c.line, "the destination is empty")
	}
	if !path.IsAbs(a.dest) {
		slash := strings.HasSuffix(a.dest, "/")
		if a.dest = path.Join("/", s.config.WorkingDir, a.dest); slash && a.dest != "/" {
			a.dest += "/"
		}
	}
	return &action{command: c, copy: &a}, nil
}

// configure is an instruction that touches no file.
func (s *state) configure(c command) error {
	switch i := c.Command.(type) {
	case *instructions.EnvCommand:
		for _, kv := range i.Env {
			s.setEnv(kv.Key, kv.Value)
		}
	case *instructions.UserCommand:
		s.config.User = i.User
	case *instructions.ShellCommand:
		s.config.Shell = slices.Clone(i.Shell)
	case *instructions.LabelCommand:
		for _, kv := range i.Labels {
			if err := s.label(c.line, kv.Key, kv.Value); err != nil {
				return err
			}
		}
	case *instructions.MaintainerCommand:
		return s.label(c.line, "maintainer", i.Maintainer)
	case *instructions.EntrypointCommand:
		s.config.Entrypoint = s.argv(i.ShellDependantCmdLine)
		if !s.cmdSet { // the base's goes with the base's entry point
			s.config.Cmd = nil
		}
	case *instructions.CmdCommand:
		s.config.Cmd, s.cmdSet = s.argv(i.ShellDependantCmdLine), true
	case *instructions.HealthCheckCommand:
		s.config.Healthcheck = (*overlay.Healthcheck)(i.Health)
	case *instructions.StopSignalCommand:
		s.config.StopSignal = i.Signal
	case *instructions.VolumeCommand:
		s.config.Volumes = union(s.config.Volumes, i.Volumes)
	case *instructions.ExposeCommand:
		return s.expose(c.line, i.Ports)
	}
	return nil
}

func (s *state) setEnv(key, value string) {
	set := key + "=" + value
	s.config.Env = slices.Clone(s.config.Env)
	for i, e := range s.config.Env {
		if k, _, _ := strings.Cut(e, "="); k == key {
			s.config.Env[i] = set
			return
		}
	}
	s.config.Env = append(s.config.Env, set)
}

func (s *state) label(line int, key, value string) error {
	s.config.Labels = maps.Clone(s.config.Labels)
	if err := s.config.SetLabel(key, value); err != nil {
		return s.file.refuse(line, "%v", err)
	}
	return nil
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

var portForm = regexp.MustCompile(`^(\d{1,5})(?:-(\d{1,5}))?(?:/(tcp|udp|sctp))?$`)

// maxPorts bounds what one EXPOSE names.
const maxPorts = 1024

func (s *state) expose(line int, ports []string) error {
	vars := s.variables()
	var all []string
	for _, word := range ports {
		text, err := s.file.expand(line, word, vars)
		if err != nil {
			return err
		}
		for port := range strings.FieldsSeq(text) {
			m := portForm.FindStringSubmatch(strings.ToLower(port))
			if m == nil {
				return s.file.refuse(line, "EXPOSE %s is no port, as 80 or 53/udp", port)
			}
			first, _ := strconv.Atoi(m[1]) // the form is digits
			last := first
			if m[2] != "" {
				last, _ = strconv.Atoi(m[2])
			}
			if first > last || last > 65535 || last-first >= maxPorts {
				return s.file.refuse(line, "EXPOSE %s: want ports to 65535, at most %d of them", port, maxPorts)
			}
			proto := m[3]
			if proto == "" {
				proto = "tcp"
			}
			for n := first; n <= last; n++ {
				all = append(all, strconv.Itoa(n)+"/"+proto)
			}
		}
	}
	s.config.ExposedPorts = union(s.config.ExposedPorts, all)
	return nil
}
