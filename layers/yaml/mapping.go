// Package yaml reads YAML files of one document. Every error names the file, the line and the
// column, and an unknown key the nearest known one. There are three readers:
//   - Load fills a Go struct.
//   - ReadFile and ReadSetup check a file of kas or bitbake-setup against a Shape.
//   - ParseMapping returns the nodes of a mapping. It refuses aliases and duplicate keys, as an
//     alias lets a small file unfold into a huge one.
package yaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"slipway/layers/plaintext"
)

// ErrorAt returns an error with the file and the position of a node.
func ErrorAt(file string, n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s: %w", Position{file, n.Line, n.Column}, fmt.Errorf(format, args...))
}

// Parse returns the root of a file's only YAML document, nil for an empty one. A second document is
// an error. A repeated key is not.
func Parse(file string, data []byte) (*yaml.Node, error) {
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithUniqueKeys(false))
	if err != nil {
		return nil, err
	}
	var doc, second yaml.Node
	if err := loader.Load(&doc); errors.Is(err, io.EOF) || err == nil && len(doc.Content) != 1 {
		return nil, nil
	} else if err != nil {
		return nil, syntaxError(file, data, err)
	}
	switch err := loader.Load(&second); {
	case err == nil:
		return nil, ErrorAt(file, &second, "a second document begins here; want one: take out the --- before it")
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(file, data, err)
	}
	return doc.Content[0], nil
}

// syntaxError adds the file and the position to an error of the parser.
func syntaxError(file string, data []byte, err error) error {
	var where *yaml.LoadError
	if !errors.As(err, &where) {
		return fmt.Errorf("%s: not valid YAML: %w", file, err)
	}
	at := yaml.Node{Line: where.Mark.Line, Column: where.Mark.Column}
	if at.Line == 0 { // the character itself is bad
		before := data[:max(bytes.IndexFunc(data, notInYAML), 0)]
		at.Line, at.Column = bytes.Count(before, []byte("\n"))+1, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])+1
	}
	at.Line = min(at.Line, bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n"))+1) // the parser names the line behind the last one
	return ErrorAt(file, &at, "not valid YAML: %s", plainText(where))
}

// notInYAML reports whether a rune is invalid UTF-8, or a control character that YAML refuses.
func notInYAML(r rune) bool {
	return r == utf8.RuneError || unicode.IsControl(r) && !strings.ContainsRune("\t\n\r\u0085", r)
}

// ParseMapping returns the mapping in a file. It refuses aliases, duplicate keys and more than
// maxDepth levels. what describes the expected content in errors.
func ParseMapping(file string, data []byte, what string) (*yaml.Node, error) {
	root, err := Parse(file, data)
	switch {
	case err != nil:
		return nil, err
	case root == nil:
		return nil, fmt.Errorf("%s: the file has no values; %s", file, what)
	case root.Kind != yaml.MappingNode:
		return nil, ErrorAt(file, root, "%s", what)
	}
	return root, inspectNode(file, root, 0)
}

const maxDepth = 20

// inspectNode returns an error for an alias, a duplicate key or too deep nesting below a node.
func inspectNode(file string, n *yaml.Node, depth int) error {
	if n.Kind == yaml.AliasNode {
		return ErrorAt(file, n, "YAML aliases are not allowed; write the value out")
	}
	if depth > maxDepth {
		return ErrorAt(file, n, "nested more than %d levels deep", maxDepth)
	}
	if n.Kind == yaml.MappingNode {
		if err := inspectKeys(file, n); err != nil {
			return err
		}
	}
	for _, c := range n.Content {
		if err := inspectNode(file, c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// inspectKeys returns an error if a mapping has a duplicate key, or one that is no plain value.
func inspectKeys(file string, n *yaml.Node) error {
	seen := map[string]int{}
	for key := range Pairs(n) {
		if key.Kind != yaml.ScalarNode {
			return ErrorAt(file, key, "a key must be a plain value")
		}
		if line, ok := seen[key.Value]; ok {
			return ErrorAt(file, key, "duplicate key %q (first at line %d); one of them would be lost", key.Value, line)
		}
		seen[key.Value] = key.Line
	}
	return nil
}

// Pairs yields the keys and values of a mapping in the order of the file.
func Pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(k, v *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// Entry is a mapping of attributes. Its methods read one attribute each; Err keeps the first error.
type Entry struct {
	File   string
	Name   string
	Key    *yaml.Node
	Fields map[string]*yaml.Node
	Err    error
}

// NewEntry returns the entry of a key and its mapping, whose attributes must be in keys, or null
// for none. kind describes the entry in errors, such as file.
func NewEntry(file, kind string, keys []string, key, value *yaml.Node) (*Entry, error) {
	e := &Entry{File: file, Name: key.Value, Key: key, Fields: map[string]*yaml.Node{}}
	if value.ShortTag() == "!!null" {
		return e, nil
	}
	if value.Kind != yaml.MappingNode {
		return nil, ErrorAt(file, value, "%s %q must be a mapping of attributes, not %s", kind, key.Value, KindOf(value))
	}
	for k, v := range Pairs(value) {
		if !slices.Contains(keys, k.Value) {
			return nil, ErrorAt(file, k, "unknown attribute %q of a %s%s (allowed: %s)", k.Value, kind, plaintext.DidYouMean(k.Value, keys), strings.Join(keys, ", "))
		}
		e.Fields[k.Value] = v
	}
	return e, nil
}

// KindOf describes a value in words for errors, a scalar by its quoted text.
func KindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "nothing"
	}
	return strconv.Quote(n.Value)
}

// Fail records an error at a node, unless the entry has one already.
func (e *Entry) Fail(n *yaml.Node, format string, args ...any) {
	if e.Err == nil {
		e.Err = ErrorAt(e.File, n, format, args...)
	}
}

// Scalar returns an attribute's scalar node, nil if it is absent. For a null or another node it
// returns nil and records an error, in which want describes the wanted value.
func (e *Entry) Scalar(key, want string) *yaml.Node {
	n := e.Fields[key]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		e.Fail(n, "%s must be %s, not %s", key, want, KindOf(n))
		return nil
	}
	return n
}

// Text returns a scalar attribute of any type as it is written: goss files have `exec: true`. It
// returns fallback if the attribute is absent or, with an error, no scalar.
func (e *Entry) Text(key, fallback string) string {
	if n := e.Scalar(key, "a string"); n != nil {
		return n.Value
	}
	return fallback
}

// Flag returns a boolean attribute, nil if it is absent. It records an error for another value.
func (e *Entry) Flag(key string) *bool {
	n := e.Scalar(key, "true or false")
	if n == nil {
		return nil
	}
	v, err := strconv.ParseBool(n.Value)
	if n.ShortTag() != "!!bool" || err != nil {
		e.Fail(n, "%s must be true or false, not %q", key, n.Value)
		return nil
	}
	return &v
}

// Number returns a whole number from least to most, or fallback if it is absent. It records an
// error, and returns fallback, for another value.
func (e *Entry) Number(key string, fallback, least, most int64) int64 {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	n := e.Scalar(key, want)
	if n == nil {
		return fallback
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil || v < least || v > most {
		e.Fail(n, "%s must be %s, not %q", key, want, n.Value)
		return fallback
	}
	return v
}

// List returns the scalars of a list attribute as written, nil with an error for another value.
func (e *Entry) List(key string) []string {
	n := e.Fields[key]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		e.Fail(n, "%s must be a list of strings, not %s", key, KindOf(n))
		return nil
	}
	values := make([]string, 0, len(n.Content))
	for _, c := range n.Content {
		if c.Kind != yaml.ScalarNode {
			e.Fail(c, "%s must be a list of strings; this is %s", key, KindOf(c))
			return nil
		}
		if strings.ContainsRune(c.Value, 0) {
			e.Fail(c, "%s holds a NUL", key)
			return nil
		}
		values = append(values, c.Value)
	}
	return values
}

// Path returns an attribute, or else the entry's name. It records an error unless that is an
// absolute path.
func (e *Entry) Path(key string) string {
	p := e.Text(key, e.Name)
	if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) {
		e.Fail(e.Key, "%s %q must be an absolute path", key, p)
	}
	return p
}

// Decimal returns a number attribute, nil if it is absent. For another value it records an error,
// and its result means nothing.
func (e *Entry) Decimal(key string) *float64 {
	n := e.Scalar(key, "a number")
	if n == nil {
		return nil
	}
	v, err := Finite(n.Value)
	if err != nil {
		e.Fail(n, "%s must be a number, not %q", key, n.Value)
	}
	return &v
}

// Percent returns a percentage such as 10% as a fraction, 0.1, or 0 if it is absent. Unless it is
// above 0% and at most 1000%, Percent records an error, and its result means nothing.
func (e *Entry) Percent(key string) float64 {
	n := e.Scalar(key, "a percentage like 10%")
	if n == nil {
		return 0
	}
	text, ok := strings.CutSuffix(n.Value, "%")
	v, err := Finite(text)
	if !ok || err != nil || v <= 0 || v > 1000 {
		e.Fail(n, "%s must be a percentage like 10%%, not %q", key, n.Value)
	}
	return v / 100
}

// Finite parses a number, and refuses NaN and infinity, which JSON cannot hold.
func Finite(text string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = fmt.Errorf("%q is no number to compare", text)
	}
	return v, err
}
