package match

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"slipway/layers/yaml"

	"github.com/tidwall/gjson"
	goyaml "go.yaml.in/yaml/v4"
)

// MaxJSONPathBytes limits a gjson path, because gjson parses paths by recursion.
const MaxJSONPathBytes = 4096

// lister returns the elements of a value.
type lister func(value any) ([]any, error)

// readContainElement parses contain-element: one element of a list or line of a text must match.
func (r matchReader) readContainElement(arg *goyaml.Node) Matcher {
	var want any
	if err := arg.Decode(&want); err != nil {
		r.Fail(arg, "%s: %v", r.key, err)
	}
	if _, truth := want.(bool); truth || arg.Kind == goyaml.SequenceNode {
		r.Fail(arg, "%s: contain-element does not take %s; for several use contain-elements, and quotes for a text", r.key, yaml.KindOf(arg))
		return Matcher{}
	}
	m := r.forType(r.value.elementType()).readNode(arg)
	return Matcher{words: elementWords(m), test: func(v any) (bool, error) {
		all, err := linesOf(v)
		if err != nil {
			return false, err
		}
		for _, one := range all {
			ok, failure := m.testValue(one)
			if ok && failure == nil {
				return true, nil
			}
			if failure != nil {
				err = failure
			}
		}
		return false, err
	}}
}

// readElements parses a list of matchers. Each must match one of list(value) that no other uses.
func (r matchReader) readElements(arg *goyaml.Node, list lister) Matcher {
	parts := r.readParts(arg)
	whole := Matcher{words: "a list", test: func(v any) (bool, error) {
		_, err := list(v)
		return err == nil, err
	}}
	all := Matcher{all: []Matcher{whole}}
	for _, part := range parts {
		all.all = append(all.all, Matcher{words: elementWords(part), test: func(v any) (bool, error) {
			have, _ := list(v)
			return slices.ContainsFunc(have, part.matchesValue), nil
		}})
	}
	words := "elements of their own for " + joinMatchers(parts, ", ")
	all.all = append(all.all, Matcher{words: words, test: func(v any) (bool, error) {
		have, _ := list(v)
		for _, part := range parts {
			if !slices.ContainsFunc(have, part.matchesValue) {
				return true, nil // another matcher of all reports it
			}
		}
		return pairUp(parts, have), nil
	}})
	return all
}

// readConsistOf parses consist-of: the list must have exactly these elements, in any order.
func (r matchReader) readConsistOf(arg *goyaml.Node) Matcher {
	parts := r.readParts(arg)
	return Matcher{words: "these alone: " + joinMatchers(parts, ", "), test: func(v any) (bool, error) {
		have, err := listOf(v)
		return err == nil && len(have) == len(parts) && pairUp(parts, have), err
	}}
}

// readParts parses arg's nodes as matchers for single elements. The caller checks arg's kind.
func (r matchReader) readParts(arg *goyaml.Node) []Matcher {
	var parts []Matcher
	for _, c := range arg.Content {
		parts = append(parts, r.forType(r.value.elementType()).readNode(c))
	}
	return parts
}

func (m Matcher) matchesValue(value any) bool {
	ok, err := m.testValue(value)
	return ok && err == nil
}

// elementWords returns words for the condition that one line (or element of a list) matches m.
func elementWords(m Matcher) string {
	words := m.String()
	if strings.HasPrefix(words, `"`) {
		words = "is " + words
	}
	return "a line that " + words
}

func joinMatchers(parts []Matcher, separator string) string {
	words := make([]string, len(parts))
	for i, p := range parts {
		words[i] = p.String()
	}
	return strings.Join(words, separator)
}

// pairUp reports, by augmenting paths, whether each matcher can have an element of its own.
func pairUp(parts []Matcher, have []any) bool {
	owner := map[int]int{} // which matcher has an element
	var place func(part int, tried map[int]bool) bool
	place = func(part int, tried map[int]bool) bool {
		for i, element := range have {
			if tried[i] || !parts[part].matchesValue(element) {
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

// readHaveKey parses have-key: a key of the mapping must match.
func (r matchReader) readHaveKey(arg *goyaml.Node) Matcher {
	m := r.forType(String).readNode(arg)
	return Matcher{words: "a key that is " + m.String(), test: func(v any) (bool, error) {
		fields, ok := v.(map[string]any)
		if !ok {
			return false, fmt.Errorf("%s is not a mapping", valueKind(v))
		}
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			if ok, err := m.testValue(key); ok || err != nil {
				return ok && err == nil, err
			}
		}
		return false, nil
	}}
}

// readGJSON parses gjson: a mapping of gjson paths to matchers for the values there.
func (r matchReader) readGJSON(arg *goyaml.Node) Matcher {
	var all []Matcher
	for k, v := range yaml.Pairs(arg) {
		path, m := k.Value, r.forType(Any).readNode(v)
		if k.ShortTag() != "!!str" {
			r.Fail(k, "%s: gjson: a path is a text; write %q", r.key, path)
		}
		if len(path) > MaxJSONPathBytes {
			r.Fail(k, "%s: gjson: a path of more than %d bytes", r.key, MaxJSONPathBytes)
		}
		all = append(all, Matcher{words: path + " in the JSON: " + m.String(), test: func(v any) (bool, error) {
			value, err := JSONAt(v, path)
			if err != nil {
				return false, err
			}
			return m.testValue(value)
		}})
	}
	if len(all) == 0 {
		r.Fail(arg, "%s: gjson needs places and what to find there", r.key)
	}
	return Matcher{all: all}
}

// JSONAt returns the value at a gjson path in v, a JSON text. Another v, or no value, is an error.
func JSONAt(v any, path string) (any, error) {
	text, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("%s is not a JSON text", valueKind(v))
	}
	if !gjson.Valid(text) {
		return nil, errors.New("not JSON")
	}
	found := gjson.Get(text, path)
	if !found.Exists() {
		return nil, fmt.Errorf("the JSON has nothing at %s", path)
	}
	return found.Value(), nil
}
