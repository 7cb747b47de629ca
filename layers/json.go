package layers

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// readJSONDocument reads a file in JSON. Most of JSON is YAML, but YAML takes
// \ud83d\ude00 for two characters, where JSON has one.
func readJSONDocument(path string, data []byte) (*yaml.Node, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
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
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: at.line, Column: at.column}
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
