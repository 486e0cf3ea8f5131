package dataset

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formula is an expression: numbers, variables of one letter, + - * / ^, roots, fractions,
// a few functions, percent, factorial, in LaTeX's notation or plain.
type formula struct {
	value func(*[128]float64) float64
	vars  map[byte]bool
}

// at is the formula's value at one of points.
func (f *formula) at(i int) float64 { return f.value(&points[i]) }

func (f *formula) variables() []byte {
	out := make([]byte, 0, len(f.vars))
	for v := range f.vars {
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

// Bounds of a formula: of its text, and how deep it nests.
const (
	maxFormula = 4 << 10
	maxDepth   = 64
)

// parse reads a formula; false is that it is none.
func parse(s string) (*formula, bool) {
	if s == "" || len(s) > maxFormula || !utf8.ValidString(s) {
		return nil, false
	}
	p := &parser{s: s, vars: map[byte]bool{}}
	v := p.sum()
	if p.bad || p.i != len(p.s) {
		return nil, false
	}
	return &formula{value: v, vars: p.vars}, true
}

// term is a part of a formula as a function of its variables.
type term = func(*[128]float64) float64

// parser is one reading. The first error sticks.
type parser struct {
	s     string
	i     int
	depth int
	bad   bool
	vars  map[byte]bool
}

func (p *parser) fail() term {
	p.bad = true
	return func(*[128]float64) float64 { return math.NaN() }
}

// take eats a token when it is next.
func (p *parser) take(token string) bool {
	if strings.HasPrefix(p.s[p.i:], token) {
		p.i += len(token)
		return true
	}
	return false
}

func (p *parser) sum() term {
	if p.depth++; p.depth > maxDepth {
		return p.fail()
	}
	defer func() { p.depth-- }()
	left := p.product()
	for !p.bad {
		switch a := left; {
		case p.take("+"):
			b := p.product()
			left = func(v *[128]float64) float64 { return a(v) + b(v) }
		case p.take("-"):
			b := p.product()
			left = func(v *[128]float64) float64 { return a(v) - b(v) }
		default:
			return left
		}
	}
	return left
}

func (p *parser) product() term {
	left := p.signed()
	for !p.bad {
		a := left
		switch {
		case p.take("*"):
			b := p.signed()
			left = func(v *[128]float64) float64 { return a(v) * b(v) }
		case p.take("/"):
			b := p.signed()
			left = func(v *[128]float64) float64 { return a(v) / b(v) }
		case p.begins():
			b := p.power()
			left = func(v *[128]float64) float64 { return a(v) * b(v) }
		default:
			return left
		}
	}
	return left
}

// begins says whether a factor can begin here, of a product without a sign.
func (p *parser) begins() bool {
	if p.i >= len(p.s) {
		return false
	}
	c := p.s[p.i]
	return c == '(' || c == '{' || c == '\\' || letter(c) || strings.HasPrefix(p.s[p.i:], "π")
}

func (p *parser) signed() term {
	if p.take("-") {
		a := p.signed()
		return func(v *[128]float64) float64 { return -a(v) }
	}
	if p.take("+") {
		return p.signed()
	}
	return p.power()
}

func (p *parser) power() term {
	base := p.postfix()
	if !p.take("^") || p.bad {
		return base
	}
	if p.depth++; p.depth > maxDepth {
		return p.fail()
	}
	defer func() { p.depth-- }()
	exponent := p.signed()
	return func(v *[128]float64) float64 { return math.Pow(base(v), exponent(v)) }
}

func (p *parser) postfix() term {
	a := p.atom()
	for !p.bad {
		b := a
		switch {
		case p.take("%"):
			a = func(v *[128]float64) float64 { return b(v) / 100 }
		case p.take("!"):
			a = func(v *[128]float64) float64 { return factorial(b(v)) }
		default:
			return a
		}
	}
	return a
}

func factorial(x float64) float64 {
	if x < 0 || x != math.Trunc(x) {
		return math.NaN()
	}
	return math.Round(math.Gamma(x + 1))
}

func (p *parser) atom() term {
	if p.i >= len(p.s) {
		return p.fail()
	}
	switch c := p.s[p.i]; {
	case c >= '0' && c <= '9' || c == '.':
		return p.number()
	case p.take("("):
		return p.closed(")")
	case p.take("{"):
		return p.closed("}")
	case p.take("|"):
		a := p.closed("|")
		return func(v *[128]float64) float64 { return math.Abs(a(v)) }
	case p.take("π"):
		return constant(math.Pi)
	case p.take("∞"):
		return constant(math.Inf(1))
	case c == '\\':
		return p.command()
	case letter(c):
		return p.name()
	}
	return p.fail()
}

func constant(x float64) term { return func(*[128]float64) float64 { return x } }

func (p *parser) closed(by string) term {
	a := p.sum()
	if !p.take(by) {
		return p.fail()
	}
	return a
}

func (p *parser) number() term {
	from := p.i
	for p.i < len(p.s) && (p.s[p.i] >= '0' && p.s[p.i] <= '9' || p.s[p.i] == '.') {
		p.i++
	}
	x, err := strconv.ParseFloat(p.s[from:p.i], 64)
	if err != nil {
		return p.fail()
	}
	if x == math.Trunc(x) && strings.HasPrefix(p.s[p.i:], `\frac`) { // three and a half, not three times a half
		over := p.command()
		return func(v *[128]float64) float64 { return x + over(v) }
	}
	return constant(x)
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

var functions = map[string]func(float64) float64{
	"sqrt": math.Sqrt, "sin": math.Sin, "cos": math.Cos, "tan": math.Tan, "ln": math.Log, "log": math.Log10, "exp": math.Exp,
	"arcsin": math.Asin, "arccos": math.Acos, "arctan": math.Atan, "abs": math.Abs,
	"cot": func(x float64) float64 { return 1 / math.Tan(x) }, "sec": func(x float64) float64 { return 1 / math.Cos(x) },
	"csc": func(x float64) float64 { return 1 / math.Sin(x) },
}

// name reads a function's name, pi, e, or a variable.
func (p *parser) name() term {
	for _, n := range []string{"arcsin", "arccos", "arctan", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "exp", "abs", "log", "ln"} {
		if strings.HasPrefix(p.s[p.i:], n+"(") {
			p.i += len(n)
			return p.apply(functions[n])
		}
	}
	if p.take("pi") {
		return constant(math.Pi)
	}
	c := p.s[p.i]
	p.i++
	if p.take("_") { // a subscript makes it another variable, which no value tells apart
		return p.fail()
	}
	if c == 'e' {
		return constant(math.E)
	}
	p.vars[c] = true
	return func(v *[128]float64) float64 { return v[c] }
}

func (p *parser) apply(f func(float64) float64) term {
	a := p.argument()
	return func(v *[128]float64) float64 { return f(a(v)) }
}

// argument is a group, or the one character or power that LaTeX takes without braces.
func (p *parser) argument() term {
	if p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9' {
		p.i++
		return constant(float64(p.s[p.i-1] - '0'))
	}
	return p.atom()
}

func (p *parser) command() term {
	switch {
	case p.take(`\frac`):
		over, under := p.argument(), p.argument()
		return func(v *[128]float64) float64 { return over(v) / under(v) }
	case p.take(`\sqrt`):
		if !p.take("[") {
			return p.apply(math.Sqrt)
		}
		n := p.closed("]")
		a := p.argument()
		return func(v *[128]float64) float64 { return root(a(v), n(v)) }
	case p.take(`\binom`):
		n, k := p.argument(), p.argument()
		return func(v *[128]float64) float64 {
			return factorial(n(v)) / factorial(k(v)) / factorial(n(v)-k(v))
		}
	}
	for _, n := range []string{"arcsin", "arccos", "arctan", "sin", "cos", "tan", "cot", "sec", "csc", "exp", "log", "ln"} {
		if !p.take(`\` + n) {
			continue
		}
		f := functions[n]
		if n == "log" && p.take("_") {
			base := p.argument()
			a := p.powered()
			return func(v *[128]float64) float64 { return math.Log(a(v)) / math.Log(base(v)) }
		}
		if p.take("^") {
			power := p.argument()
			a := p.powered()
			return func(v *[128]float64) float64 { return math.Pow(f(a(v)), power(v)) }
		}
		a := p.powered()
		return func(v *[128]float64) float64 { return f(a(v)) }
	}
	return p.fail()
}

// powered is what a function without brackets takes: the next factor with its power.
func (p *parser) powered() term {
	a := p.power()
	for !p.bad && p.i < len(p.s) && (letter(p.s[p.i]) || strings.HasPrefix(p.s[p.i:], "π")) {
		left, b := a, p.power()
		a = func(v *[128]float64) float64 { return left(v) * b(v) }
	}
	return a
}

func root(x, n float64) float64 {
	if n == 3 {
		return math.Cbrt(x)
	}
	return math.Pow(x, 1/n)
}
