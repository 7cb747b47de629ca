package layers

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/strict"
)

// Limits for one project file. Real ones stay far below.
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

// kind is the kind of a value. YAML guesses it from the spelling. Here the shape that
// the value should have decides, so that a commit 0e12345 is not a number.
type kind int

const (
	null kind = 1 << iota
	text
	number
	list
	dict
	boolean
	odd // a date, a fraction, or another value that project files do not use
)

// value is a part of a project file that has the shape it should have.
type value struct {
	at   position
	kind kind
	text string
	list []*value
	keys []string // of dict, in the order of the file
	dict map[string]*value

	numbers map[string]bool // the keys that are numbers to kas
}

// get returns the part below keys. A missing part is nil, on which all methods work.
func (v *value) get(keys ...string) *value {
	for _, k := range keys {
		if v == nil || v.kind != dict {
			return nil
		}
		v = v.dict[k]
	}
	return v
}

// entry returns what a dict holds under key, and whether it does.
func (v *value) entry(key string) (*value, bool) {
	if v == nil {
		return nil, false
	}
	e, there := v.dict[key]
	return e, there
}

// textOr returns the value's text, or the given one if there is none.
func (v *value) textOr(otherwise string) string {
	if v == nil || v.kind&(text|number|boolean) == 0 {
		return otherwise
	}
	return v.text
}

func (v *value) textMap() map[string]string {
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

// markNumber records that a key is a number to kas.
func (v *value) markNumber(key string) {
	if v.numbers == nil {
		v.numbers = map[string]bool{}
	}
	v.numbers[key] = true
}

// mergeValues returns base with over's settings: dicts are merged, all else replaced.
func mergeValues(base, over *value) *value {
	if base == nil || base.kind != dict || over.kind != dict {
		return over
	}
	out := &value{at: over.at, kind: dict, keys: slices.Clone(base.keys), dict: map[string]*value{}}
	for k, v := range base.dict {
		out.dict[k] = v
	}
	for _, v := range []*value{base, over} {
		for k := range v.numbers {
			out.markNumber(k)
		}
	}
	for _, k := range over.keys {
		out.set(k, mergeValues(out.dict[k], over.dict[k]))
	}
	return out
}

// yamlReader turns one file's YAML into a value.
type yamlReader struct {
	file     string
	setup    bool // it is a file of bitbake-setup
	values   int
	warnings []string
}

func readFile(path string, s *shape) (*value, []string, error) {
	return (&yamlReader{file: path}).readFile(s)
}

// readSetup reads a file of bitbake-setup.
func readSetup(path string, s *shape) (*value, []string, error) {
	return (&yamlReader{file: path, setup: true}).readFile(s)
}

func (r *yamlReader) readFile(s *shape) (*value, []string, error) {
	data, err := localfile.Read(r.file, maxFileBytes)
	if err != nil {
		return nil, nil, err
	}
	return r.parse(data, s)
}

func (r *yamlReader) parse(data []byte, s *shape) (*value, []string, error) {
	read := readDocument
	if filepath.Ext(r.file) == ".json" {
		read = readJSONDocument
		if !r.setup {
			data = bytes.TrimPrefix(data, []byte(byteOrderMark))
		}
	}
	top, err := read(r.file, data)
	if err != nil {
		return nil, nil, err
	}
	v, err := r.readValue(top, s, "", 0)
	return v, r.warnings, err
}

// YAML 1.2 calls itself so where kas reads it as the 1.1 that it knows.
var yamlVersion = plaintext.Regexp(`^((?:\x{feff}?#.*\n|\n)*%YAML +1\.)\d`)

// readDocument returns the content of a file's one document.
func readDocument(path string, data []byte) (*yaml.Node, error) {
	top, err := strict.Parse(path, yamlVersion().ReplaceAll(data, []byte("${1}1")))
	if err == nil && top == nil {
		err = fmt.Errorf("%s: holds nothing; a project file begins with \"header:\"", path)
	}
	return top, err
}

func (r *yamlReader) positionOf(n *yaml.Node) position { return position{r.file, n.Line, n.Column} }

// countValues keeps aliases from multiplying what is read.
func (r *yamlReader) countValues(at position, values, depth int) error {
	most := maxDepth
	if r.setup {
		most = maxSetupDepth
	}
	if r.values += values; r.values > maxValues || depth > most {
		return at.errorf("too many or too deeply nested values for a project file")
	}
	return nil
}

// readValue checks n against the shape that it should have. path names n in an error:
// repos.poky.layers.
func (r *yamlReader) readValue(n *yaml.Node, s *shape, path string, depth int) (*value, error) {
	at := r.positionOf(n)
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if err := r.countValues(at, 1, depth); err != nil {
		return nil, err
	}
	if s.refused != "" {
		return nil, at.errorf("%s: slipway %s", path, s.refused)
	}
	v := &value{at: at, kind: kindOf(n), text: n.Value}
	if !r.setup && s.kinds&v.kind == 0 && s.kinds&text != 0 && v.kind&(number|boolean|odd) != 0 {
		r.warnings = append(r.warnings, fmt.Sprintf("%s: %s is read as the text %s; kas takes that for %s and refuses the file, so write it in quotes", at, path, n.Value, v.kind))
		v.kind = text
	}
	if s.kinds&v.kind == 0 {
		return nil, at.errorf("%s is %s; want %s", displayPath(path), v.kind, s.kinds)
	}
	switch v.kind {
	case number:
		number, err := parseInt(n.Value)
		if err != nil {
			return nil, at.errorf("%s is %q; want a number", path, n.Value)
		}
		v.text = strconv.FormatInt(number, 10)
	case boolean:
		v.text = strconv.FormatBool(isTrue(n.Value))
	case list:
		return v, r.readItems(v, n, s, path, depth)
	case dict:
		return v, r.readEntries(v, n, s, path, depth)
	}
	return v, nil
}

func (r *yamlReader) readItems(v *value, n *yaml.Node, s *shape, path string, depth int) error {
	for i, c := range n.Content {
		e, err := r.readValue(c, s.each, fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return err
		}
		v.list = append(v.list, e)
	}
	return nil
}

func (r *yamlReader) readEntries(v *value, n *yaml.Node, s *shape, path string, depth int) error {
	v.dict = map[string]*value{}
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
			program := "kas"
			if r.setup {
				program = "bitbake-setup"
			}
			r.warnings = append(r.warnings, fmt.Sprintf("%s: %q was already set in line %d; as with %s, line %d holds", at, key, before, program, at.line))
		}
		if !p.merged {
			lines[key] = at.line
		}
		if number {
			v.markNumber(key)
		}
		v.set(key, e)
	}
	return s.requireKeys(v, path)
}

func displayPath(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func (k kind) String() string {
	var names []string
	for i, n := range []string{"nothing", "a text", "a number", "a list", "keys with values", "true or false", "a date, a fraction or the like"} {
		if k&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, " or ")
}

// shape describes what a part of a project file may be.
type shape struct {
	kinds    kind
	keys     map[string]*shape // of a dict whose keys are fixed
	needs    []string          // keys that must be there
	each     *shape            // the values of a dict with free keys, and a list's items
	numbered bool              // a key may be a number
	refused  string            // kas reads it and slipway does not; what to say and what to do
}

var (
	aText     = &shape{kinds: text}
	aNumber   = &shape{kinds: number}
	maybeText = &shape{kinds: text | null}
	texts     = &shape{kinds: dict, each: aText}
	aList     = &shape{kinds: list, each: aText}
)

// project is the shape of a project file: kas's format, versions 1 to 23. As in
// kas, the version says nothing about which keys a file may have.
var project = &shape{kinds: dict, keys: map[string]*shape{
	"header": {kinds: dict, keys: map[string]*shape{
		"version":  {kinds: number | text},
		"includes": {kinds: list, each: &shape{kinds: text | dict, needs: []string{"repo", "file"}, keys: map[string]*shape{"repo": aText, "file": aText}}},
	}},
	"build_system":         aText,
	"machine":              aText,
	"distro":               aText,
	"target":               {kinds: text | list, each: aText},
	"task":                 aText,
	"env":                  {kinds: dict, each: maybeText},
	"local_conf_header":    texts,
	"bblayers_conf_header": texts,
	"repos":                {kinds: dict, each: repository},
	"defaults": {kinds: dict, keys: map[string]*shape{"repos": {kinds: dict, keys: map[string]*shape{
		"branch":  aText,
		"tag":     aText,
		"refspec": aText,
		"patches": {kinds: dict, keys: map[string]*shape{"repo": aText}},
	}}}},
	"overrides": {kinds: dict, keys: map[string]*shape{"repos": {kinds: dict, each: &shape{kinds: dict, keys: map[string]*shape{
		"branch": maybeText,
		"commit": maybeText,
		"url":    aText,
	}}}}},
	"artifacts":          texts,
	"menu_configuration": {kinds: dict, each: &shape{kinds: text | number | boolean}},
	"proxy_config":       {kinds: dict, keys: map[string]*shape{"http_proxy": aText, "https_proxy": aText, "ftp_proxy": aText, "no_proxy": aText}},
	"_source_dir":        aText,
	"_source_dir_host":   aText,
	"signers": {kinds: dict, each: &shape{kinds: dict, keys: map[string]*shape{
		"type": aText, "repo": aText, "path": aText, "fingerprint": aText, "gpg_keyserver": aText,
	}}},
	"buildtools": {refused: "installs no build tools; take this key out and install the host's own (doctor names them), or use kas for this file"},
}}

var repository = &shape{kinds: dict | null, keys: map[string]*shape{
	"name":            aText,
	"url":             maybeText,
	"type":            aText,
	"commit":          aText,
	"branch":          maybeText,
	"tag":             maybeText,
	"refspec":         aText,
	"path":            maybeText,
	"signed":          {kinds: boolean},
	"allowed_signers": aList,
	"layers":          {kinds: dict, each: &shape{kinds: text | number | boolean | null | dict, keys: map[string]*shape{"prio": aNumber}}},
	"patches":         {kinds: dict, numbered: true, each: &shape{kinds: dict | null, needs: []string{"path"}, keys: map[string]*shape{"repo": aText, "path": aText}}},
}}

// keyShape returns the shape of the values below a key. It refuses an unknown key.
func (r *yamlReader) keyShape(s *shape, key string, at position, path string) (*shape, error) {
	if s.keys == nil {
		return s.each, nil
	}
	if below, known := s.keys[key]; known {
		return below, nil
	}
	advice := "; fix it, or use kas if a newer kas reads it"
	if r.setup {
		advice = ""
	}
	return nil, at.errorf("unknown key %q in %s%s (have %s)%s", key, displayPath(path), plaintext.DidYouMean(key, s.knownKeys()), strings.Join(s.knownKeys(), ", "), advice)
}

func (s *shape) knownKeys() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.keys)), func(k string) bool { return s.keys[k].refused != "" })
}

// requireKeys refuses a dict that lacks a required key.
func (s *shape) requireKeys(v *value, path string) error {
	for _, key := range s.needs {
		if v.dict[key] == nil {
			return v.at.errorf("%s lacks the key %q", displayPath(path), key)
		}
	}
	return nil
}
