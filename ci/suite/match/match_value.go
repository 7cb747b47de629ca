package match

import (
	"fmt"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

// These functions convert a value as goss does before it compares.

// TextOf converts a value to text. A list becomes a line for each element.
func TextOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []string:
		return strings.Join(v, "\n")
	case []any:
		words := make([]string, len(v))
		for i, e := range v {
			words[i] = fmt.Sprint(e)
		}
		return strings.Join(words, "\n")
	}
	return fmt.Sprint(v)
}

// numberOf converts a number, a text, or a list with one text to a float64.
func numberOf(v any) (float64, error) {
	switch v := v.(type) {
	case int:
		return float64(v), nil
	case float64:
		return v, nil
	case string, []string:
		text := strings.TrimSpace(TextOf(v))
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is not a number", plaintext.Clean(text, 40))
		}
		return number, nil
	}
	return 0, fmt.Errorf("%s is not a number", valueKind(v))
}

// AnsweredNumber converts a board's answer to an int, or returns the answer if it is no number.
func AnsweredNumber(answer string) any {
	if number, err := strconv.Atoi(strings.TrimSpace(answer)); err == nil {
		return number
	}
	return answer
}

// listOf returns the elements of a list, or the values of a mapping.
func listOf(v any) ([]any, error) {
	switch v := v.(type) {
	case []any:
		return v, nil
	case []string:
		all := make([]any, len(v))
		for i, e := range v {
			all[i] = e
		}
		return all, nil
	case map[string]any:
		var all []any
		for _, e := range v {
			all = append(all, e)
		}
		return all, nil
	}
	return nil, fmt.Errorf("%s is not a list", valueKind(v))
}

// valueKind returns words for the type of a value.
func valueKind(v any) string {
	switch v.(type) {
	case nil:
		return "nothing"
	case string:
		return "a text"
	case int, float64:
		return "a number"
	case bool:
		return "true or false"
	case map[string]any:
		return "a mapping"
	}
	return "a list"
}

// linesOf returns a text's lines, as in goss with an empty one after a final line feed. For another
// value it returns the elements, as listOf does.
func linesOf(v any) ([]any, error) {
	if text, ok := v.(string); ok {
		return listOf(strings.Split(text, "\n"))
	}
	return listOf(v)
}
