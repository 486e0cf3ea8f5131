package fake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-run/paddock/sandbox"
)

// shell runs scripts of simple commands separated by ; or & with quotes, variables and
// the redirections >FILE, >>FILE, >&2, >&3. It knows echo, cat, sleep, nc, exit, kill -9 $$, pwd, rm,
// true and false; there are no pipes, loops or conditions.
type shell struct {
	p        *process
	out, err io.Writer
	fd3      io.Writer
}

// script runs a text. sig is the signal it ended itself with.
func (sh *shell) script(text string) (code, sig int) {
	for _, st := range split(text) {
		if !sh.gate() {
			return 0, 9
		}
		words := sh.words(st.text)
		if len(words) == 0 {
			continue
		}
		switch {
		case st.background:
			sh.background(words)
			code = 0
		case words[0] == "exit":
			if len(words) > 1 {
				code, _ = strconv.Atoi(words[1])
			}
			return code, 0
		case words[0] == "kill":
			return 0, 9
		default:
			code = sh.redirected(words)
		}
	}
	return code, 0
}

// gate waits while the sandbox is frozen; false is killed.
func (sh *shell) gate() bool {
	sh.p.s.mu.Lock()
	thawed := sh.p.s.thawed
	sh.p.s.mu.Unlock()
	if thawed != nil {
		select {
		case <-thawed:
		case <-sh.p.kill:
		}
	}
	select {
	case <-sh.p.kill:
		return false
	default:
		return true
	}
}

func (sh *shell) background(words []string) {
	p := sh.p
	p.mu.Lock()
	p.children++
	p.mu.Unlock()
	p.s.wg.Go(func() {
		_ = sh.redirected(words)
		p.mu.Lock()
		p.children--
		p.mu.Unlock()
	})
}

type statement struct {
	text       string
	background bool
}

// split cuts a script at ; newline and &, outside quotes and not in >&.
func split(text string) []statement {
	var out []statement
	var cur strings.Builder
	quote := rune(0)
	prev := rune(0)
	flush := func(bg bool) {
		if s := strings.TrimSpace(cur.String()); s != "" {
			out = append(out, statement{s, bg})
		}
		cur.Reset()
	}
	for _, c := range text {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
			cur.WriteRune(c)
		case c == '\'' || c == '"':
			quote = c
			cur.WriteRune(c)
		case c == ';' || c == '\n':
			flush(false)
		case c == '&' && prev != '>':
			flush(true)
		default:
			cur.WriteRune(c)
		}
		prev = c
	}
	flush(false)
	return out
}

// words cuts a statement into words, with quotes and variables resolved.
func (sh *shell) words(text string) []string {
	var out []string
	var cur strings.Builder
	in, quote := false, byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, in = c, true
		case c == '$' && quote != '\'':
			n := 1
			for i+n < len(text) && (text[i+n] == '_' || text[i+n] >= 'A' && text[i+n] <= 'Z') {
				n++
			}
			cur.WriteString(sh.variable(text[i+1 : i+n]))
			i += n - 1
			in = true
		case quote == 0 && (c == ' ' || c == '\t'):
			if in {
				out = append(out, cur.String())
			}
			cur.Reset()
			in = false
		default:
			cur.WriteByte(c)
			in = true
		}
	}
	if in {
		out = append(out, cur.String())
	}
	return out
}

func (sh *shell) variable(name string) string {
	for _, kv := range sh.p.cmd.Env {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v
		}
	}
	return ""
}

// redirected takes the redirections out and runs the rest.
func (sh *shell) redirected(words []string) int {
	to := *sh
	var args []string
	var file string
	var add bool
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w == ">&2":
			to.out = sh.err
		case w == ">&3":
			to.out = sh.fd3
		case (w == ">" || w == ">>") && i+1 < len(words):
			file, add = words[i+1], w == ">>"
			i++
		case strings.HasPrefix(w, ">>"):
			file, add = w[2:], true
		case strings.HasPrefix(w, ">"):
			file = w[1:]
		default:
			args = append(args, w)
		}
	}
	if file == "" {
		code, _ := to.simple(args)
		return code
	}
	var buf strings.Builder
	to.out = &buf
	code, _ := to.simple(args)
	if _, err := sh.p.s.tree.put(sh.path(file), []byte(buf.String()), 0o644, add); err != nil {
		_, _ = fmt.Fprintln(sh.err, err)
		return 1
	}
	return code
}

func (sh *shell) path(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return path.Join(sh.p.cmd.Dir, p)
}

func (sh *shell) simple(args []string) (code, sig int) {
	if len(args) == 0 {
		return 0, 0
	}
	switch args[0] {
	case "true", ":":
		return 0, 0
	case "false":
		return 1, 0
	case "echo":
		_, _ = fmt.Fprintln(sh.out, strings.Join(args[1:], " "))
		return 0, 0
	case "pwd":
		_, _ = fmt.Fprintln(sh.out, sh.p.cmd.Dir)
		return 0, 0
	case "cat":
		return sh.cat(args[1:]), 0
	case "rm":
		return sh.rm(args[1:]), 0
	case "sleep":
		return sh.sleep(args[1:]), 0
	case "nc":
		return sh.nc(args[1:]), 0
	default:
		_, _ = fmt.Fprintf(sh.err, "sh: %s: not found\n", args[0])
		return 127, 0
	}
}

func (sh *shell) cat(files []string) int {
	if len(files) == 0 {
		if sh.p.cmd.Stdin != nil {
			_, _ = io.Copy(sh.out, sh.p.cmd.Stdin)
		}
		return 0
	}
	for _, f := range files {
		if _, err := sh.p.s.tree.Read(context.Background(), sandbox.User{}, sh.path(f), sh.out, 0, -1); err != nil {
			_, _ = fmt.Fprintf(sh.err, "cat: %v\n", err)
			return 1
		}
	}
	return 0
}

func (sh *shell) rm(files []string) int {
	for _, f := range files {
		if err := sh.p.s.tree.Remove(context.Background(), sandbox.User{}, sh.path(f)); err != nil {
			_, _ = fmt.Fprintf(sh.err, "rm: %v\n", err)
			return 1
		}
	}
	return 0
}

// nc sends standard input, or a file named by a third word, to a listener of the sandbox and
// prints what it answers.
func (sh *shell) nc(args []string) int {
	if len(args) < 2 || len(args) > 3 {
		return 1
	}
	stdin := sh.p.cmd.Stdin
	if len(args) == 3 {
		var file bytes.Buffer
		if _, err := sh.p.s.tree.Read(context.Background(), sandbox.User{}, sh.path(args[2]), &file, 0, -1); err != nil {
			_, _ = fmt.Fprintf(sh.err, "nc: %v\n", err)
			return 1
		}
		stdin = &file
	}
	var d net.Dialer
	c, err := d.DialContext(context.Background(), "tcp", sh.p.s.ports[args[1]])
	if err != nil {
		_, _ = fmt.Fprintf(sh.err, "nc: %v\n", err)
		return 1
	}
	defer func() { _ = c.Close() }()
	if stdin != nil {
		if _, err := io.Copy(c, stdin); err != nil {
			return 1
		}
	}
	if _, err := io.Copy(sh.out, c); err != nil {
		return 1
	}
	return 0
}

func (sh *shell) sleep(args []string) int {
	s := 0.0
	if len(args) > 0 {
		s, _ = strconv.ParseFloat(args[0], 64)
	}
	t := time.NewTimer(time.Duration(s * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-sh.p.kill:
	}
	sh.gate()
	return 0
}
