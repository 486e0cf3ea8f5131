package dataset

import (
	"regexp"
	"strings"
)

// The kinds of Extract.
const (
	// Boxed is what is in the last \boxed{...} or \fbox{...}.
	Boxed = "boxed"
	// LastNumber is the last number.
	LastNumber = "last_number"
	// Tag is what is between the last <tag> and its </tag>.
	Tag = "tag"
	// After is the rest of the line behind the last marker, such as "####".
	After = "after"
	// Pattern is a regular expression's first group, or all of it, where it matches last.
	Pattern = "regex"
	// Fence is what is in the last code fence, of the language where one is named so.
	Fence = "code"
	// LastLine is the last line that is not empty.
	LastLine = "last_line"
	// Whole is the whole completion.
	Whole = "whole"
)

// Extract is one way to find the answer in a completion; of several, the first that finds
// something counts.
type Extract struct {
	Kind string
	// Tag is of Tag, "answer" by default; Marker of After, "####" by default; Pattern (RE2)
	// of Pattern; Language of Fence.
	Tag, Marker, Pattern, Language string

	re *regexp.Regexp
}

// defaultExtract are the ways of a rule whose request names none.
var defaultExtract = map[string][]Extract{
	Exact: {{Kind: Whole}}, Regex: {{Kind: Whole}},
	Text:   {{Kind: Boxed}, {Kind: Tag}, {Kind: After}, {Kind: Whole}},
	Choice: {{Kind: Boxed}, {Kind: Tag}, {Kind: After}, {Kind: Pattern, Pattern: answerIs}, {Kind: LastLine}},
	Number: {{Kind: Boxed}, {Kind: Tag}, {Kind: After}, {Kind: Pattern, Pattern: answerIs}, {Kind: LastNumber}},
	Math:   {{Kind: Boxed}, {Kind: Tag}, {Kind: After}, {Kind: Pattern, Pattern: answerIs}, {Kind: LastLine}},
	Code:   {{Kind: Tag, Tag: "code"}, {Kind: Fence}, {Kind: Whole}},
}

const answerIs = `(?i)answer\s*(?:is|:|=)\s*:?\s*([^\n]+)`

func (e *Extract) check(where string) error {
	switch e.Kind {
	case Boxed, LastNumber, Fence, LastLine, Whole:
	case Tag:
		e.Tag = or(e.Tag, "answer")
		if !nameForm.MatchString(e.Tag) {
			return badField(where+"/tag", "%q is no tag", e.Tag)
		}
	case After:
		e.Marker = or(e.Marker, "####")
	case Pattern:
		var err error
		if e.re, err = compile(e.Pattern); err != nil {
			return badField(where+"/pattern", "%v", err)
		}
	default:
		return badField(where+"/kind", "%q is not one of %s", e.Kind,
			strings.Join([]string{Boxed, LastNumber, Tag, After, Pattern, Fence, LastLine, Whole}, ", "))
	}
	return nil
}

var number = regexp.MustCompile(`[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?`)

// find is the answer, trimmed; false is that there is none.
func (e *Extract) find(completion string) (string, bool) {
	switch e.Kind {
	case Boxed:
		return boxed(completion)
	case LastNumber:
		return lastNumber(completion)
	case Tag:
		end := strings.LastIndex(completion, "</"+e.Tag+">")
		if end < 0 {
			return "", false
		}
		begin := strings.LastIndex(completion[:end], "<"+e.Tag+">")
		if begin < 0 {
			return "", false
		}
		return strings.TrimSpace(completion[begin+len(e.Tag)+2 : end]), true
	case After:
		i := strings.LastIndex(completion, e.Marker)
		if i < 0 {
			return "", false
		}
		line, _, _ := strings.Cut(completion[i+len(e.Marker):], "\n")
		line = strings.TrimSpace(line)
		return line, line != ""
	case Pattern:
		all := e.re.FindAllStringSubmatch(completion, -1)
		if len(all) == 0 {
			return "", false
		}
		last := all[len(all)-1]
		return strings.TrimSpace(last[min(1, len(last)-1)]), true
	case Fence:
		return e.fence(completion)
	case LastLine:
		return lastLine(completion)
	}
	return completion, true
}

// boxed finds the last box that is closed; braces in it may nest.
func boxed(s string) (string, bool) {
	for end := len(s); ; {
		i := max(strings.LastIndex(s[:end], `\boxed{`), strings.LastIndex(s[:end], `\fbox{`))
		if i < 0 {
			return "", false
		}
		begin := i + strings.IndexByte(s[i:], '{') + 1
		depth := 1
		for j := begin; j < len(s); j++ {
			switch s[j] {
			case '\\':
				j++
			case '{':
				depth++
			case '}':
				if depth--; depth == 0 {
					return strings.TrimSpace(s[begin:j]), true
				}
			}
		}
		end = i
	}
}

func lastNumber(s string) (string, bool) {
	found := ""
	for _, m := range number.FindAllString(s, -1) {
		if strings.ContainsAny(m, "0123456789") {
			found = m
		}
	}
	return found, found != ""
}

func lastLine(s string) (string, bool) {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = strings.TrimSpace(s[i+1:])
	}
	return s, s != ""
}

var fences = regexp.MustCompile("(?s)```([^\n`]*)\n(.*?)(?:\n[ \t]*```|$)")

// fence finds the last fence of the language, else the last of any; it need not be closed.
func (e *Extract) fence(s string) (string, bool) {
	all := fences.FindAllStringSubmatch(s, -1)
	if len(all) == 0 {
		return "", false
	}
	found := all[len(all)-1][2]
	if e.Language != "" {
		for _, m := range all {
			if strings.EqualFold(strings.TrimSpace(m[1]), e.Language) {
				found = m[2]
			}
		}
	}
	return found, true
}

// maxPattern bounds a regular expression, in bytes.
const maxPattern = 16 << 10

func compile(pattern string) (*regexp.Regexp, error) {
	if pattern == "" || len(pattern) > maxPattern {
		return nil, badField("pattern", "has %d bytes, must have 1 to %d", len(pattern), maxPattern)
	}
	return regexp.Compile(pattern)
}
