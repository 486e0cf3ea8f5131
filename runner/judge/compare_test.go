package judge

import (
	"testing"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule      Compare
		got, want string
		equal     bool
	}{
		{Compare{Rule: Exact}, "a\n", "a\n", true},
		{Compare{Rule: Exact}, "a\n", "a", false},
		{Compare{}, "a\n", "a", true},
		{Compare{}, "a  \r\nb\n\n\n", "a\nb", true},
		{Compare{}, "\na", "a", false},
		{Compare{}, "a\n\nb", "a\nb", false},
		{Compare{}, " a", "a", false},
		{Compare{}, "", "\n\n", true},
		{Compare{}, "a\nb", "a", false},
		{Compare{Rule: Trailing}, "a\t\n", "a", true},
		{Compare{Rule: Tokens}, " a \n b", "a b\n", true},
		{Compare{Rule: Tokens}, "ab", "a b", false},
		{Compare{Rule: Tokens}, "a b c", "a b", false},
		{Compare{Rule: Tokens}, "", " ", true},
		{Compare{Rule: Tokens}, "1.0", "1", false},
		{Compare{Rule: Floats}, "1.0000001 x", "1 x", true},
		{Compare{Rule: Floats}, "1.001", "1", false},
		{Compare{Rule: Floats, Abs: new(0.01)}, "1.001", "1", true},
		{Compare{Rule: Floats, Rel: new(0.01)}, "1001", "1000", true},
		{Compare{Rule: Floats, Abs: new(0.5)}, "1001", "1000", false},
		{Compare{Rule: Floats}, "nan", "NaN", true},
		{Compare{Rule: Floats}, "nan", "1", false},
		{Compare{Rule: Floats}, "1", "nan", false},
		{Compare{Rule: Floats}, "inf", "1e999", true},
		{Compare{Rule: Floats}, "inf", "-inf", false},
		{Compare{Rule: Floats}, "inf", "1", false},
		{Compare{Rule: Floats}, "1", "x", false},
		{Compare{Rule: Floats}, "0x10", "16", false},
		{Compare{Rule: Floats, Abs: new(0.0), Rel: new(0.0)}, "9007199254740993", "9007199254740992", false},
		{Compare{Rule: Floats, Abs: new(0.0), Rel: new(0.0)}, "1.0", "1", true},
	} {
		if got := tt.rule.equal([]byte(tt.got), []byte(tt.want)); got != tt.equal {
			t.Errorf("%+v: %q and %q are equal: %v, want %v", tt.rule, tt.got, tt.want, got, tt.equal)
		}
	}
}

func TestSameValue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule      string
		got, want string
		same      bool
	}{
		{"", "1", "1.0", true},
		{"", "[1,2]", "[1, 2]", true},
		{"", "[1,2]", "[2,1]", false},
		{"", `{"a":1,"b":[null,true]}`, `{"b":[null,true],"a":1}`, true},
		{"", `{"a":1}`, `{"a":1,"b":2}`, false},
		{"", `{"a":1}`, `{"b":1}`, false},
		{"", "0.30000000000000004", "0.3", false},
		{Floats, "0.30000000000000004", "0.3", true},
		{"", "123456789012345678901234567890", "123456789012345678901234567891", false},
		{"", `"1"`, "1", false},
		{"", "true", "1", false},
		{"", "null", "false", false},
		{"", "x", "x", false},
	} {
		if got := sameValue([]byte(tt.got), []byte(tt.want), &Compare{Rule: tt.rule}); got != tt.same {
			t.Errorf("%s: %s and %s are the same: %v, want %v", tt.rule, tt.got, tt.want, got, tt.same)
		}
	}
}

func TestLanguagesAreWhole(t *testing.T) {
	t.Parallel()
	all := Languages()
	if len(all) < 8 {
		t.Errorf("%d languages", len(all))
	}
	for _, name := range []string{"python", "c", "cpp", "go", "javascript", "bash", "java", "rust", "nodejs"} {
		if _, ok := findLanguage(name); !ok {
			t.Errorf("no language %q", name)
		}
	}
	for text, why := range map[string]string{
		`[{"name":"x","source":"s","run":["r"],"packages":["p"],"unknown":1}]`:                            "an unknown field",
		`[{"name":"x","source":"s","packages":["p"]}]`:                                                    "nothing to run",
		`[{"name":"x","source":"s","run":["r"],"packages":["p"],"aliases":["x"]}]`:                        "a name that is there twice",
		`[{"name":"x","source":"s","run":["r"],"packages":["p"],"call":{"harness":"no.py","run":["r"]}}]`: "a harness that is not there",
	} {
		if _, err := parseLanguages([]byte(text)); err == nil {
			t.Errorf("a file with %s is taken", why)
		}
	}
}
