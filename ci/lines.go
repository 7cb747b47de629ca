package ci

import "strings"

// chomp drops a line feed at the end.
func chomp(text string) string { return strings.TrimSuffix(text, "\n") }

// linesOf is listOf, which takes text apart into its lines. As in goss, text that
// ends in a line feed has an empty line as its last.
// lines returns the lines of a text; an empty text has none.
func linesOf(v any) ([]any, error) {
	if text, ok := v.(string); ok {
		return listOf(strings.Split(text, "\n"))
	}
	return listOf(v)
}
