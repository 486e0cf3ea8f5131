package attacks

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testNames = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*`)
	defined   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*)\(`)
)

// A document that names a test which is gone promises what nothing holds.
func TestDocumentsNameTestsThatAreThere(t *testing.T) {
	t.Parallel()
	const root = "../.."
	there := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range defined.FindAllStringSubmatch(string(text), -1) {
			there[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"docs/proof.md", "docs/threat-model.md", "docs/tenants.md", "docs/outcomes.md"} {
		text, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testNames.FindAllString(string(text), -1) {
			if !there[name] {
				t.Errorf("%s names %s, and there is no such test", doc, name)
			}
		}
	}
}

// Every case of the suite is one that a document tells of.
func TestEveryCaseIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	threats, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range [][]attack{processes, kernel, files, network, proxied} {
		for _, a := range group {
			id := strings.TrimRight(a.id, "abcdefgh")
			if !strings.Contains(string(text)+string(threats), id) {
				t.Errorf("case %s is in no document", id)
			}
		}
	}
}
