package dockerfile

import (
	"bytes"
	"errors"
	"io/fs"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/paddock-run/paddock/overlay"
)

// SentDockerfile is where a client puts a Dockerfile that is not in the context, which then
// is no part of the context.
const SentDockerfile = ".paddock.Dockerfile"

// maxIgnore bounds a .dockerignore.
const maxIgnore = 1 << 20

// readIgnore reads what of the context is left out: the file beside the Dockerfile that is
// named for it, else .dockerignore.
func readIgnore(context *overlay.View, dockerfile string) ([]string, error) {
	var names []string
	if dockerfile != "" {
		names = append(names, dockerfile+".dockerignore")
	}
	for _, name := range append(names, ".dockerignore") {
		text, err := context.ReadFile(name, maxIgnore)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
		if err != nil {
			return nil, &overlay.RecipeError{Kind: "bad_recipe", Path: name, Detail: err.Error()}
		}
		return patterns, nil
	}
	return nil, nil
}

// skipper is what Selecting asks of patterns.
func skipper(patterns []string) (func(string) (skip, prune bool), error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, &overlay.RecipeError{Kind: "bad_recipe", Path: ".dockerignore", Detail: err.Error()}
	}
	return func(p string) (bool, bool) {
		skip, err := m.MatchesOrParentMatches(p)
		return err == nil && skip, !m.Exclusions()
	}, nil
}

// hideSent leaves SentDockerfile out as well.
func hideSent(skip func(string) (bool, bool)) func(string) (bool, bool) {
	return func(p string) (bool, bool) {
		if p == SentDockerfile {
			return true, true
		}
		if skip == nil {
			return false, false
		}
		return skip(p)
	}
}
