package layers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// What one project file may hold. Real ones stay far below.
const (
	maxFileBytes = 1 << 20
	maxDepth     = 16
	maxValues    = 20_000 // after aliases are followed, so that they cannot multiply
)

// position is a place in a project file.
type position struct {
	file         string
	line, column int
}

func (p position) String() string { return fmt.Sprintf("%s:%d:%d", p.file, p.line, p.column) }

func (p position) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", p, fmt.Errorf(format, args...))
}

// kind is what a value is. YAML guesses types from spelling (0e12345 is a
// number to it), so the shape decides instead and scalars keep their spelling.
type kind int

const (
	null kind = 1 << iota
	text
	number
	list
	dict
	boolean // JSON's; in YAML it is a text
)

// value is a part of a project file that has the shape it should have.
type value struct {
	at   position
	kind kind
	text string
	list []*value
	keys []string // of dict, in the order of the file
	dict map[string]*value
}

// get follows keys down; a part that is not there is nil, on which all methods work.
func (v *value) get(keys ...string) *value {
	for _, k := range keys {
		if v == nil || v.kind != dict {
			return nil
		}
		v = v.dict[k]
	}
	return v
}

// or returns the value's text, or what serves where there is none.
func (v *value) or(otherwise string) string {
	if v == nil || v.kind&(text|number) == 0 {
		return otherwise
	}
	return v.text
}

func (v *value) texts() map[string]string {
	if v == nil {
		return nil
	}
	m := map[string]string{}
	for k, e := range v.dict {
		m[k] = e.text
	}
	return m
}

func (v *value) set(key string, e *value) {
	if _, there := v.dict[key]; !there {
		v.keys = append(v.keys, key)
	}
	v.dict[key] = e
}

// merge returns base with over's settings: dicts are merged, all else replaced.
func merge(base, over *value) *value {
	if base == nil || base.kind != dict || over.kind != dict {
		return over
	}
	out := &value{at: over.at, kind: dict, keys: slices.Clone(base.keys), dict: map[string]*value{}}
	for k, v := range base.dict {
		out.dict[k] = v
	}
	for _, k := range over.keys {
		out.set(k, merge(out.dict[k], over.dict[k]))
	}
	return out
}

// reader turns one file's YAML into a value.
type reader struct {
	file     string
	values   int
	warnings []string
}

func readFile(path string) (*value, []string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, nil, err
	}
	return parse(path, data)
}

func parse(path string, data []byte) (*value, []string, error) {
	if len(data) > maxFileBytes {
		return nil, nil, fmt.Errorf("%s: larger than %d bytes; is it a project file?", path, maxFileBytes)
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc, yaml.WithUniqueKeys(false)); err != nil {
		return nil, nil, syntaxError(path, err)
	}
	if len(doc.Content) != 1 {
		return nil, nil, fmt.Errorf("%s: holds nothing; a project file begins with \"header:\"", path)
	}
	r := reader{file: path}
	v, err := r.value(doc.Content[0], project, "", 0)
	return v, r.warnings, err
}

func syntaxError(path string, err error) error {
	var where *yaml.LoadError
	if errors.As(err, &where) && where.Mark.Line > 0 {
		return position{path, where.Mark.Line, where.Mark.Column}.errorf("not valid YAML: %s", where.Message)
	}
	return fmt.Errorf("%s: not valid YAML: %w", path, err)
}

func (r *reader) at(n *yaml.Node) position { return position{r.file, n.Line, n.Column} }

// value checks n against the shape that it should have. path says in an error
// where n is: repos.poky.layers.
func (r *reader) value(n *yaml.Node, s *shape, path string, depth int) (*value, error) {
	at := r.at(n)
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if r.values++; r.values > maxValues || depth > maxDepth {
		return nil, at.errorf("too many or too deeply nested values for a project file")
	}
	if s.refused != "" {
		return nil, at.errorf("%s is not yet read by slipway%s; use kas for this file", path, s.refused)
	}
	v := &value{at: at, kind: kindOf(n)}
	if v.kind == text && s.kinds&number != 0 {
		v.kind = number
	}
	if s.kinds&v.kind == 0 {
		return nil, at.errorf("%s is %s; want %s", name(path), v.kind, s.kinds)
	}
	switch v.kind {
	case text:
		v.text = n.Value
	case number:
		v.text = n.Value
		if _, err := strconv.Atoi(n.Value); err != nil {
			return nil, at.errorf("%s is %q; want a number", path, n.Value)
		}
	case list:
		return v, r.items(v, n, s, path, depth)
	case dict:
		return v, r.entries(v, n, s, path, depth)
	}
	return v, nil
}

func (r *reader) items(v *value, n *yaml.Node, s *shape, path string, depth int) error {
	for i, c := range n.Content {
		e, err := r.value(c, s.each, fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return err
		}
		v.list = append(v.list, e)
	}
	return nil
}

func (r *reader) entries(v *value, n *yaml.Node, s *shape, path string, depth int) error {
	v.dict = map[string]*value{}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := n.Content[i], r.at(n.Content[i])
		below, err := s.below(key, at, path)
		if err != nil {
			return err
		}
		e, err := r.value(n.Content[i+1], below, strings.TrimPrefix(path+"."+key.Value, "."), depth+1)
		if err != nil {
			return err
		}
		if before, twice := lines[key.Value]; twice {
			r.warnings = append(r.warnings, fmt.Sprintf("%s: %q was already set in line %d; as with kas, line %d holds", at, key.Value, before, at.line))
		}
		lines[key.Value] = at.line
		v.set(key.Value, e)
	}
	return nil
}

func kindOf(n *yaml.Node) kind {
	switch {
	case n.Kind == yaml.MappingNode:
		return dict
	case n.Kind == yaml.SequenceNode:
		return list
	case n.ShortTag() == "!!null":
		return null
	}
	return text
}

func name(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func (k kind) String() string {
	var names []string
	for i, n := range []string{"nothing", "a text", "a number", "a list", "keys with values", "true or false"} {
		if k&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, " or ")
}
