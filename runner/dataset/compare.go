package dataset

import (
	"math"
	"math/big"
	"regexp"
	"strings"
	"unicode"
)

// normal is a text without case, punctuation, the articles a, an and the, and white space
// but single spaces between words.
func normal(s string) string {
	words := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsPunct(r) || unicode.IsSymbol(r)
	})
	kept := words[:0]
	for _, w := range words {
		if w != "a" && w != "an" && w != "the" {
			kept = append(kept, w)
		}
	}
	if len(kept) == 0 { // an answer of such words alone is itself
		return strings.ToLower(strings.TrimSpace(s))
	}
	return strings.Join(kept, " ")
}

var choiceForm = regexp.MustCompile(`(?i)^(?:option|choice|answer)?[\s:]*[(\[{"'*]*([a-z])(?:[)\]}.:,"'*\s]|$)`)

// choice is the letter of a choice, "" for none: C, (c), C., **C**, "C) because", option C.
func choice(s string) string {
	s = strings.TrimSpace(latexText.ReplaceAllString(s, "$1"))
	if m := choiceForm.FindStringSubmatch(s); m != nil {
		return strings.ToUpper(m[1])
	}
	return ""
}

// quantity is a number with what follows it.
type quantity struct {
	value *big.Rat
	unit  string
}

var (
	quantityForm = regexp.MustCompile(`^([-+]?)\s*([$€£]?)\s*([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][-+]?\d{1,3})?)(?:\s*/\s*(\d+(?:\.\d+)?))?\s*(.*)$`)
	latexText    = regexp.MustCompile(`\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\s*\{([^{}]*)\}`)
)

// maxQuantity bounds the text of a number with its unit.
const maxQuantity = 1000

// quantityOf reads a number (with thousands' commas, exponent, fraction) and its unit.
func quantityOf(s string) (quantity, bool) {
	if len(s) > maxQuantity {
		return quantity{}, false
	}
	s = strings.NewReplacer("−", "-", `\%`, "%", `\$`, "$", "$", "", `\,`, "", `\!`, "", "°", " degree").Replace(strings.TrimSpace(s))
	s = latexText.ReplaceAllString(s, " $1")
	m := quantityForm.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil || !strings.ContainsAny(m[3], "0123456789") {
		return quantity{}, false
	}
	value, ok := new(big.Rat).SetString(strings.ReplaceAll(m[3], ",", ""))
	if !ok {
		return quantity{}, false
	}
	if m[4] != "" {
		under, ok := new(big.Rat).SetString(m[4])
		if !ok || under.Sign() == 0 {
			return quantity{}, false
		}
		value.Quo(value, under)
	}
	if m[1] == "-" {
		value.Neg(value)
	}
	unit := strings.Trim(strings.ToLower(m[5]), " .,;")
	return quantity{value: value, unit: singular(m[2] + unit)}, true
}

// singular makes units comparable: without a plural's s, each word.
func singular(unit string) string {
	words := strings.Fields(unit)
	for i, w := range words {
		if len(w) > 2 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") {
			words[i] = strings.TrimSuffix(w, "s")
		}
	}
	return strings.Join(words, " ")
}

// sameQuantity compares two numbers with units. Where the right one has a unit, another
// unit is wrong and a missing one is not; where it has none, any is let pass.
func sameQuantity(got, want string, abs, rel float64) (bool, string) {
	b, ok := quantityOf(want)
	if !ok {
		return strings.TrimSpace(got) == strings.TrimSpace(want), "the answer is no number"
	}
	a, ok := quantityOf(got)
	if !ok {
		return false, "what was found is no number"
	}
	if b.unit != "" && a.unit != "" && a.unit != b.unit {
		return false, "the unit is another"
	}
	return near(a.value, b.value, abs, rel), ""
}

// near compares within either tolerance; without any, within DefaultTolerance of the size.
func near(a, b *big.Rat, abs, rel float64) bool {
	if a.Cmp(b) == 0 {
		return true
	}
	if abs == 0 && rel == 0 {
		rel = DefaultTolerance
	}
	off := new(big.Rat).Sub(a, b)
	off.Abs(off)
	return within(off, abs, big.NewRat(1, 1)) || within(off, rel, new(big.Rat).Abs(b))
}

// within says whether off is at most share of size; floats of many digits would not tell.
func within(off *big.Rat, share float64, size *big.Rat) bool {
	most := new(big.Rat)
	if most.SetFloat64(share) == nil { // an infinite tolerance
		return true
	}
	return off.Cmp(most.Mul(most, size)) <= 0
}

func nearFloat(x, y, abs, rel float64) bool {
	if math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0) {
		return false
	}
	off := math.Abs(x - y)
	return off <= abs || off <= rel*math.Abs(y)
}
