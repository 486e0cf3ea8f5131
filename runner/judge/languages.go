package judge

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed languages.json harness
var embedded embed.FS

// Language says how programs of one language are compiled and run, with the tools that a
// Debian package brings. It is data (languages.json), the same for all worlds.
type Language struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases"`
	// Packages are those of Debian that bring the tools.
	Packages []string `json:"packages"`
	// Source is the name that the code gets.
	Source  string   `json:"source"`
	Compile []string `json:"compile"`
	Run     []string `json:"run"`
	// Env adds to the environment of compiling and running.
	Env map[string]string `json:"env"`
	// Drop are what compiling leaves and no run needs.
	Drop []string `json:"drop"`
	// Call and Assert are how a function is called, and an assertion made; nil is not at all.
	Call   *Harness `json:"call"`
	Assert *Harness `json:"assert"`
	// Test is how a test file is run.
	Test *TestFile `json:"test"`

	digest string
}

// Harness is a program, in a language's own words, around the code.
type Harness struct {
	// Harness is the name of its text, beside languages.json.
	Harness string   `json:"harness"`
	Run     []string `json:"run"`

	text []byte
}

// TestFile is how a language runs a test file that uses the code.
type TestFile struct {
	Source  string   `json:"source"`
	Compile []string `json:"compile"`
	Run     []string `json:"run"`
}

var languages = func() []*Language {
	data, err := embedded.ReadFile("languages.json")
	if err != nil {
		panic(err)
	}
	list, err := parseLanguages(data)
	if err != nil {
		panic(err) // of a file that this binary was built with, so a test meets it first
	}
	return list
}()

func parseLanguages(data []byte) ([]*Language, error) {
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	var list []*Language
	if err := in.Decode(&list); err != nil {
		return nil, fmt.Errorf("languages.json: %w", err)
	}
	seen := map[string]bool{}
	for _, l := range list {
		if l.Name == "" || l.Source == "" || len(l.Run) == 0 || len(l.Packages) == 0 {
			return nil, fmt.Errorf("languages.json: %q lacks a name, source, run or packages", l.Name)
		}
		for _, name := range append([]string{l.Name}, l.Aliases...) {
			if seen[name] {
				return nil, fmt.Errorf("languages.json: %q is there twice", name)
			}
			seen[name] = true
		}
		for _, h := range []*Harness{l.Call, l.Assert} {
			if h == nil {
				continue
			}
			var err error
			if h.text, err = embedded.ReadFile(path.Join("harness", h.Harness)); err != nil {
				return nil, fmt.Errorf("languages.json: %q: %w", l.Name, err)
			}
		}
		sum, err := json.Marshal(l)
		if err != nil {
			return nil, err
		}
		l.digest = digest(sum)
	}
	return list, nil
}

// Languages are all that are known, in the order of their names.
func Languages() []Language {
	out := make([]Language, len(languages))
	for i, l := range languages {
		out[i] = *l
	}
	slices.SortFunc(out, func(a, b Language) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func findLanguage(name string) (*Language, bool) {
	for _, l := range languages {
		if l.Name == name || slices.Contains(l.Aliases, name) {
			return l, true
		}
	}
	return nil, false
}

// tool says whether argv's program is one of the world's tools, rather than the code's own.
func tool(argv []string) bool { return !strings.Contains(argv[0], "/") }

// SameLanguage says whether two names are of one known language.
func SameLanguage(a, b string) bool {
	x, okX := findLanguage(a)
	y, okY := findLanguage(b)
	return okX && okY && x == y
}
