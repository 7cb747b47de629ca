package yaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// jsonReader turns JSON into YAML nodes. YAML's reader takes \ud83d\ude00 for two characters.
type jsonReader struct {
	file   string
	data   []byte
	lines  []int     // where each line begins in data
	last   bytePlace // that was requested: a file may be one long line
	tokens *json.Decoder
}

const byteOrderMark = "\ufeff"

type bytePlace struct {
	offset int
	Position
}

// Configurations may hold configurations; each takes two levels.
const maxSetupDepth = 40

// lineStarts returns the offsets at which lines begin.
func lineStarts(data []byte) []int {
	starts := []int{0}
	for i, c := range data {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

// positionAt returns the position of a byte offset. Columns count characters from 1.
func (r *jsonReader) positionAt(offset int) Position {
	offset = min(offset, len(r.data))
	line := sort.SearchInts(r.lines, offset+1) // the lines that begin at offset or before
	begin, column := r.lines[line-1], 1
	if r.last.Line == line && r.last.offset <= offset {
		begin, column = r.last.offset, r.last.Column
	}
	column += utf8.RuneCount(r.data[begin:offset])
	r.last = bytePlace{offset, Position{r.file, line, column}}
	return r.last.Position
}

// checkSyntax returns an error, with its position, for invalid JSON or UTF-8, or a byte order mark.
func (r *jsonReader) checkSyntax() error {
	if bytes.HasPrefix(r.data, []byte(byteOrderMark)) { // Python's json refuses it too
		return r.positionAt(0).Errorf("begins with a byte order mark, which bitbake-setup refuses; save the file as UTF-8 without one")
	}
	for i := 0; i < len(r.data); {
		c, size := utf8.DecodeRune(r.data[i:])
		if c == utf8.RuneError && size == 1 {
			return r.positionAt(i).Errorf("not UTF-8; save the file in that encoding")
		}
		i += size
	}
	var whole json.RawMessage
	err := json.Unmarshal(r.data, &whole)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return r.positionAt(max(int(syntax.Offset)-1, 0)).Errorf("not valid JSON: %w", err)
	}
	return err
}

// nextToken returns the next token with its position.
func (r *jsonReader) nextToken() (json.Token, Position, error) {
	begin := int(r.tokens.InputOffset())
	for begin < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[begin]) >= 0 {
		begin++
	}
	token, err := r.tokens.Token()
	return token, r.positionAt(begin), err
}

// PythonJSON encodes v as Python's json.dump(v, sort_keys=True, indent=4) does, like bitbake-setup.
func PythonJSON(v any) ([]byte, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "    ")
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	var out []byte
	for _, c := range strings.TrimSuffix(b.String(), "\n") {
		switch {
		case c < 0x7f:
			out = append(out, byte(c))
		case c > 0xffff: // as two halves, each by its number
			c -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, c)
		}
	}
	return out, nil
}

// Plain returns v as strings, bools, slices and maps, for a JSON encoder. Numbers become nil.
func (v *Value) Plain() any {
	switch v.Kind {
	case Text:
		return v.Text
	case Boolean:
		return v.Text == "true"
	case List:
		all := []any{}
		for _, e := range v.List {
			all = append(all, e.Plain())
		}
		return all
	case Dict:
		all := map[string]any{}
		for k, e := range v.Dict {
			all[k] = e.Plain()
		}
		return all
	}
	return nil
}

// Texts returns the texts of a list's items.
func (v *Value) Texts() []string {
	if v == nil {
		return nil
	}
	var all []string
	for _, e := range v.List {
		all = append(all, e.Text)
	}
	return slices.Clip(all)
}

// readJSONDocument parses a JSON file into YAML nodes with positions.
func readJSONDocument(path string, data []byte) (*yaml.Node, error) {
	r := &jsonReader{file: path, data: data, lines: lineStarts(data)}
	if err := r.checkSyntax(); err != nil {
		return nil, err
	}
	r.tokens = json.NewDecoder(bytes.NewReader(data))
	r.tokens.UseNumber()
	return r.readNode()
}

// readNode reads the next value as a YAML node.
func (r *jsonReader) readNode() (*yaml.Node, error) {
	token, at, err := r.nextToken()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: at.Line, Column: at.Column}
	switch token := token.(type) {
	case nil:
		n.Value = "null"
	case bool:
		n.Value = strconv.FormatBool(token)
	case json.Number:
		n.Value = token.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag, n.Style = "!!float", yaml.TaggedStyle
		}
	case string:
		n.Value, n.Style = token, yaml.DoubleQuotedStyle
	case json.Delim:
		n.Kind = yaml.SequenceNode
		if token == '{' {
			n.Kind = yaml.MappingNode
		}
		return n, r.readContent(n)
	}
	return n, nil
}

// readContent reads the rest of an array, or the keys and values of an object in turn, into n.
func (r *jsonReader) readContent(n *yaml.Node) error {
	for r.tokens.More() {
		c, err := r.readNode()
		if err != nil {
			return err
		}
		n.Content = append(n.Content, c)
	}
	_, err := r.tokens.Token()
	return err
}
