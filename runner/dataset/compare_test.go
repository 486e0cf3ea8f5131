package dataset

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestExtractionFindsTheAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		e          Extract
		completion string
		want       string
		found      bool
	}{
		{Extract{Kind: Boxed}, `so \boxed{\frac{1}{2}}, no: \boxed{ {3} }.`, "{3}", true},
		{Extract{Kind: Boxed}, `\boxed{1} and \boxed{2`, "1", true},
		{Extract{Kind: Boxed}, `\boxed{a\}b}`, `a\}b`, true},
		{Extract{Kind: Boxed}, "none", "", false},
		{Extract{Kind: LastNumber}, "from 3 to 1,234.5 apples.", "1,234.5", true},
		{Extract{Kind: LastNumber}, "it is -7.", "-7", true},
		{Extract{Kind: LastNumber}, "about 1e-3", "1e-3", true},
		{Extract{Kind: LastNumber}, "none.", "", false},
		{Extract{Kind: Tag}, "<answer>1</answer> <answer> 2\n</answer>", "2", true},
		{Extract{Kind: Tag, Tag: "final"}, "<answer>1</answer>", "", false},
		{Extract{Kind: Tag}, "</answer><answer>", "", false},
		{Extract{Kind: After}, "work\n#### 42\n", "42", true},
		{Extract{Kind: After, Marker: "A:"}, "A: x A: y", "y", true},
		{Extract{Kind: After}, "####", "", false},
		{Extract{Kind: Pattern, Pattern: `x=(\d+)`}, "x=1 x=23", "23", true},
		{Extract{Kind: Pattern, Pattern: `\d+`}, "1 23", "23", true},
		{Extract{Kind: Fence}, "```py\na\n```\n```\nb\n```", "b", true},
		{Extract{Kind: Fence, Language: "py"}, "```py\na\n```\n```\nb\n```", "a", true},
		{Extract{Kind: Fence}, "```py\na\nb", "a\nb", true},
		{Extract{Kind: Fence}, "none", "", false},
		{Extract{Kind: LastLine}, "a\n b \n\n", "b", true},
		{Extract{Kind: Whole}, " a ", " a ", true},
	} {
		if err := tt.e.check("e"); err != nil {
			t.Fatal(err)
		}
		if got, found := tt.e.find(tt.completion); got != tt.want || found != tt.found {
			t.Errorf("%+v in %q: %q, %v, want %q, %v", tt.e, tt.completion, got, found, tt.want, tt.found)
		}
	}
	for _, e := range []Extract{{Kind: "guess"}, {Kind: Pattern}, {Kind: Pattern, Pattern: "("}, {Kind: Tag, Tag: "a b"}} {
		if err := e.check("e"); err == nil {
			t.Errorf("%+v is taken", e)
		}
	}
}

func TestTextsAndChoices(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule, got, want string
		right           bool
	}{
		{Exact, "a ", "a", false},
		{Exact, "a", "a", true},
		{Text, "The  Eiffel-Tower!", "eiffel tower", true},
		{Text, "a", "the", false},
		{Text, "Paris", "London", false},
		{Text, "Ünïted", "ünïted", true},
		{Choice, "(C) because", "C", true},
		{Choice, "c", "C", true},
		{Choice, "**B**", "B", true},
		{Choice, "B.", "A", false},
		{Choice, "Answer: D", "D", true},
		{Choice, `\text{(A)}`, "A", true},
		{Choice, "Because", "B", false},
		{Choice, "", "", false},
		{Regex, "abc 12", `^abc \d+$`, true},
		{Regex, "abc", `\d`, false},
	} {
		spec := ScoreSpec{Rule: tt.rule}
		if right, _ := spec.right(tt.got, tt.want); right != tt.right {
			t.Errorf("%s: %q for %q is right: %v, want %v", tt.rule, tt.got, tt.want, right, tt.right)
		}
	}
}

func TestNumbersWithTolerancesAndUnits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		got, want string
		abs, rel  float64
		right     bool
	}{
		{"42", "42.0", 0, 0, true},
		{"1,234", "1234", 0, 0, true},
		{"$5", "5", 0, 0, true},
		{"1e3", "1000", 0, 0, true},
		{"3/4", "0.75", 0, 0, true},
		{"-1", "1", 0, 0, false},
		{"−1", "-1", 0, 0, true},
		{"0.3333333", "1/3", 0, 0, true},
		{"0.33", "1/3", 0, 0, false},
		{"0.33", "1/3", 0.01, 0, true},
		{"101", "100", 0, 0.01, true},
		{"102", "100", 0, 0.01, false},
		{"5 km", "5 km", 0, 0, true},
		{"5", "5 km", 0, 0, true},
		{"5 m", "5 km", 0, 0, false},
		{"5 meters", "5 meter", 0, 0, true},
		{"5 apples", "5", 0, 0, true},
		{`5\text{ cm}`, "5 cm", 0, 0, true},
		{"50%", "50 %", 0, 0, true},
		{"1/0", "1", 0, 0, false},
		{"none", "5", 0, 0, false},
		{"", "5", 0, 0, false},
		{"123456789012345678901", "123456789012345678902", 0.1, 0, false},
		{"1e999", "1", 0, 0, false},
		{strings.Repeat("9", 5000), "1", 0, 0, false},
	} {
		if right, _ := sameQuantity(tt.got, tt.want, tt.abs, tt.rel); right != tt.right {
			t.Errorf("%q for %q (%v, %v) is right: %v, want %v", tt.got, tt.want, tt.abs, tt.rel, right, tt.right)
		}
	}
}

func TestMathAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		got, want string
		right     bool
	}{
		{`\frac{1}{2}`, "0.5", true},
		{`\dfrac12`, "1/2", true},
		{"$x=3$", "3", true},
		{`\boxed{7}`, "7", true},
		{"7.", "7", true},
		{"1,000", "1000", true},
		{`3\frac{1}{2}`, "7/2", true},
		{`50\%`, "0.5", true},
		{`\sqrt{8}`, `2\sqrt{2}`, true},
		{`\sqrt[3]{27}`, "3", true},
		{`2\pi`, "6.28", false},
		{`2\pi`, `\pi*2`, true},
		{"x^2-1", "(x-1)(x+1)", true},
		{"x^2+1", "(x-1)(x+1)", false},
		{"2x+3y", "3y+2x", true},
		{"x+1", "y+1", false},
		{"x", "3", false},
		{"(1,2)", "(1, 2)", true},
		{"(2,1)", "(1,2)", false},
		{`\{1,2\}`, `\{2, 1\}`, true},
		{`\{1,2\}`, `\{1,2,3\}`, false},
		{"1,2", "2,1", true},
		{"[0,1)", "[0, 1)", true},
		{"[0,1)", "[0,1]", false},
		{`(-\infty,1)\cup(2,3)`, `(2,3)\cup(-\infty, 1)`, true},
		{"y=2x+1", "2x+1", true},
		{"2x+y=1", "4x+2y=2", true},
		{"2x+y=1", "2x+y=2", false},
		{`90^\circ`, "90", true},
		{`\text{yes}`, "yes", true},
		{"5!", "120", true},
		{`\binom{5}{2}`, "10", true},
		{`\log_2 8`, "3", true},
		{`\sin^2 x+\cos^2 x`, "1", false},
		{"e^{2}", `e^2`, true},
		{"2^{10}", "1024", true},
		{"-2^2", "-4", true},
		{`|{-3}|`, "3", true},
		{"", "1", false},
		{"1", "", false},
		{"\\frac{1}{0}", "1", false},
		{"(", "(", true},
		{strings.Repeat("(", 10000), "1", false},
		{strings.Repeat("^", 10000), "1", false},
		{`\infty`, `\infty`, true},
		{"10!!!!!!", "1", false},
	} {
		if right := sameMath(tt.got, tt.want, 0, 0); right != tt.right {
			t.Errorf("%q for %q is right: %v, want %v", tt.got, tt.want, right, tt.right)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	for _, s := range []string{`\frac{1}{2}`, "(1,2]", `\{a,b\}`, "x^{y^z}", "5 km", `\boxed{\boxed{1}}`, "```py\nx", "#### 3"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, completion, answer string) {
		for rule, ways := range defaultExtract {
			if rule == Code {
				continue
			}
			v, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err) // a string always has a JSON form
			}
			s := NewScorer(nil, nil)
			spec := ScoreSpec{Rule: rule, Items: []Item{{Completion: completion, Answer: v}}, Extract: append([]Extract{}, ways...)}
			_ = s.Score(t.Context(), spec, func(got Score) {
				if got.Score == nil || *got.Score < 0 || *got.Score > 1 {
					t.Errorf("%s: score %v", rule, got.Score)
				}
			})
		}
	})
}
