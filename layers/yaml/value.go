package yaml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Limits for one project file. Real ones stay far below.
const (
	MaxFileBytes = 1 << 20
	maxLevels    = 16
	MaxValues    = 20_000 // after aliases are followed, so that they cannot multiply
)

// Position is a place in a file.
type Position struct {
	File         string
	Line, Column int
}

func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// ErrProject marks an error that a project file causes, perhaps only with what is checked out. It
// has no text, so that it can stand anywhere in one.
var ErrProject = errors.New("")

// Errorf returns an ErrProject at p.
func (p Position) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w%w", p, ErrProject, fmt.Errorf(format, args...))
}

// kind is the kind of a value. The shape decides, not YAML's guess: a commit 0e12345 is no number.
type kind int

const (
	Null kind = 1 << iota
	Text
	Number
	List
	Dict
	Boolean
	odd // a date, a fraction, or another value that project files do not use
)

// Value is a part of a project file that was checked against its Shape.
type Value struct {
	At   Position
	Kind kind
	Text string
	List []*Value
	Keys []string // of dict, in the order of the file
	Dict map[string]*Value

	Numbers map[string]bool // the keys that are numbers to kas
}

// Get returns the value below a path of keys, or nil. TextOr, TextMap, Texts take nil too.
func (v *Value) Get(keys ...string) *Value {
	for _, k := range keys {
		if v == nil || v.Kind != Dict {
			return nil
		}
		v = v.Dict[k]
	}
	return v
}

// TextOr returns the text of a text, number or boolean, or otherwise for other values and nil.
func (v *Value) TextOr(otherwise string) string {
	if v == nil || v.Kind&(Text|Number|Boolean) == 0 {
		return otherwise
	}
	return v.Text
}

// TextMap returns the texts of a dict's values by key.
func (v *Value) TextMap() map[string]string {
	if v == nil {
		return nil
	}
	m := map[string]string{}
	for k, e := range v.Dict {
		m[k] = e.Text
	}
	return m
}

// Set sets the value of a dict's key. A new key comes last.
func (v *Value) Set(key string, e *Value) {
	if _, there := v.Dict[key]; !there {
		v.Keys = append(v.Keys, key)
	}
	v.Dict[key] = e
}

// markNumber records that kas reads this key as a number.
func (v *Value) markNumber(key string) {
	if v.Numbers == nil {
		v.Numbers = map[string]bool{}
	}
	v.Numbers[key] = true
}

// NewDict returns a dict without keys.
func NewDict() *Value { return &Value{Kind: Dict, Dict: map[string]*Value{}} }

// ReplacePath sets the value below a path of keys, or removes it if e is nil. It changes v, and
// copies the dicts in between, which other values may share, or makes them.
func (v *Value) ReplacePath(e *Value, keys ...string) {
	below := v.Get(keys[0])
	switch {
	case e == nil && v.Get(keys...) == nil:
	case len(keys) > 1:
		copied := Merge(below, NewDict())
		if below != nil {
			copied.At = below.At
		}
		copied.ReplacePath(e, keys[1:]...)
		v.Set(keys[0], copied)
	case e != nil:
		v.Set(keys[0], e)
	default:
		delete(v.Dict, keys[0])
		v.Keys = slices.DeleteFunc(v.Keys, func(k string) bool { return k == keys[0] })
	}
}

// Merge returns base with over's values: it merges dicts, and replaces others. It changes neither.
func Merge(base, over *Value) *Value {
	if base == nil || base.Kind != Dict || over.Kind != Dict {
		return over
	}
	out := &Value{At: over.At, Kind: Dict, Keys: slices.Clone(base.Keys), Dict: maps.Clone(base.Dict)}
	for _, v := range []*Value{base, over} {
		for k := range v.Numbers {
			out.markNumber(k)
		}
	}
	for _, k := range over.Keys {
		out.Set(k, Merge(out.Dict[k], over.Dict[k]))
	}
	return out
}

// yamlReader turns the YAML nodes of one file into a Value.
type yamlReader struct {
	file     string
	setup    bool // it is a file of bitbake-setup
	values   int
	warnings []string
}

// ReadFile reads a file of kas, and returns its value and warnings.
func ReadFile(path string, s *Shape) (*Value, []string, error) { return readAs(path, s, false) }

// ReadSetup reads a file of bitbake-setup, and returns its value and warnings.
func ReadSetup(path string, s *Shape) (*Value, []string, error) { return readAs(path, s, true) }

// readAs reads a file of at most MaxFileBytes, and decodes it as Decode does.
func readAs(path string, s *Shape, setup bool) (*Value, []string, error) {
	data, err := localfile.Read(path, MaxFileBytes)
	if err != nil {
		return nil, nil, err
	}
	return Decode(path, data, s, setup)
}

// Decode parses a file's content, as JSON if its name ends in .json and else as YAML, checks its
// shape, and returns the value and warnings. setup is true for bitbake-setup's files.
func Decode(path string, data []byte, s *Shape, setup bool) (*Value, []string, error) {
	read := readDocument
	if filepath.Ext(path) == ".json" {
		read = readJSONDocument
		if !setup {
			data = bytes.TrimPrefix(data, []byte(byteOrderMark))
		}
	}
	top, err := read(path, data)
	if err != nil {
		return nil, nil, err
	}
	r := &yamlReader{file: path, setup: setup}
	v, err := r.readValue(top, s, "", 0)
	return v, r.warnings, err
}

// yamlVersion matches a %YAML line, whose version becomes 1.1, because kas reads every file as 1.1.
var yamlVersion = plaintext.Regexp(`^((?:\x{feff}?#.*\n|\n)*%YAML +1\.)\d`)

// readDocument returns the only document of a YAML file, as YAML 1.1. An empty file is an error.
func readDocument(path string, data []byte) (*yaml.Node, error) {
	top, err := Parse(path, yamlVersion().ReplaceAll(data, []byte("${1}1")))
	if err == nil && top == nil {
		err = fmt.Errorf("%s: holds nothing; a project file begins with \"header:\"\nnext: ls -l %[1]s", path)
	}
	return top, err
}

func (r *yamlReader) positionOf(n *yaml.Node) Position { return Position{r.file, n.Line, n.Column} }

// countValues adds to the number of the file's values, counted after aliases are followed. It
// returns an error for too many, or for too deep nesting.
func (r *yamlReader) countValues(at Position, values, depth int) error {
	most := maxLevels
	if r.setup {
		most = maxSetupDepth
	}
	if r.values += values; r.values > MaxValues || depth > most {
		return at.Errorf("too many or too deeply nested values for a project file")
	}
	return nil
}

// readValue converts a node to a Value and checks it against its shape. In a file of kas, it warns
// of a plain number, boolean or date that it takes for a text. path names the node in errors.
func (r *yamlReader) readValue(n *yaml.Node, s *Shape, path string, depth int) (*Value, error) {
	at := r.positionOf(n)
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if err := r.countValues(at, 1, depth); err != nil {
		return nil, err
	}
	if s.Refused != "" {
		return nil, at.Errorf("%s: slipway %s", path, s.Refused)
	}
	v := &Value{At: at, Kind: kindOfNode(n), Text: n.Value}
	if !r.setup && s.Kinds&v.Kind == 0 && s.Kinds&Text != 0 && v.Kind&(Number|Boolean|odd) != 0 {
		r.warnings = append(r.warnings, fmt.Sprintf("%s: %s is read as the text %s; kas takes that for %s and refuses the file, so write it in quotes", at, path, n.Value, v.Kind))
		v.Kind = Text
	}
	if s.Kinds&v.Kind == 0 {
		return nil, at.Errorf("%s is %s; want %s", displayPath(path), v.Kind, s.Kinds)
	}
	switch v.Kind {
	case Number:
		number, err := parseInt(n.Value)
		if err != nil {
			return nil, at.Errorf("%s is %q; write it as a plain number", path, n.Value)
		}
		v.Text = strconv.FormatInt(number, 10)
	case Boolean:
		v.Text = strconv.FormatBool(slices.Contains([]string{"yes", "true", "on"}, strings.ToLower(n.Value)))
	case List:
		return v, r.readItems(v, n, s, path, depth)
	case Dict:
		return v, r.readEntries(v, n, s, path, depth)
	}
	return v, nil
}

// readItems reads the items of a sequence into v.List.
func (r *yamlReader) readItems(v *Value, n *yaml.Node, s *Shape, path string, depth int) error {
	for i, c := range n.Content {
		e, err := r.readValue(c, s.Each, fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return err
		}
		v.List = append(v.List, e)
	}
	return nil
}

// readEntries reads a mapping into v, checks its keys, and warns of repeated ones: the last counts.
func (r *yamlReader) readEntries(v *Value, n *yaml.Node, s *Shape, path string, depth int) error {
	v.Dict = map[string]*Value{}
	pairs, err := r.readPairs(n, path, depth)
	if err != nil {
		return err
	}
	lines := map[string]int{}
	for _, p := range pairs {
		at := r.positionOf(p.key)
		key, number, err := r.readKey(p.key, s, path)
		if err != nil {
			return err
		}
		below, err := r.keyShape(s, key, at, path)
		if err != nil {
			return err
		}
		e, err := r.readValue(p.value, below, strings.TrimPrefix(path+"."+key, "."), depth+1)
		if err != nil {
			return err
		}
		if before, twice := lines[key]; twice {
			program := plaintext.Either(r.setup, "bitbake-setup", "kas")
			r.warnings = append(r.warnings, fmt.Sprintf("%s: %q was already set in line %d; as with %s, line %d holds", at, key, before, program, at.Line))
		}
		if !p.merged {
			lines[key] = at.Line
		}
		if number {
			v.markNumber(key)
		}
		v.Set(key, e)
	}
	return s.requireKeys(v, path)
}

// displayPath returns the path for an error, "the file" for the top.
func displayPath(path string) string { return cmp.Or(path, "the file") }

// String returns the names of the kinds in k, joined by "or".
func (k kind) String() string {
	var names []string
	for i, n := range []string{"nothing", "a text", "a number", "a list", "keys with values", "true or false", "a date, a fraction or the like"} {
		if k&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, " or ")
}

// Shape describes what a part of a project file may be.
type Shape struct {
	Kinds    kind
	Keys     map[string]*Shape // of a dict whose keys are fixed
	Needs    []string          // required keys
	Each     *Shape            // the values of a dict with free keys, and a list's items
	Numbered bool              // a key may be a number
	Refused  string            // kas reads it and slipway does not; what to say and what to do
}

var (
	AText     = &Shape{Kinds: Text}
	ANumber   = &Shape{Kinds: Number}
	MaybeText = &Shape{Kinds: Text | Null}
	Texts     = &Shape{Kinds: Dict, Each: AText}
	AList     = &Shape{Kinds: List, Each: AText}
)

// keyShape returns the shape of a key's value, and an error for an unknown key.
func (r *yamlReader) keyShape(s *Shape, key string, at Position, path string) (*Shape, error) {
	if s.Keys == nil {
		return s.Each, nil
	}
	if below, known := s.Keys[key]; known {
		return below, nil
	}
	advice := plaintext.Either(r.setup, "", "; fix it, or use kas if a newer kas reads it")
	return nil, at.Errorf("unknown key %q in %s%s (have %s)%s", key, displayPath(path), plaintext.DidYouMean(key, s.knownKeys()), strings.Join(s.knownKeys(), ", "), advice)
}

func (s *Shape) knownKeys() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.Keys)), func(k string) bool { return s.Keys[k].Refused != "" })
}

// requireKeys returns an error if a dict lacks a required key.
func (s *Shape) requireKeys(v *Value, path string) error {
	for _, key := range s.Needs {
		if v.Dict[key] == nil {
			return v.At.Errorf("%s lacks the key %q", displayPath(path), key)
		}
	}
	return nil
}
