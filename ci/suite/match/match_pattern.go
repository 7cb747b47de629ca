package match

import (
	"bufio"
	"fmt"
	"strings"

	"slipway/layers/plaintext"
	"slipway/layers/yaml"

	goyaml "go.yaml.in/yaml/v4"
)

// maxLineBytes is goss's limit for a line. A longer line makes a pattern fail with an error.
const maxLineBytes = 1 << 20

// readPatterns parses a list of goss patterns. Each must match a line of the text, or with ! none.
func (r matchReader) readPatterns(n *goyaml.Node) Matcher {
	var m Matcher
	for _, c := range n.Content {
		text, ok := r.forType(Any).readPatternText(c)
		if !ok {
			r.Fail(c, "%s: a pattern is a text; write %q", r.key, c.Value)
			continue
		}
		m.all = append(m.all, r.readPattern(c, text))
	}
	return m
}

// readPatternText returns the text of a pattern. For a node that is no text it returns false.
func (r matchReader) readPatternText(n *goyaml.Node) (string, bool) {
	if n.Kind != goyaml.ScalarNode {
		r.Fail(n, "%s: a pattern is a text, not %s", r.key, yaml.KindOf(n))
		return "", false
	}
	text, ok := r.scalarOf(n).(string)
	return text, ok
}

// patternShape matches /regular expression/flags, after ! if no line may match. A path such as
// /etc/x matches too, with its last part as the flags.
var patternShape = plaintext.Regexp(`(?s)^(!?)/(.*)/([^/]*)$`)

// flagLetters matches the flags of patterns in Go, JavaScript or Perl. goss has only i, m and s.
var flagLetters = plaintext.Regexp(`^([ims]*|[imsdgnuvxyADIJMSUX]{1,3})$`)

// readPattern parses one goss pattern: foo, !foo, /regex/ or !/regex/i. As in goss, leading ! / and
// \ are removed from a text that is no regular expression. An empty text matches any value.
func (r matchReader) readPattern(n *goyaml.Node, text string) Matcher {
	shape := patternShape().FindStringSubmatch(text)
	if shape != nil && flagLetters().MatchString(shape[3]) {
		if strings.Trim(shape[3], "ims") != "" {
			r.Fail(n, "%s: %q ends like a regular expression with flags, of which i, m and s are known; for a text, write %s", r.key, text, escapePattern(text))
			return Matcher{}
		}
		return r.readLinePattern(n, text, shape)
	}
	plain := strings.TrimLeft(text, `\/!`)
	if plain == "" && text != "" && text != "!" {
		r.Fail(n, "%s: %q asks nothing, as goss takes all ! / \\ from the beginning of a text; for a line with a slash, write %q", r.key, text, `/\//`)
		return Matcher{}
	}
	m := matchLines(fmt.Sprintf("line with %q", plain), strings.HasPrefix(text, "!"), func(line string) bool { return strings.Contains(line, plain) })
	if text == "" {
		m.test = func(any) (bool, error) { return true, nil }
	}
	return m
}

// escapePattern returns a goss pattern for text as plain text. A leading ! still means absent.
func escapePattern(text string) string {
	if rest, absent := strings.CutPrefix(text, "!"); absent {
		return `!\` + rest
	}
	return `\` + text
}

// readLinePattern parses a pattern /regex/flags. shape is its match of patternShape.
func (r matchReader) readLinePattern(n *goyaml.Node, text string, shape []string) Matcher {
	expression := shape[2]
	if shape[3] != "" {
		expression = "(?" + shape[3] + ")" + expression
	}
	re := r.compileRegexp(n, expression)
	return matchLines("line that matches "+strings.TrimPrefix(text, "!"), shape[1] == "!", re.MatchString)
}

// matchLines returns a matcher for a text with a line that matches, or if absent, without one.
func matchLines(words string, absent bool, match func(line string) bool) Matcher {
	article := plaintext.Either(absent, "no ", "a ")
	return Matcher{words: article + words, test: func(v any) (bool, error) {
		lines := bufio.NewScanner(strings.NewReader(TextOf(v)))
		lines.Buffer(nil, maxLineBytes)
		for lines.Scan() {
			if match(lines.Text()) {
				return !absent, nil
			}
		}
		return absent && lines.Err() == nil, lines.Err()
	}}
}
