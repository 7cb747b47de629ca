package ci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// jsonAt returns what stands at a path in a JSON text: names and the numbers of
// elements, with dots between them. A list becomes one line an element.
func jsonAt(text, path string) (string, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber() // numbers stay as they are written
	var v any
	if err := d.Decode(&v); err != nil {
		return "", fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", errors.New("not JSON: there is more after its end")
	}
	for word := range strings.SplitSeq(path, ".") {
		var ok bool
		if v, ok = jsonField(v, word); !ok {
			return "", fmt.Errorf("the JSON has nothing at %s", path)
		}
	}
	return jsonText(v), nil
}

func jsonField(v any, word string) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		field, ok := v[word]
		return field, ok
	case []any:
		i, err := strconv.Atoi(word)
		if err != nil || i < 0 || i >= len(v) {
			return nil, false
		}
		return v[i], true
	}
	return nil, false
}

func jsonText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		words := make([]string, len(v))
		for i, e := range v {
			words[i] = jsonText(e)
		}
		return strings.Join(words, "\n")
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it was decoded from JSON
	return chomp(b.String())
}

// checkJSONPath refuses what gjson knows and we do not: its queries, wildcards and
// modifiers.
func checkJSONPath(path string) error {
	if path == "" || strings.ContainsAny(path, "#*?|@\\()[]{}") {
		return fmt.Errorf("%q: only names and numbers with dots between them are known, like status.0.temp", path)
	}
	return nil
}
