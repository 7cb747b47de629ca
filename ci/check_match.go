package ci

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// matcher says what a value must be, in goss's words. A value is text; what goss
// calls an array is text of one element a line.
type matcher struct {
	words string
	ok    func(value string) bool
	all   []matcher // instead of ok: each of them
}

func (m matcher) empty() bool { return m.ok == nil && len(m.all) == 0 }

// misses returns, in words, what value lacks.
func (m matcher) misses(value string) []string {
	var misses []string
	for _, part := range m.all {
		misses = append(misses, part.misses(value)...)
	}
	if m.ok != nil && !m.ok(value) {
		misses = append(misses, m.words)
	}
	return misses
}

func (m matcher) matches(value string) bool { return len(m.misses(value)) == 0 }

func (m matcher) String() string {
	if m.ok != nil {
		return m.words
	}
	words := make([]string, len(m.all))
	for i, part := range m.all {
		words[i] = part.String()
	}
	return strings.Join(words, " and ")
}

// valueType is how the plain words of a matcher are read.
type valueType int

const (
	textValue   valueType = iota // output or a file: a list is patterns for its lines
	listValue                    // a list is elements that must be there
	stringValue                  // one word
	numberValue
)

// matcher reads the attribute key as a matcher; an absent one matches everything.
func (e *entry) matcher(key string, t valueType) matcher {
	n := e.fields[key]
	if n == nil {
		return matcher{}
	}
	r := matchReader{entry: e, key: key, value: t}
	return r.read(n)
}

type matchReader struct {
	*entry
	key   string
	value valueType
}

func (r matchReader) read(n *yaml.Node) matcher {
	switch n.Kind {
	case yaml.SequenceNode:
		return r.readList(n)
	case yaml.MappingNode:
		return r.readNamed(n)
	}
	if n.ShortTag() == "!!null" {
		r.fail(n, "%s is empty; leave it out or write []", r.key)
		return matcher{}
	}
	if r.value == numberValue {
		return r.compare(n, "", func(a, b float64) bool { return a == b })
	}
	if r.value == listValue {
		return element(equals(n.Value))
	}
	return equals(n.Value)
}

func (r matchReader) readList(n *yaml.Node) matcher {
	if r.value == numberValue || r.value == stringValue {
		r.fail(n, "%s must be one value or a matcher, not a list", r.key)
		return matcher{}
	}
	var m matcher
	for _, c := range n.Content {
		switch {
		case c.Kind != yaml.ScalarNode:
			m.all = append(m.all, element(r.read(c)))
		case r.value == textValue:
			m.all = append(m.all, r.pattern(c))
		default:
			m.all = append(m.all, element(equals(c.Value)))
		}
	}
	return m
}

// matcherNames are what a mapping may say. Of goss's they lack those for mappings
// (have-key, have-key-with-value), since no answer of a board is one.
var matcherNames = []string{
	"and", "or", "not", "equal", "have-prefix", "have-suffix", "contain-substring", "match-regexp",
	"gt", "ge", "lt", "le", "contain-element", "contain-elements", "consist-of", "have-len", "have-patterns",
	"semver-constraint", "gjson",
}

// readNamed reads a mapping like {have-prefix: v}.
func (r matchReader) readNamed(n *yaml.Node) matcher {
	if len(n.Content) != 2 {
		r.fail(n, "%s: one matcher at a time (combine with and: [...])", r.key)
		return matcher{}
	}
	name, arg := n.Content[0], n.Content[1]
	if !slices.Contains(matcherNames, name.Value) {
		r.fail(name, "%s: unknown matcher %q (allowed: %s)", r.key, name.Value, strings.Join(matcherNames, ", "))
		return matcher{}
	}
	switch name.Value {
	case "and", "or":
		return r.combine(name.Value, arg)
	case "not":
		inner := r.read(arg)
		return matcher{words: "not " + inner.String(), ok: func(v string) bool { return !inner.matches(v) }}
	case "contain-elements":
		return matchReader{r.entry, r.key, listValue}.readList(r.want(arg, yaml.SequenceNode))
	case "consist-of":
		return r.consistOf(r.want(arg, yaml.SequenceNode))
	case "have-patterns":
		return matchReader{r.entry, r.key, textValue}.readList(r.want(arg, yaml.SequenceNode))
	case "gjson":
		return r.gjson(r.want(arg, yaml.MappingNode))
	case "contain-element":
		return element(matchReader{r.entry, r.key, stringValue}.read(arg))
	case "equal":
		if arg.Kind == yaml.SequenceNode {
			return equals(strings.Join(values(arg), "\n"))
		}
	}
	return r.readOne(name.Value, r.want(arg, yaml.ScalarNode))
}

// readOne reads a matcher whose argument is one word.
func (r matchReader) readOne(name string, arg *yaml.Node) matcher {
	word := arg.Value
	switch name {
	case "equal":
		return equals(word)
	case "have-prefix":
		return matcher{fmt.Sprintf("begins with %q", word), func(v string) bool { return strings.HasPrefix(v, word) }, nil}
	case "have-suffix":
		return matcher{fmt.Sprintf("ends with %q", word), func(v string) bool { return strings.HasSuffix(chomp(v), word) }, nil}
	case "contain-substring":
		return matcher{fmt.Sprintf("contains %q", word), func(v string) bool { return strings.Contains(v, word) }, nil}
	case "have-len":
		return r.length(arg)
	case "semver-constraint":
		allows, err := parseConstraint(word)
		if err != nil {
			r.fail(arg, "%s: %v", r.key, err)
		}
		return semver(word, allows)
	case "match-regexp":
		re := r.regexp(arg, word)
		return matcher{fmt.Sprintf("matches /%s/", word), re.MatchString, nil}
	case "gt":
		return r.compare(arg, "more than ", func(a, b float64) bool { return a > b })
	case "ge":
		return r.compare(arg, "at least ", func(a, b float64) bool { return a >= b })
	case "lt":
		return r.compare(arg, "less than ", func(a, b float64) bool { return a < b })
	}
	return r.compare(arg, "at most ", func(a, b float64) bool { return a <= b })
}

// want returns n where it is of a kind, or else an empty node of that kind.
func (r matchReader) want(n *yaml.Node, k yaml.Kind) *yaml.Node {
	if n.Kind == k {
		return n
	}
	r.fail(n, "%s: this matcher does not take %s", r.key, kindOf(n))
	return &yaml.Node{Kind: k, Line: n.Line, Column: n.Column, Value: "0"}
}

func (r matchReader) combine(name string, arg *yaml.Node) matcher {
	var parts []matcher
	for _, c := range r.want(arg, yaml.SequenceNode).Content {
		parts = append(parts, r.read(c))
	}
	if len(parts) == 0 {
		r.fail(arg, "%s: %s needs a list of matchers", r.key, name)
	}
	if name == "and" {
		return matcher{all: parts}
	}
	words := make([]string, len(parts))
	for i, p := range parts {
		words[i] = p.String()
	}
	return matcher{words: strings.Join(words, " or "), ok: func(v string) bool {
		return slices.ContainsFunc(parts, func(p matcher) bool { return p.matches(v) })
	}}
}

// length counts the elements of a list, and the bytes of anything else.
func (r matchReader) length(arg *yaml.Node) matcher {
	want, err := strconv.Atoi(arg.Value)
	if err != nil || want < 0 {
		r.fail(arg, "%s: have-len needs a number, not %s", r.key, kindOf(arg))
	}
	if r.value == listValue {
		return matcher{words: fmt.Sprintf("%d elements", want), ok: func(v string) bool { return len(lines(v)) == want }}
	}
	return matcher{words: fmt.Sprintf("%d bytes", want), ok: func(v string) bool { return len(v) == want }}
}

// consistOf wants these elements, and no others, in any order.
func (r matchReader) consistOf(arg *yaml.Node) matcher {
	var parts []matcher
	var words []string
	for _, c := range arg.Content {
		m := matchReader{r.entry, r.key, stringValue}.read(c)
		parts, words = append(parts, m), append(words, m.String())
	}
	return matcher{words: "these lines alone: " + strings.Join(words, ", "), ok: func(v string) bool {
		have := lines(v)
		return len(have) == len(parts) && pairUp(parts, have)
	}}
}

// pairUp gives every matcher a line of its own, where that can be done: a line that
// two could have is handed on while there is another for one of them.
func pairUp(parts []matcher, have []string) bool {
	owner := map[int]int{} // which matcher has a line
	var place func(part int, tried map[int]bool) bool
	place = func(part int, tried map[int]bool) bool {
		for i, line := range have {
			if tried[i] || !parts[part].matches(line) {
				continue
			}
			tried[i] = true
			if old, taken := owner[i]; !taken || place(old, tried) {
				owner[i] = part
				return true
			}
		}
		return false
	}
	for part := range parts {
		if !place(part, map[int]bool{}) {
			return false
		}
	}
	return true
}

// gjson holds what stands at places of a JSON text against matchers.
func (r matchReader) gjson(arg *yaml.Node) matcher {
	var all []matcher
	for k, v := range pairs(arg) {
		if err := checkJSONPath(k.Value); err != nil {
			r.fail(k, "%s: gjson: %v", r.key, err)
		}
		path, m := k.Value, matchReader{r.entry, r.key, stringValue}.read(v)
		all = append(all, matcher{words: path + " in the JSON: " + m.String(), ok: func(text string) bool {
			value, err := jsonAt(text, path)
			return err == nil && m.matches(value)
		}})
	}
	if len(all) == 0 {
		r.fail(arg, "%s: gjson needs places and what to find there", r.key)
	}
	return matcher{all: all}
}

func (r matchReader) compare(n *yaml.Node, words string, holds func(a, b float64) bool) matcher {
	want, err := strconv.ParseFloat(n.Value, 64)
	if err != nil {
		r.fail(n, "%s must be a number, not %s", r.key, kindOf(n))
	}
	return matcher{words: words + n.Value, ok: func(v string) bool {
		have, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		return err == nil && holds(have, want)
	}}
}

// pattern reads goss's patterns for lines: foo, !foo, /regex/, !/regex/, and \!
// or \/ where a text begins with these.
func (r matchReader) pattern(n *yaml.Node) matcher {
	text, absent := strings.CutPrefix(n.Value, "!")
	words, ok := fmt.Sprintf("a line with %q", text), func(line string) bool { return strings.Contains(line, text) }
	switch {
	case len(text) > 2 && strings.HasPrefix(text, "/") && strings.HasSuffix(text, "/"):
		re := r.regexp(n, text[1:len(text)-1])
		words, ok = "a line that matches "+text, re.MatchString
	case strings.HasPrefix(text, `\!`) || strings.HasPrefix(text, `\/`):
		text = text[1:]
		words = fmt.Sprintf("a line with %q", text)
	}
	if absent {
		words = "no" + strings.TrimPrefix(words, "a")
	}
	return matcher{words: words, ok: func(v string) bool { return slices.ContainsFunc(lines(v), ok) != absent }}
}

func (r matchReader) regexp(n *yaml.Node, text string) *regexp.Regexp {
	re, err := regexp.Compile(text)
	if err != nil {
		r.fail(n, "%s: %v", r.key, err)
		return regexp.MustCompile("")
	}
	return re
}

func equals(word string) matcher {
	return matcher{words: strconv.Quote(word), ok: func(v string) bool { return chomp(v) == chomp(word) }}
}

// element matches text of which one line matches m.
func element(m matcher) matcher {
	words := m.String()
	if strings.HasPrefix(words, `"`) {
		words = "is " + words
	}
	return matcher{words: "a line that " + words, ok: func(v string) bool { return slices.ContainsFunc(lines(v), m.matches) }}
}

func values(n *yaml.Node) []string {
	var out []string
	for _, c := range n.Content {
		out = append(out, c.Value)
	}
	return out
}

func chomp(text string) string { return strings.TrimSuffix(text, "\n") }

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(chomp(text), "\n")
}
