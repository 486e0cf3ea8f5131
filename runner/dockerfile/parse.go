package dockerfile

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/paddock-run/paddock/overlay"
)

// Bounds of a Dockerfile.
const (
	// MaxText bounds its bytes.
	MaxText = 1 << 20
	// maxInstructions bounds its instructions, those of unused stages included.
	maxInstructions = 1000
)

// File is a Dockerfile that was read, and of which everything is supported: nothing that
// Parse has taken is refused for what it is once something has run.
type File struct {
	name   string
	escape rune
	// args stand before the first FROM.
	args   []instructions.KeyValuePairOptional
	stages []stage
}

type stage struct {
	command
	name, base, platform string
	commands             []command
}

// command is one instruction and where it stands.
type command struct {
	line int
	text string
	instructions.Command
}

// refuse is an error about a line of the file.
func (f *File) refuse(line int, format string, args ...any) error {
	return &overlay.RecipeError{Kind: "bad_recipe", Path: at(f.name, line), Detail: fmt.Sprintf(format, args...)}
}

func at(name string, line int) string { return name + ":" + strconv.Itoa(line) }

// Parse reads a Dockerfile and refuses, by name and line, what is not supported. name is for
// messages.
func Parse(name, text string) (*File, error) {
	f := &File{name: name}
	if len(text) > MaxText {
		return nil, f.refuse(1, "is larger than %d bytes", MaxText)
	}
	if before, _, found := strings.Cut(text, "\x00"); found {
		return nil, f.refuse(1+strings.Count(before, "\n"), "holds a NUL byte")
	}
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, f.located(err, 1)
	}
	f.escape = parsed.EscapeToken
	if n := len(parsed.AST.Children); n > maxInstructions {
		return nil, f.refuse(parsed.AST.Children[maxInstructions].StartLine, "has %d instructions, at most %d are taken", n, maxInstructions)
	}
	for _, node := range parsed.AST.Children {
		if err := f.add(node); err != nil {
			return nil, err
		}
	}
	if len(f.stages) == 0 {
		return nil, f.refuse(1, "has no FROM")
	}
	return f, f.checkStages()
}

// located is an error of the parser, with its line where it tells one.
func (f *File) located(err error, line int) error {
	var where *parser.LocationError
	if errors.As(err, &where) && len(where.Locations) > 0 && len(where.Locations[0]) > 0 {
		line = where.Locations[0][0].Start.Line
	}
	return f.refuse(line, "%v", err)
}

func (f *File) add(node *parser.Node) error {
	parsed, err := instructions.ParseInstruction(node)
	if err != nil {
		return f.located(err, node.StartLine)
	}
	at := command{line: node.StartLine, text: strings.TrimSpace(node.Original)}
	if s, ok := parsed.(*instructions.Stage); ok {
		f.stages = append(f.stages, stage{command: at, name: s.Name, base: s.BaseName, platform: s.Platform})
		return nil
	}
	c, ok := parsed.(instructions.Command)
	if !ok {
		return f.refuse(at.line, "%s is not supported", strings.ToUpper(node.Value))
	}
	at.Command = c
	if len(f.stages) == 0 {
		arg, ok := c.(*instructions.ArgCommand)
		if !ok {
			return f.refuse(at.line, "%s stands before the first FROM", strings.ToUpper(node.Value))
		}
		f.args = append(f.args, arg.Args...)
		return nil
	}
	if err := f.supported(at); err != nil {
		return err
	}
	last := &f.stages[len(f.stages)-1]
	last.commands = append(last.commands, at)
	return nil
}

// supported refuses what the builder does not do.
func (f *File) supported(c command) error {
	switch i := c.Command.(type) {
	case *instructions.RunCommand:
		return f.supportedRun(c.line, i)
	case *instructions.CopyCommand:
		switch {
		case i.Parents:
			return f.refuse(c.line, "COPY --parents is not supported")
		case len(i.ExcludePatterns) > 0:
			return f.refuse(c.line, "COPY --exclude is not supported; use .dockerignore")
		}
		return f.supportedMode(c.line, i.Chmod)
	case *instructions.AddCommand:
		return f.supportedAdd(c.line, i)
	case *instructions.EnvCommand, *instructions.ArgCommand, *instructions.WorkdirCommand, *instructions.UserCommand,
		*instructions.ShellCommand, *instructions.LabelCommand, *instructions.MaintainerCommand, *instructions.EntrypointCommand,
		*instructions.CmdCommand, *instructions.ExposeCommand, *instructions.HealthCheckCommand, *instructions.VolumeCommand,
		*instructions.StopSignalCommand:
		return nil
	}
	return f.refuse(c.line, "%s is not supported", strings.ToUpper(c.Name()))
}

func (f *File) supportedRun(line int, i *instructions.RunCommand) error {
	for _, flag := range i.FlagsUsed {
		if name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "="); name != "network" {
			return f.refuse(line, "RUN --%s is not supported", name)
		}
	}
	if len(i.CmdLine) == 0 || (i.PrependShell && strings.TrimSpace(i.CmdLine[0]) == "") {
		return f.refuse(line, "RUN has no command")
	}
	return nil
}

func (f *File) supportedAdd(line int, i *instructions.AddCommand) error {
	switch {
	case i.Checksum != "":
		return f.refuse(line, "ADD --checksum is not supported")
	case i.KeepGitDir != nil:
		return f.refuse(line, "ADD --keep-git-dir is not supported")
	case i.Unpack != nil:
		return f.refuse(line, "ADD --unpack is not supported; ADD unpacks archives, COPY does not")
	case len(i.ExcludePatterns) > 0:
		return f.refuse(line, "ADD --exclude is not supported; use .dockerignore")
	}
	for _, s := range i.SourcePaths {
		if remote(s) {
			return f.refuse(line, "ADD from %s is not supported; fetch it in a RUN, with --network", s)
		}
	}
	return f.supportedMode(line, i.Chmod)
}

var gitForm = regexp.MustCompile(`^(git@|[^/:]+@[^/:]+:)`)

// remote says whether a source is not one of the context.
func remote(source string) bool {
	u, err := url.Parse(source)
	return gitForm.MatchString(source) || (err == nil && slices.Contains([]string{"http", "https", "git", "ssh", "ftp"}, u.Scheme) && u.Host != "")
}

// supportedMode refuses a --chmod that is no number; one with a variable is looked at again
// when that is known.
func (f *File) supportedMode(line int, chmod string) error {
	if chmod == "" || strings.Contains(chmod, "$") {
		return nil
	}
	_, err := f.mode(line, chmod)
	return err
}

func (f *File) mode(line int, chmod string) (*uint32, error) {
	n, err := strconv.ParseUint(chmod, 8, 32)
	if err != nil || n > 0o7777 {
		return nil, f.refuse(line, "--chmod=%s is not an octal mode, as 0644", chmod)
	}
	mode := uint32(n)
	return &mode, nil
}

// checkStages holds names of stages and what refers to them.
func (f *File) checkStages() error {
	for i, s := range f.stages {
		if s.name != "" && f.stageBefore(i, s.name) >= 0 {
			return f.refuse(s.line, "there is a stage %s before", s.name)
		}
		for _, c := range s.commands {
			from, ok := c.Command.(*instructions.CopyCommand)
			if !ok || from.From == "" {
				continue
			}
			if strings.Contains(from.From, "$") {
				return f.refuse(c.line, "COPY --from=%s: a variable cannot stand there", from.From)
			}
			if n, err := strconv.Atoi(from.From); err == nil && (n < 0 || n >= i) {
				return f.refuse(c.line, "COPY --from=%d: there is no such stage before", n)
			}
			if strings.EqualFold(from.From, s.name) {
				return f.refuse(c.line, "COPY --from=%s: that is the stage itself", from.From)
			}
		}
	}
	return nil
}

// stageBefore is the stage of that name, or with number: of that index, before stage i; -1
// where there is none.
func (f *File) stageBefore(i int, name string) int {
	for n := range f.stages[:i] {
		if strings.EqualFold(f.stages[n].name, name) {
			return n
		}
	}
	return -1
}

// source is the stage that COPY --from names in stage i; -1 says that it is a world.
func (f *File) source(i int, from string) int {
	if n, err := strconv.Atoi(from); err == nil && n >= 0 && n < i {
		return n
	}
	return f.stageBefore(i, from)
}

// target is the stage to build: by name, by number, or the last.
func (f *File) target(name string) (int, error) {
	if name == "" {
		return len(f.stages) - 1, nil
	}
	if n := f.source(len(f.stages), name); n >= 0 {
		return n, nil
	}
	return 0, &overlay.RecipeError{Kind: "bad_recipe", Path: f.name, Detail: fmt.Sprintf("has no stage %q to be the target", name)}
}

// needed are the stages that the target is made from, in order, itself included.
func (f *File) needed(target int, bases map[int]string) []int {
	want := make([]bool, len(f.stages))
	want[target] = true
	for i := target; i >= 0; i-- {
		if !want[i] {
			continue
		}
		if n := f.stageBefore(i, bases[i]); n >= 0 {
			want[n] = true
		}
		for _, c := range f.stages[i].commands {
			if from, ok := c.Command.(*instructions.CopyCommand); ok && from.From != "" {
				if n := f.source(i, from.From); n >= 0 {
					want[n] = true
				}
			}
		}
	}
	var out []int
	for i, w := range want {
		if w {
			out = append(out, i)
		}
	}
	return out
}

// maxExpanded bounds what a word may become, and what an environment comes to.
const maxExpanded = 4 << 20

// expand replaces the variables of a word.
func (f *File) expand(line int, word string, env map[string]string) (string, error) {
	return f.expandBy(shell.NewLex(f.escape), line, word, env)
}

func (f *File) expandBy(lex *shell.Lex, line int, word string, env map[string]string) (string, error) {
	list, longest := make([]string, 0, len(env)), 0
	for k, v := range env {
		list = append(list, k+"="+v)
		longest = max(longest, len(v))
	}
	if len(word)+strings.Count(word, "$")*longest > maxExpanded {
		return "", f.refuse(line, "its variables may come to more than %d bytes", maxExpanded)
	}
	out, _, err := lex.ProcessWord(word, shell.EnvsFromSlice(list))
	if err != nil {
		return "", f.refuse(line, "%v", err)
	}
	return out, nil
}
