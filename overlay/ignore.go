package overlay

import (
	"path"
	"regexp"
	"strings"
)

// ignore are patterns as in .dockerignore: * and ? stop at slashes, ** does not, a later
// pattern with ! takes paths back in, a pattern that matches a directory matches what is
// in it.
type ignore struct {
	rules []ignoreRule
	// exceptions says that some pattern begins with !.
	exceptions bool
}

type ignoreRule struct {
	re   *regexp.Regexp
	keep bool
}

func newIgnore(patterns []string) (*ignore, error) {
	ig := &ignore{}
	for _, p := range patterns {
		p = strings.TrimSpace(p)
		if p == "" || strings.HasPrefix(p, "#") {
			continue
		}
		rest, keep := strings.CutPrefix(p, "!")
		re, err := regexp.Compile(ignorePattern(strings.Trim(path.Clean("/"+rest), "/")))
		if err != nil {
			return nil, refuse("bad_recipe", "", "ignore pattern %q: %v", p, err)
		}
		ig.rules = append(ig.rules, ignoreRule{re, keep})
		ig.exceptions = ig.exceptions || keep
	}
	return ig, nil
}

func ignorePattern(p string) string {
	var b strings.Builder
	b.WriteString("^")
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case strings.HasPrefix(p[i:], "**/"):
			b.WriteString("(?:.*/)?")
			i += 2
		case strings.HasPrefix(p[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		case c == '[' && strings.Contains(p[i:], "]"):
			end := i + strings.IndexByte(p[i:], ']')
			b.WriteString(strings.Replace(p[i:end+1], "[!", "[^", 1))
			i = end
		case c == '\\' && i+1 < len(p):
			i++
			b.WriteString(regexp.QuoteMeta(p[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(p[i : i+1]))
		}
	}
	b.WriteString("(?:/.*)?$")
	return "(?s)" + b.String()
}

// match says whether a path is left out.
func (ig *ignore) match(p string) bool {
	out := false
	for _, r := range ig.rules {
		if r.re.MatchString(p) {
			out = !r.keep
		}
	}
	return out
}
