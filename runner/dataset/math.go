package dataset

import (
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// sameMath compares two mathematical answers: as text once their notation is made one, as
// sets, tuples, intervals or lists of formulas, and formulas by their value. A formula with
// variables is the same when it has the same value at several points, which are drawn once
// for all: other formulas agree there with a probability that does not matter.
func sameMath(got, want string, abs, rel float64) bool {
	a, b := notation(got), notation(want)
	if a == b {
		return a != ""
	}
	if abs == 0 && rel == 0 {
		rel = 1e-9
	}
	return sameTerm(a, b, abs, rel, 0)
}

var (
	mathSpace  = regexp.MustCompile(`\\[,;:! ]|\\quad|\\qquad|~|\\left|\\right|\\displaystyle|\\big[lr]?|\\Big[lr]?`)
	mathFrac   = regexp.MustCompile(`\\[dt]frac`)
	assignment = regexp.MustCompile(`^[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z]\))?(?:=|\\in)`)
	degrees    = regexp.MustCompile(`\^\{?\\circ\}?|°`)
	thousands  = regexp.MustCompile(`\b\d{1,3}(?:\{?,\}?\d{3})+\b`)
)

// notation makes different ways to write the same answer one text.
func notation(s string) string {
	s = strings.TrimSpace(s)
	for _, pair := range [][2]string{{"$$", "$$"}, {"$", "$"}, {`\(`, `\)`}, {`\[`, `\]`}} {
		if len(s) >= len(pair[0])+len(pair[1]) && strings.HasPrefix(s, pair[0]) && strings.HasSuffix(s, pair[1]) {
			s = strings.TrimSpace(s[len(pair[0]) : len(s)-len(pair[1])])
		}
	}
	if inner, ok := boxed(s); ok {
		s = inner
	}
	s = strings.TrimRight(s, ". ")
	s = thousands.ReplaceAllStringFunc(s, func(n string) string { return strings.NewReplacer(",", "", "{", "", "}", "").Replace(n) })
	s = mathSpace.ReplaceAllString(s, " ")
	s = mathFrac.ReplaceAllString(s, `\frac`)
	s = degrees.ReplaceAllString(s, "")
	s = latexText.ReplaceAllString(s, "$1")
	s = strings.NewReplacer(
		`\cdot`, "*", `\times`, "*", `\div`, "/", "×", "*", "÷", "/", "·", "*", "−", "-", "–", "-", `\%`, "%", `\$`, "", "$", "",
		`\{`, "{|", `\}`, "|}", `\lbrace`, "{|", `\rbrace`, "|}", `\infty`, "∞", `\pi`, "π", `\cup`, "∪", "**", "^", `\le `, "≤", `\ge `, "≥", `\leq`, "≤", `\geq`, "≥",
		"√", `\sqrt`, `\emptyset`, "∅", `\varnothing`, "∅",
	).Replace(s)
	s = strings.Join(strings.Fields(s), "")
	if m := assignment.FindString(s); m != "" && strings.Count(s, "=") <= 1 {
		s = s[len(m):]
	}
	return s
}

// maxTerms bounds the parts of a set or list, maxNested how deep they nest.
const (
	maxTerms  = 256
	maxNested = 8
)

// sameTerm compares two texts of one notation.
func sameTerm(a, b string, abs, rel float64, depth int) bool {
	if a == b {
		return true
	}
	if depth > maxNested {
		return false
	}
	if partsA, partsB := split(a, '∪'), split(b, '∪'); len(partsA) > 1 || len(partsB) > 1 {
		return sameParts(partsA, partsB, false, abs, rel, depth)
	}
	insideA, openA, closeA := enclosed(a)
	insideB, openB, closeB := enclosed(b)
	partsA, partsB := split(insideA, ','), split(insideB, ',')
	if len(partsA) > 1 || len(partsB) > 1 || openA == "{|" || openB == "{|" {
		// A list without brackets is a set: solutions are written so.
		unordered := func(open string) bool { return open == "{|" || open == "" }
		if unordered(openA) && unordered(openB) {
			return sameParts(partsA, partsB, false, abs, rel, depth)
		}
		return openA == openB && closeA == closeB && sameParts(partsA, partsB, true, abs, rel, depth)
	}
	if eqA, eqB := split(a, '='), split(b, '='); len(eqA) == 2 && len(eqB) == 2 {
		return sameEquation(eqA, eqB, abs, rel)
	}
	return sameValue(a, b, abs, rel)
}

// enclosed takes the brackets off that enclose all of a text: {| |}, ( ) and [ ], and half
// open ones.
func enclosed(s string) (inside, opening, closing string) {
	for _, o := range []string{"{|", "(", "["} {
		if !strings.HasPrefix(s, o) {
			continue
		}
		for _, c := range []string{"|}", ")", "]"} {
			if strings.HasSuffix(s, c) && len(s) >= len(o)+len(c) && (o == "{|") == (c == "|}") && spans(s) {
				return s[len(o) : len(s)-len(c)], o, c
			}
		}
	}
	return s, "", ""
}

// spans says whether the bracket that s begins with is closed by its last character.
func spans(s string) bool {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i == len(s)-1
			}
		}
	}
	return false
}

// split cuts at a separator outside of all brackets.
func split(s string, sep rune) []string {
	var out []string
	depth, from := 0, 0
	for i, r := range s {
		switch {
		case r == '(' || r == '[' || r == '{':
			depth++
		case r == ')' || r == ']' || r == '}':
			depth--
		case r == sep && depth == 0 && len(out) < maxTerms:
			out = append(out, s[from:i])
			from = i + len(string(r))
		}
	}
	return append(out, s[from:])
}

// sameParts compares parts in their order, or, unordered, each with one of the others.
func sameParts(a, b []string, ordered bool, abs, rel float64, depth int) bool {
	if len(a) != len(b) {
		return false
	}
	if ordered {
		for i := range a {
			if !sameTerm(a[i], b[i], abs, rel, depth+1) {
				return false
			}
		}
		return true
	}
	left := slices.Clone(b)
	for _, x := range a {
		i := slices.IndexFunc(left, func(y string) bool { return sameTerm(x, y, abs, rel, depth+1) })
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return true
}

// sameEquation compares equations: left minus right must be the same, but for a factor.
func sameEquation(a, b []string, abs, rel float64) bool {
	f, okF := parse("(" + a[0] + ")-(" + a[1] + ")")
	g, okG := parse("(" + b[0] + ")-(" + b[1] + ")")
	if !okF || !okG {
		return false
	}
	var factor float64
	for i := range points {
		x, y := f.at(i), g.at(i)
		switch {
		case math.IsNaN(x) || math.IsNaN(y):
			return false
		case i == 0 && (x == 0 || y == 0):
			return false
		case i == 0:
			factor = x / y
		case !nearFloat(x, factor*y, abs, max(rel, 1e-9)):
			return false
		}
	}
	return true
}

// sameValue compares two formulas by their values.
func sameValue(a, b string, abs, rel float64) bool {
	f, okF := parse(a)
	g, okG := parse(b)
	if !okF || !okG {
		return false
	}
	if !slices.Equal(f.variables(), g.variables()) && (len(f.variables()) == 0) != (len(g.variables()) == 0) {
		return false
	}
	met := 0
	for i := range points {
		x, y := f.at(i), g.at(i)
		if math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0) {
			if math.IsInf(x, 0) && x == y {
				met++
				continue
			}
			if math.IsNaN(x) != math.IsNaN(y) {
				return false
			}
			continue // outside of what both are defined on
		}
		if !nearFloat(x, y, abs, rel) {
			return false
		}
		met++
	}
	return met > 0
}

// points are the values of the variables a to z and A to Z, drawn once for all: positive,
// so that roots and logarithms are defined.
var points = func() (p [6][128]float64) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range p {
		for c := range p[i] {
			p[i][c] = 0.5 + 3*r.Float64()
		}
	}
	return p
}()
