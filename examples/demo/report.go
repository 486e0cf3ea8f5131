package demo

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// report prints the table of worlds, the timings and what was captured.
func (l *loop) report(all []seen, ran time.Duration) {
	fmt.Fprintf(l.Out, "\n%d episodes in %.1f s\n\n", len(all), ran.Seconds())
	t := tabwriter.NewWriter(l.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "world\tepisodes\tfound\tmean reward\tmean turns\tuntidy\tretried\t")
	for _, f := range l.folders {
		w := worldRow(f, all)
		fmt.Fprintf(t, "%s\t%d\t%d\t%.3f\t%.1f\t%d\t%d\t\n", f.Name, w.episodes, w.found, w.reward/float64(max(w.scored, 1)),
			float64(w.turns)/float64(max(w.episodes, 1)), w.untidy, w.retried)
	}
	_ = t.Flush()
	fmt.Fprintln(l.Out)
	l.printPhases(l.Out)
	var files int
	var bytes, payload int64
	for _, s := range all {
		files += len(s.changes)
		for _, c := range s.changes {
			bytes += c.Size
		}
		payload += int64(len(s.payload))
	}
	fmt.Fprintf(l.Out, "\ncaptured: %d changed paths with %d bytes, payloads of %d bytes\n", files, bytes, payload)
}

// tally is a row of the table.
type tally struct {
	episodes, scored, found, turns, untidy, retried int
	reward                                          float64
}

func worldRow(f Folder, all []seen) tally {
	var w tally
	for _, s := range all {
		if s.folder.Name != f.Name {
			continue
		}
		w.episodes++
		turns, readHolder := s.turns()
		w.turns += turns
		if readHolder {
			w.found++
		}
		if s.left("/workdir/scratch.tmp") {
			w.untidy++
		}
		if len(s.attempts) > 1 {
			w.retried++
		}
		if s.reward != nil {
			w.scored++
			w.reward += *s.reward
		}
	}
	return w
}

func (l *loop) printPhases(out io.Writer) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "phase\tn\tp50 ms\tp99 ms\t")
	for _, name := range []string{"setup", "agent", "call", "score", "capture"} {
		s := l.took[name].Summarize()
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t\n", name, s.N, s.P50, s.P99)
	}
	_ = t.Flush()
}
