package policies

import (
	"os"
	"strings"
	"testing"
)

// docs/policies.md is where people learn the fields.
func TestEveryFieldIsDocumented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range jsonFields {
		if !strings.Contains(string(doc), "`"+field+"`") {
			t.Errorf("docs/policies.md does not say what field %s means", field)
		}
	}
	for _, name := range mustLoad(t).Names() {
		if !strings.Contains(string(doc), "| `"+name+"` |") {
			t.Errorf("docs/policies.md does not list policy %s", name)
		}
	}
}
