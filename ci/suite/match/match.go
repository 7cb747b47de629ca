// Package match turns goss's YAML for an expected value into a Matcher.
package match

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
	"slipway/layers/yaml"

	"github.com/blang/semver/v4"
	goyaml "go.yaml.in/yaml/v4"
)

// Matcher is a condition for a value, with goss's semantics. A value is text, a number, a
// boolean, a list, or a value of JSON. A value of the wrong type, such as text for gt,
// matches neither a matcher nor its `not`.
type Matcher struct {
	words string
	test  func(value any) (bool, error)
	all   []Matcher // if test is nil: all of them must match
}

// Empty reports whether every value matches.
func (m Matcher) Empty() bool { return m.test == nil && len(m.all) == 0 }

// Misses returns, in words, the conditions that value does not meet. It is empty if value matches.
func (m Matcher) Misses(value any) []string {
	var misses []string
	for _, part := range m.all {
		misses = append(misses, part.Misses(value)...)
	}
	if m.test == nil {
		return misses
	}
	switch ok, err := m.test(value); {
	case err != nil:
		misses = append(misses, m.words+" ("+err.Error()+")")
	case !ok:
		misses = append(misses, m.words)
	}
	return misses
}

// Equals returns a matcher that only the int n matches.
func Equals(n int) Matcher {
	return Matcher{words: strconv.Itoa(n), test: func(v any) (bool, error) { return v == n, nil }}
}

// testValue reports whether value matches. An error means that it has the wrong type.
func (m Matcher) testValue(value any) (bool, error) {
	for _, part := range m.all {
		if ok, err := part.testValue(value); !ok || err != nil {
			return false, err
		}
	}
	if m.test == nil {
		return true, nil
	}
	return m.test(value)
}

// String returns the conditions in words.
func (m Matcher) String() string {
	if m.test != nil {
		return m.words
	}
	return joinMatchers(m.all, " and ")
}

// Type is the type of the board's value that a matcher is for. Read refuses a matcher that, in
// goss, no value of the type can match.
type Type int

const (
	Text   Type = iota // an output or a file; a list in the suite has patterns for its lines
	List               // a list in the suite has the elements that must be in it
	String             // one text
	Number
	Any // a value of JSON or of the suite: any of these
)

// Read parses the attribute key. Without it, the matcher is empty. A mistake goes into e.Err.
func Read(e *yaml.Entry, key string, t Type) Matcher {
	n := e.Fields[key]
	if n == nil {
		return Matcher{}
	}
	return matchReader{Entry: e, key: key, value: t}.readNode(n)
}

type matchReader struct {
	*yaml.Entry
	key   string
	value Type
}

// forType returns a reader for a matcher inside of another. Inside, goss reads a list as elements
// and not as patterns for lines, so Text becomes String.
func (r matchReader) forType(t Type) matchReader {
	if t == Text {
		t = String
	}
	return matchReader{r.Entry, r.key, t}
}

// elementType returns the type of a list's elements: Any for Any, otherwise String.
func (t Type) elementType() Type {
	if t == Any {
		return Any
	}
	return String
}

// readNode parses a list, a mapping with a matcher's name, or a plain value.
func (r matchReader) readNode(n *goyaml.Node) Matcher {
	switch n.Kind {
	case goyaml.SequenceNode:
		return r.readList(n)
	case goyaml.MappingNode:
		return r.readNamed(n)
	}
	return r.readScalar(n)
}

// readScalar parses a plain value. As in goss, the matcher converts the board's value to a text or
// number, whichever the plain value is, but never to a boolean.
func (r matchReader) readScalar(n *goyaml.Node) Matcher {
	switch want := r.scalarOf(n).(type) {
	case string:
		if number, err := strconv.Atoi(want); r.value == Number && (err != nil || strconv.Itoa(number) != want) {
			r.Fail(n, "%s must be a number, not %q", r.key, want)
		}
		return Matcher{words: strconv.Quote(want), test: func(v any) (bool, error) { return TextOf(v) == want, nil }}
	case bool:
		if r.value != Any {
			r.Fail(n, "%s is never %s, as it is no truth value; for a text, write %q", r.key, n.Value, n.Value)
		}
		return Matcher{words: n.Value, test: func(v any) (bool, error) { return v == want, nil }}
	}
	return r.readComparison(n, "", func(order int) bool { return order == 0 })
}

// scalarOf returns a scalar's string, int, float64 or bool. Another node is an error, and gives "".
func (r matchReader) scalarOf(n *goyaml.Node) any {
	var value any
	if n.Kind == goyaml.ScalarNode {
		if err := n.Decode(&value); err != nil {
			r.Fail(n, "%s: %v", r.key, err)
		}
	}
	switch value := value.(type) {
	case string, int, float64, bool:
		return value
	case nil:
		r.Fail(n, "%s is %s; leave it out or write []", r.key, yaml.KindOf(n))
	default:
		r.Fail(n, "%s: YAML takes %s for a %s; write it in quotes", r.key, yaml.KindOf(n), strings.TrimPrefix(n.ShortTag(), "!!"))
	}
	return ""
}

// readList parses a list: patterns for the lines of a Text, or elements of a List or Any.
func (r matchReader) readList(n *goyaml.Node) Matcher {
	switch r.value {
	case Text:
		return r.readPatterns(n)
	case List, Any:
		return r.readElements(n, listOf)
	}
	r.Fail(n, "%s must be one value or a matcher, not a list; for lines use have-patterns or contain-elements", r.key)
	return Matcher{}
}

// matcherNames are the keys that readNamed knows.
var matcherNames = []string{
	"and", "or", "not", "equal", "have-prefix", "have-suffix", "contain-substring", "match-regexp",
	"gt", "ge", "lt", "le", "contain-element", "contain-elements", "consist-of", "have-len", "have-patterns",
	"have-key", "semver-constraint", "gjson",
}

// readNamed parses a mapping with one matcher's name, like {have-prefix: v}.
func (r matchReader) readNamed(n *goyaml.Node) Matcher {
	if len(n.Content) != 2 {
		r.Fail(n, "%s: one matcher at a time (combine with and: [...])", r.key)
		return Matcher{}
	}
	name, arg := n.Content[0], n.Content[1]
	if !slices.Contains(matcherNames, name.Value) {
		r.Fail(name, "%s: unknown matcher %q (allowed: %s)", r.key, name.Value, strings.Join(matcherNames, ", "))
		return Matcher{}
	}
	switch name.Value {
	case "and", "or":
		return r.readAndOr(name.Value, arg)
	case "not":
		inner := r.forType(r.value).readNode(arg)
		return Matcher{words: "not " + inner.String(), test: func(v any) (bool, error) {
			ok, err := inner.testValue(v)
			return !ok && err == nil, err
		}}
	case "equal":
		return r.readEqual(arg)
	case "contain-elements":
		return r.readElements(r.requireKind(arg, goyaml.SequenceNode), linesOf)
	case "consist-of":
		return r.readConsistOf(r.requireKind(arg, goyaml.SequenceNode))
	case "have-patterns":
		return r.readPatterns(r.requireKind(arg, goyaml.SequenceNode))
	case "gjson":
		return r.readGJSON(r.requireKind(arg, goyaml.MappingNode))
	case "have-key":
		return r.readHaveKey(arg)
	case "contain-element":
		return r.readContainElement(arg)
	}
	return r.readOne(name.Value, r.requireKind(arg, goyaml.ScalarNode))
}

// readOne parses a matcher whose argument is one text or number.
func (r matchReader) readOne(name string, arg *goyaml.Node) Matcher {
	switch name {
	case "gt":
		return r.readComparison(arg, "more than ", func(order int) bool { return order > 0 })
	case "ge":
		return r.readComparison(arg, "at least ", func(order int) bool { return order >= 0 })
	case "lt":
		return r.readComparison(arg, "less than ", func(order int) bool { return order < 0 })
	case "le":
		return r.readComparison(arg, "at most ", func(order int) bool { return order <= 0 })
	case "have-len":
		return r.readLength(arg)
	}
	word, ok := r.scalarOf(arg).(string)
	if !ok {
		r.Fail(arg, "%s: %s needs a text; write %q", r.key, name, arg.Value)
	}
	switch name {
	case "have-prefix":
		return matchText("begins with", word, strings.HasPrefix)
	case "have-suffix":
		return matchText("ends with", word, strings.HasSuffix)
	case "contain-substring":
		return matchText("contains", word, strings.Contains)
	case "semver-constraint":
		return r.readSemver(arg, word)
	}
	re := r.compileRegexp(arg, word)
	return Matcher{words: fmt.Sprintf("matches /%s/", word), test: func(v any) (bool, error) { return re.MatchString(TextOf(v)), nil }}
}

func matchText(verb, word string, holds func(text, word string) bool) Matcher {
	return Matcher{words: fmt.Sprintf("%s %q", verb, word), test: func(v any) (bool, error) { return holds(TextOf(v), word), nil }}
}

// requireKind returns n if it is of kind k. Else it records an error and returns a node of kind k.
func (r matchReader) requireKind(n *goyaml.Node, k goyaml.Kind) *goyaml.Node {
	if n.Kind == k {
		return n
	}
	r.Fail(n, "%s: this matcher does not take %s", r.key, yaml.KindOf(n))
	return &goyaml.Node{Kind: k, Line: n.Line, Column: n.Column, Value: "0"}
}

// readAndOr parses a list of matchers, of which all (and) or at least one (or) must match.
func (r matchReader) readAndOr(name string, arg *goyaml.Node) Matcher {
	var parts []Matcher
	for _, c := range r.requireKind(arg, goyaml.SequenceNode).Content {
		parts = append(parts, r.forType(r.value).readNode(c))
	}
	if len(parts) == 0 {
		r.Fail(arg, "%s: %s needs a list of matchers", r.key, name)
	}
	if name == "and" {
		return Matcher{all: parts}
	}
	return Matcher{words: joinMatchers(parts, " or "), test: func(v any) (bool, error) {
		for _, p := range parts {
			if ok, err := p.testValue(v); ok || err != nil {
				return ok && err == nil, err
			}
		}
		return false, nil
	}}
}

// readEqual parses equal, which compares value and type: the number 5 equals neither the text "5"
// nor a 5 in JSON, where all numbers are float64.
func (r matchReader) readEqual(arg *goyaml.Node) Matcher {
	var want any
	if err := arg.Decode(&want); err != nil {
		r.Fail(arg, "%s: %v", r.key, err)
	}
	words := "equals " + yaml.KindOf(arg)
	switch arg.Kind {
	case goyaml.ScalarNode:
		words = strconv.Quote(arg.Value)
	case goyaml.SequenceNode:
		words = "equals " + TextOf(want)
	}
	return Matcher{words: words, test: func(v any) (bool, error) {
		if v == nil && want == nil {
			return false, errors.New("nothing cannot be compared with nothing")
		}
		return reflect.DeepEqual(v, want), nil
	}}
}

// readLength parses have-len, which counts the elements of a list or the bytes of a text.
func (r matchReader) readLength(arg *goyaml.Node) Matcher {
	want, ok := r.scalarOf(arg).(int)
	if !ok || want < 0 {
		r.Fail(arg, "%s: have-len needs a number, not %s", r.key, yaml.KindOf(arg))
	}
	unit := plaintext.Either(r.value == List, "elements", "bytes")
	return Matcher{words: fmt.Sprintf("%d %s", want, unit), test: func(v any) (bool, error) {
		if text, ok := v.(string); ok {
			return len(text) == want, nil
		}
		all, err := listOf(v)
		return err == nil && len(all) == want, err
	}}
}

// readComparison parses a number, and returns a matcher that calls holds with a value's order to it
// (-1, 0 or 1). A text value becomes a number. The matcher's words are words and the number.
func (r matchReader) readComparison(n *goyaml.Node, words string, holds func(order int) bool) Matcher {
	scalar := r.scalarOf(n)
	want, err := numberOf(scalar)
	if _, isText := scalar.(string); isText || err != nil {
		r.Fail(n, "%s must be a number, not %s", r.key, yaml.KindOf(n))
	}
	return Matcher{words: words + n.Value, test: func(v any) (bool, error) {
		have, err := numberOf(v)
		if err != nil {
			return false, err
		}
		return !math.IsNaN(have) && !math.IsNaN(want) && holds(cmp.Compare(have, want)), nil
	}}
}

// compileRegexp compiles a regular expression. An invalid one sets r.Err, and gives an empty one.
func (r matchReader) compileRegexp(n *goyaml.Node, text string) *regexp.Regexp {
	re, err := regexp.Compile(text)
	if err != nil {
		r.Fail(n, "%s: %v", r.key, err)
		return regexp.MustCompile("")
	}
	return re
}

// readSemver parses semver-constraint, which a version, or all versions of a list, must meet.
func (r matchReader) readSemver(n *goyaml.Node, text string) Matcher {
	allows, err := semver.ParseRange(text)
	if err != nil {
		r.Fail(n, "%s: %q is not a constraint such as \">=1.2.0 <2.0.0\": %v", r.key, text, err)
	}
	return Matcher{words: "a version " + text, test: func(v any) (bool, error) {
		all := []any{v}
		if _, ok := v.(string); !ok {
			var err error
			if all, err = listOf(v); err != nil {
				return false, err
			}
		}
		if len(all) == 0 {
			return false, errors.New("there is no version")
		}
		ok := true
		for _, one := range all {
			text, _ := one.(string)
			version, err := semver.Parse(text)
			if err != nil {
				return false, fmt.Errorf("%q is not a version such as 1.2.0", plaintext.Clean(text, 40))
			}
			ok = ok && allows(version)
		}
		return ok, nil
	}}
}
