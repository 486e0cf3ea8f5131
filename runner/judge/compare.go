package judge

import (
	"bytes"
	"math"
	"math/big"
	"strconv"
)

// The rules of Compare.
const (
	// Exact compares byte for byte.
	Exact = "exact"
	// Trailing leaves out white space at the ends of lines, and empty lines at the end. It
	// is the rule where none is given.
	Trailing = "trailing"
	// Tokens compares what white space separates.
	Tokens = "tokens"
	// Floats compares tokens, numbers among them within a tolerance.
	Floats = "floats"
	// Checked leaves it to a program.
	Checked = "checker"
)

// DefaultTolerance is that of Floats where none is given.
const DefaultTolerance = 1e-6

// Compare says when an output is right.
type Compare struct {
	Rule string
	// Abs and Rel are the tolerances of Floats: a number is right within either of them. Both
	// unset is DefaultTolerance for both.
	Abs, Rel *float64
	Checker  *Checker
}

// equal compares by every rule but Checked.
func (c *Compare) equal(got, want []byte) bool {
	switch c.Rule {
	case Exact:
		return bytes.Equal(got, want)
	case Tokens:
		return sameTokens(got, want, bytes.Equal)
	case Floats:
		abs, rel := c.tolerances()
		return sameTokens(got, want, func(a, b []byte) bool { return near(a, b, abs, rel) })
	}
	return sameLines(got, want)
}

func (c *Compare) tolerances() (abs, rel float64) {
	if c.Abs == nil && c.Rel == nil {
		return DefaultTolerance, DefaultTolerance
	}
	if c.Abs != nil {
		abs = *c.Abs
	}
	if c.Rel != nil {
		rel = *c.Rel
	}
	return abs, rel
}

const blanks = " \t\r\n\v\f"

func sameLines(a, b []byte) bool {
	a, b = bytes.TrimRight(a, blanks), bytes.TrimRight(b, blanks)
	for {
		lineA, restA, moreA := bytes.Cut(a, []byte("\n"))
		lineB, restB, moreB := bytes.Cut(b, []byte("\n"))
		if !bytes.Equal(bytes.TrimRight(lineA, blanks), bytes.TrimRight(lineB, blanks)) || moreA != moreB {
			return false
		}
		if !moreA {
			return true
		}
		a, b = restA, restB
	}
}

func sameTokens(a, b []byte, same func(a, b []byte) bool) bool {
	for {
		var tokenA, tokenB []byte
		tokenA, a = token(a)
		tokenB, b = token(b)
		if len(tokenA) == 0 || len(tokenB) == 0 {
			return len(tokenA) == len(tokenB)
		}
		if !same(tokenA, tokenB) {
			return false
		}
	}
}

// token cuts the first token off; it is empty when there is none.
func token(b []byte) (first, rest []byte) {
	b = bytes.TrimLeft(b, blanks)
	if i := bytes.IndexAny(b, blanks); i >= 0 {
		return b[:i], b[i:]
	}
	return b, nil
}

// near compares two tokens: as text, as whole numbers of any size, or as floats. NaN is
// near to NaN alone, an infinity to itself.
func near(a, b []byte, abs, rel float64) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, okX := number(a)
	y, okY := number(b)
	if !okX || !okY {
		return false
	}
	if math.IsNaN(x) || math.IsNaN(y) {
		return math.IsNaN(x) && math.IsNaN(y)
	}
	if math.IsInf(x, 0) || math.IsInf(y, 0) {
		return x == y
	}
	if i, j, ok := integers(a, b); ok && abs < 1 && math.Abs(y)*rel < 1 {
		return i.Cmp(j) == 0 // a float would not tell neighbours of many digits apart
	}
	off := math.Abs(x - y)
	return off <= abs || off <= rel*math.Abs(y)
}

func number(b []byte) (float64, bool) {
	if len(b) > 400 || bytes.ContainsAny(b, "xX_") {
		return 0, false
	}
	x, err := strconv.ParseFloat(string(b), 64)
	if err != nil && !math.IsInf(x, 0) {
		return 0, false
	}
	return x, true
}

func integers(a, b []byte) (x, y *big.Int, ok bool) {
	x, okX := new(big.Int).SetString(string(a), 10)
	y, okY := new(big.Int).SetString(string(b), 10)
	return x, y, okX && okY
}
