package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Rows are parts of the bench that can be measured alone, by name.
type Rows map[string]bool

// The names of Rows, in the order in which they are measured.
const (
	RowRounds    = "rounds"
	RowIdle      = "idle"
	RowCapture   = "capture"
	RowDepth     = "depth"
	RowLive      = "live"
	RowBurst     = "burst"
	RowTrace     = "trace"
	RowJudge     = "judge"
	RowHumanEval = "humaneval"
)

var (
	rowNames = []string{RowRounds, RowIdle, RowCapture, RowDepth, RowLive, RowBurst, RowTrace, RowJudge, RowHumanEval}
	// quickRows take less than a minute together.
	quickRows = []string{RowRounds, RowIdle, RowCapture}
)

// RowNames are all names of Rows.
func RowNames() []string { return slices.Clone(rowNames) }

// PickRows is the rows of these names. None is all, or those that a quick bench measures.
func PickRows(names []string, quick bool) (Rows, error) {
	switch {
	case len(names) > 0:
	case quick:
		names = quickRows
	default:
		names = rowNames
	}
	rows := Rows{}
	for _, name := range names {
		if !slices.Contains(rowNames, name) {
			return nil, fmt.Errorf("no row %q; there are %s", name, strings.Join(rowNames, ", "))
		}
		rows[name] = true
	}
	return rows, nil
}

// Heavy says whether these rows need the daemon for whole tasks.
func (r Rows) Heavy() bool { return r[RowTrace] || r[RowJudge] || r[RowHumanEval] }

// step measures one row outside of the rounds.
type step struct {
	row, says string
	do        func(context.Context) error
}

// steps does those that were asked for.
func (b *bench) steps(ctx context.Context, all []step) error {
	asked := slices.DeleteFunc(slices.Clone(all), func(s step) bool { return !b.Rows[s.row] })
	for i, s := range asked {
		b.Progress(s.says, i, len(asked))
		if err := errors.Join(s.do(ctx), settle(ctx)); err != nil {
			return fmt.Errorf("%s: %w", s.says, err)
		}
	}
	return nil
}
