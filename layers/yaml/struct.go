package yaml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"slipway/layers/plaintext"
)

// Load decodes YAML into a struct, refuses unknown keys, and fills places with the keys' places.
func Load(file string, data []byte, into any, places map[string]string) error {
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) {
			return fmt.Errorf("%s:%d:1: the line has bytes that are not UTF-8", file, i+1)
		}
	}
	if err := yaml.Load(data, into, yaml.WithKnownFields()); err != nil {
		return explainYAML(file, into, err)
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		return explainYAML(file, into, err)
	}
	for _, root := range doc.Content {
		findPlaces(file, "", root, places)
	}
	return nil
}

const maxYAMLErrors = 5

// explainYAML rewords the decoder's first maxYAMLErrors errors: with places, without Go types.
func explainYAML(file string, into any, err error) error {
	if all, ok := errors.AsType[*yaml.LoadErrors](err); ok {
		var texts []error
		for _, e := range all.Errors[:min(len(all.Errors), maxYAMLErrors)] {
			texts = append(texts, explainOne(file, into, e))
		}
		return errors.Join(texts...)
	}
	if one, ok := errors.AsType[*yaml.LoadError](err); ok {
		return explainOne(file, into, one)
	}
	return fmt.Errorf("%s: %w", file, err)
}

var (
	unknownField = plaintext.Regexp(`^field (.*) not found in type (.*)$`)
	wrongKind    = plaintext.Regexp("^cannot construct !!(\\w+)(?: `(.*)`)? into (.*)$")
)

// plainWords reword errors of the parser and the decoder that only name what it was doing.
var plainWords = map[string]string{
	"no documents in stream":                      "the file has no values",
	"found character that cannot start any token": "no value or key can begin with this character: quote the text, and indent with blanks, not tabs",
}

// plainText returns the text of an error of the parser or the decoder in plain words.
func plainText(e *yaml.LoadError) string {
	text := strings.TrimPrefix(e.Message, "yaml: ")
	return cmp.Or(plainWords[text], text)
}

// explainOne rewords one error of the YAML decoder, with its file, line and column.
func explainOne(file string, into any, e *yaml.LoadError) error {
	text := plainText(e)
	if m := unknownField().FindStringSubmatch(text); m != nil {
		text = unknownKey(m[1], keysOf(reflect.TypeOf(into), m[2]))
	}
	if m := wrongKind().FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("want %s, not %s", wantedText(m[3]), foundText(m[1], m[2]))
	}
	if e.Mark.Line == 0 {
		return fmt.Errorf("%s: %s", file, text)
	}
	place := fmt.Sprintf(":%d:%d: ", e.Mark.Line, e.Mark.Column)
	return errors.New(file + place + strings.TrimPrefix(text, path.Base(file)+place)) // cache: names its place itself
}

// unknownKey returns an error's text for an unknown key, with the nearest known key or else all.
func unknownKey(key string, known []string) string {
	text := fmt.Sprintf("unknown key %q", key)
	if question := plaintext.DidYouMean(key, known); question != "" {
		return text + question
	}
	return text + " (have " + strings.Join(known, ", ") + ")"
}

// keysOf returns the YAML keys of the struct type with this name, which is t or a type inside it.
func keysOf(t reflect.Type, name string) (keys []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return keysOf(t.Elem(), name)
	case reflect.Struct:
	default:
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case t.String() != name:
			keys = append(keys, keysOf(f.Type, name)...)
		case key != "" && key != "-":
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// wanted describes Go types in YAML's words. All other types are mappings, or lists of mappings.
var wanted = map[string]string{
	"string": "a text", "bool": "true or false", "int": "a number", "int64": "a number", "float64": "a number",
	"[]string": "a list of texts",
}

func wantedText(goType string) string {
	return cmp.Or(wanted[goType], plaintext.Either(strings.HasPrefix(goType, "[]"), "a list of mappings", "a mapping"))
}

// foundText describes a value by its text, or else by its tag.
func foundText(tag, value string) string {
	if value != "" {
		return fmt.Sprintf("%q", value)
	}
	return cmp.Or(map[string]string{"seq": "a list", "map": "a mapping", "null": "nothing"}[tag], "!!"+tag)
}

// findPlaces stores the place of each key, as FILE:LINE:COLUMN, by its path, such as flash.kinds.
// In a list of mappings, the path has the name of each mapping.
func findPlaces(file, path string, n *yaml.Node, into map[string]string) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for key, value := range Pairs(n) {
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		into[at] = Position{file, key.Line, key.Column}.String()
		findPlaces(file, at, value, into)
		if value.Kind != yaml.SequenceNode {
			continue
		}
		for _, item := range value.Content {
			name := at + "." + nameOf(item)
			into[name] = Position{file, item.Line, item.Column}.String()
			findPlaces(file, name, item, into)
		}
	}
}

// nameOf returns the value of a mapping's key "name", or "".
func nameOf(n *yaml.Node) string {
	for key, value := range Pairs(n) {
		if key.Value == "name" {
			return value.Value
		}
	}
	return ""
}
