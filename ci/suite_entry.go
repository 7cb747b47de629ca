package ci

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// at is an error at a place in a suite.
func at(file string, n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %s", file, n.Line, n.Column, fmt.Sprintf(format, args...))
}

// parseYAML returns the mapping that a suite's file holds. Aliases are refused:
// they let a small file unfold into a huge one.
func parseYAML(file string, data []byte) (*yaml.Node, error) {
	if line, column := templateAt(data); line > 0 {
		return nil, fmt.Errorf("%s:%d:%d: goss's templates ({{ }}) are not filled in here; write the values out", file, line, column)
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		return nil, yamlError(file, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, at(file, &doc, "a suite is a mapping of sections (%s)", kindNames())
	}
	return doc.Content[0], inspect(file, doc.Content[0], 0)
}

// templateAt is where the first template of goss begins, outside of comments.
func templateAt(data []byte) (line, column int) {
	for text := range strings.SplitSeq(string(data), "\n") {
		line++
		code, _, _ := strings.Cut(" "+text, " #")
		if column = strings.Index(code, "{{"); column >= 0 {
			return line, column
		}
	}
	return 0, 0
}

func yamlError(file string, err error) error {
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: %w", file, err)
	}
	text := strings.TrimPrefix(e.Message, "yaml: ")
	if e.Mark.Line == 0 {
		return fmt.Errorf("%s: %s", file, text)
	}
	return fmt.Errorf("%s:%d:%d: %s", file, e.Mark.Line, e.Mark.Column, text)
}

const maxSuiteDepth = 20

// inspect refuses what no check may hold, wherever it stands.
func inspect(file string, n *yaml.Node, depth int) error {
	if n.Kind == yaml.AliasNode {
		return at(file, n, "YAML aliases are not allowed in a suite; write the value out")
	}
	if depth > maxSuiteDepth {
		return at(file, n, "nested more than %d levels deep", maxSuiteDepth)
	}
	if n.Kind == yaml.MappingNode {
		if err := inspectKeys(file, n); err != nil {
			return err
		}
	}
	for _, c := range n.Content {
		if err := inspect(file, c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func inspectKeys(file string, n *yaml.Node) error {
	seen := map[string]int{}
	for key := range pairs(n) {
		if key.Kind != yaml.ScalarNode {
			return at(file, key, "a key must be a plain value")
		}
		if line, ok := seen[key.Value]; ok {
			return at(file, key, "duplicate key %q (first at line %d); one of them would be lost", key.Value, line)
		}
		seen[key.Value] = key.Line
	}
	return nil
}

// pairs yields the keys and values of a mapping as they are written.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(k, v *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// entry is one check as it is written. Its methods read one attribute each; the
// first that is wrong is kept in err.
type entry struct {
	file   string
	name   string
	key    *yaml.Node
	fields map[string]*yaml.Node
	limit  time.Duration // for checks of a kind that need longer than others
	err    error
}

// commonKeys may stand in every check: the first four as in goss, the others are
// ours.
var commonKeys = []string{"title", "meta", "timeout", "skip", "retries", "pause", "needs", "teardown", "alone"}

func newEntry(file, kind string, keys []string, key, value *yaml.Node) (*entry, error) {
	e := &entry{file: file, name: key.Value, key: key, fields: map[string]*yaml.Node{}}
	if value.ShortTag() == "!!null" {
		return e, nil
	}
	if value.Kind != yaml.MappingNode {
		return nil, at(file, value, "%s %q must be a mapping of attributes, not %s", kind, key.Value, kindOf(value))
	}
	for k, v := range pairs(value) {
		if why, ok := unmapped[kind+" "+k.Value]; ok {
			return nil, at(file, k, "goss's %s of a %s cannot be asked over SSH: %s", k.Value, kind, why)
		}
		if !slices.Contains(keys, k.Value) {
			return nil, at(file, k, "unknown attribute %q of a %s (allowed: %s)", k.Value, kind, strings.Join(keys, ", "))
		}
		e.fields[k.Value] = v
	}
	return e, nil
}

// kindOf is what a value is, in words.
func kindOf(n *yaml.Node) string {
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

func (e *entry) Fail(n *yaml.Node, format string, args ...any) {
	if e.err == nil {
		e.err = at(e.file, n, format, args...)
	}
}

// scalar returns an attribute's node, or nil where it is absent or no scalar.
func (e *entry) scalar(key, want string) *yaml.Node {
	n := e.fields[key]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		e.Fail(n, "%s must be %s, not %s", key, want, kindOf(n))
		return nil
	}
	return n
}

// text takes any scalar as it is written: goss files say `exec: true`.
func (e *entry) text(key, fallback string) string {
	if n := e.scalar(key, "a string"); n != nil {
		return n.Value
	}
	return fallback
}

func (e *entry) flag(key string) *bool {
	n := e.scalar(key, "true or false")
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

func (e *entry) number(key string, fallback, least, most int64) int64 {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	n := e.scalar(key, want)
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

func (e *entry) list(key string) []string {
	n := e.fields[key]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		e.Fail(n, "%s must be a list of strings, not %s", key, kindOf(n))
		return nil
	}
	values := make([]string, 0, len(n.Content))
	for _, c := range n.Content {
		if c.Kind != yaml.ScalarNode {
			e.Fail(c, "%s must be a list of strings; this is %s", key, kindOf(c))
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

// path is an attribute, or else the entry's name, that must be an absolute path.
func (e *entry) path(key string) string {
	p := e.text(key, e.name)
	if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) {
		e.Fail(e.key, "%s %q must be an absolute path", key, p)
	}
	return p
}

// timeout of 0 is the usual one, as goss writes it.
func (e *entry) timeout() time.Duration {
	usual := cmp.Or(e.limit, defaultTimeout)
	return cmp.Or(e.millis("timeout", usual, 0), usual)
}

// millis is a time; like goss's, it is written in milliseconds.
func (e *entry) millis(key string, fallback time.Duration, least int64) time.Duration {
	ms := e.number(key, fallback.Milliseconds(), least, maxTimeout.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// teardown is a list of commands: a text for the board's shell, or a list of words.
func (e *entry) teardown() [][]string {
	n := e.fields["teardown"]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxTeardown {
		e.Fail(n, "teardown must be a list of at most %d commands, not %s", maxTeardown, kindOf(n))
		return nil
	}
	var all [][]string
	for _, c := range n.Content {
		all = append(all, e.commandOf(c))
	}
	return all
}

func (e *entry) commandOf(n *yaml.Node) []string {
	one := &entry{file: e.file, fields: map[string]*yaml.Node{"teardown": n}}
	var argv []string
	if n.Kind == yaml.SequenceNode {
		argv = one.list("teardown")
	} else {
		argv = []string{"sh", "-c", one.text("teardown", "")}
	}
	if e.err == nil {
		e.err = one.err
	}
	if len(argv) == 0 || strings.ContainsRune(strings.Join(argv, ""), 0) || argv[len(argv)-1] == "" && argv[0] == "sh" {
		e.Fail(n, "teardown: not a command")
	}
	return argv
}

// meta reads title and next; goss lets any other key stand there too.
func (e *entry) meta() (title, next string) {
	title = e.text("title", e.name)
	n := e.fields["meta"]
	if n == nil {
		return title, ""
	}
	if n.Kind != yaml.MappingNode {
		e.Fail(n, "meta must be a mapping (title, next), not %s", kindOf(n))
		return title, ""
	}
	m := &entry{file: e.file, fields: map[string]*yaml.Node{}}
	for k, v := range pairs(n) {
		m.fields[k.Value] = v
	}
	title, next = m.text("title", title), m.text("next", "")
	if e.err == nil {
		e.err = m.err
	}
	return title, next
}
