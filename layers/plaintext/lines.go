package plaintext

import "strings"

// TrimNewline drops a line feed at the end.
func TrimNewline(text string) string { return strings.TrimSuffix(text, "\n") }

// Lines returns the lines of a text; an empty text has none.
func Lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(TrimNewline(text), "\n")
}
