package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

// Exit codes of paddock itself.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitUnavailable = 3
	exitTimeout     = 124
	exitPaddock     = 125
	exitNotRunnable = 126
	exitNotFound    = 127
	exitInterrupted = 130
)

// cli is what every command shares.
type cli struct {
	socket string
	target api.Target
	conn   *api.Client
	json   bool
	in     io.Reader
	out    io.Writer
	errs   io.Writer
}

// usageError is a wrong use of the command line.
type usageError struct{ error }

// exitError ends paddock with a code and, where err is nil, without a message.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// run is paddock without the process around it.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	c := &cli{in: in, out: out, errs: errs}
	root := rootCommand(c) //nolint:contextcheck // commands get ctx from ExecuteContext
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	code := c.report(err)
	if code == exitPaddock && ctx.Err() != nil {
		return exitInterrupted
	}
	return code
}

// report says on stderr what went wrong and what to do, and gives the exit code.
func (c *cli) report(err error) int {
	if err == nil {
		return 0
	}
	code := exitFailed
	if e, ok := errors.AsType[exitError](err); ok {
		code = e.code
		if e.err == nil {
			return code
		}
	} else if _, ok := errors.AsType[usageError](err); ok || strings.HasPrefix(err.Error(), "unknown command") {
		code = exitUsage
	}
	p, typed := errors.AsType[*api.Error](err)
	if typed && p.Kind == api.Unavailable && code == exitFailed {
		code = exitUnavailable
	}
	if typed && c.json {
		_ = json.NewEncoder(c.errs).Encode(p)
		return code
	}
	if c.json {
		_ = json.NewEncoder(c.errs).Encode(plainError{Kind: kindOfExit(code), Detail: err.Error()})
		return code
	}
	fmt.Fprintf(c.errs, "paddock: %v\n", err)
	if typed && p.Hint != "" {
		fmt.Fprintf(c.errs, "  %s\n", p.Hint)
	}
	if code == exitUsage {
		fmt.Fprintln(c.errs, "  see paddock --help")
	}
	return code
}

// plainError is an error that did not come from the daemon, in the form of those that do.
type plainError struct {
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
}

func kindOfExit(code int) string {
	if code == exitUsage {
		return "usage"
	}
	return "failed"
}

// client is the daemon's client.
func (c *cli) client() *api.Client {
	if c.conn == nil {
		c.target.Socket = c.socket
		c.conn = api.Connect(c.target)
	}
	return c.conn
}

// show writes v as JSON with --json, else what human writes.
func (c *cli) show(v any, human func(w io.Writer)) error {
	if c.json {
		e := json.NewEncoder(c.out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	}
	human(c.out)
	return nil
}

// table writes rows in columns; the first row is the head.
func table(w io.Writer, rows ...[]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, plain(cell))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

// plain keeps what comes out of a sandbox from moving the terminal's cursor.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// terminal says whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// meter shows how far long work is, on a terminal only.
type meter struct {
	w    io.Writer
	step string
	bar  *progressbar.ProgressBar
}

func (c *cli) meter() *meter {
	if c.json || !terminal(c.errs) {
		return &meter{}
	}
	return &meter{w: c.errs}
}

// at tells the meter; total 0 is unknown.
func (m *meter) at(step string, done, total int64) {
	if m.w == nil {
		return
	}
	if m.bar == nil || step != m.step {
		m.finish()
		if total == 0 {
			total = -1
		}
		m.step = step
		m.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(m.w), progressbar.OptionSetDescription(plain(step)),
			progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(50*time.Millisecond), progressbar.OptionShowCount())
	}
	if total > 0 {
		m.bar.ChangeMax64(total)
	}
	_ = m.bar.Set64(done)
}

func (m *meter) finish() {
	if m.bar != nil {
		_ = m.bar.Finish()
		m.bar = nil
	}
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return cmd.Help()
	}}
	cmd.AddCommand(subs...)
	return cmd
}

// args makes a wrong number of arguments a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return usageError{fmt.Errorf("%s: %w; usage: %s", cmd.CommandPath(), err, cmd.UseLine())}
		}
		return nil
	}
}

func short(digest string) string {
	d := strings.TrimPrefix(digest, "sha256:")
	if len(d) > 12 {
		return d[:12]
	}
	return d
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
