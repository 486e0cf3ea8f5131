package dockerfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/overlay"
)

// FuzzPlan reads a Dockerfile and plans every stage of it as a build does, without files.
func FuzzPlan(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*.Dockerfile")
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, p := range seeds {
		text, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "VALUE")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		if err := planAll(text, value); err != nil {
			if e, ok := errors.AsType[*overlay.RecipeError](err); !ok || e.Kind != "bad_recipe" {
				t.Fatalf("%T %v is no typed refusal", err, err)
			}
		}
	})
}

// planAll is what a build does without its files.
func planAll(text, value string) error {
	file, err := Parse("Dockerfile", text)
	if err != nil {
		return err
	}
	given := map[string]string{"A": value, "HTTP_PROXY": value}
	global, err := file.globals(given, map[string]bool{})
	if err != nil {
		return err
	}
	bases := map[int]string{}
	for i, s := range file.stages {
		if bases[i], err = file.expand(s.line, s.base, global); err != nil {
			return err
		}
	}
	configs := map[int]overlay.Config{}
	for _, i := range file.needed(len(file.stages)-1, bases) {
		st := &state{file: file, given: given, global: global, args: map[string]string{}, used: map[string]bool{}}
		if n := file.stageBefore(i, bases[i]); n >= 0 {
			st.config = configs[n]
		}
		st.begin()
		for _, c := range file.stages[i].commands {
			act, err := st.apply(c)
			if err != nil {
				return err
			}
			if act != nil && act.run != nil && (len(act.run.argv) == 0 || !strings.HasPrefix(act.run.dir, "/")) {
				return errors.New("a RUN without a program or a directory")
			}
			if act != nil && act.copy != nil && !strings.HasPrefix(act.copy.dest, "/") {
				return errors.New("a COPY to a relative path")
			}
		}
		configs[i] = st.config
	}
	return nil
}

func TestVariablesDoNotExplode(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("FROM scratch\nENV X=aaaaaaaaaa\n")
	for range 500 {
		text.WriteString("ENV X=$X$X$X$X\n")
	}
	if err := planAll(text.String(), ""); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("doubling variables: %.100v, want a refusal", err)
	}
}
