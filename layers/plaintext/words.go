package plaintext

import (
	"encoding/json"
	"io"
	"strings"
)

// Properties reads lines of KEY=value.
func Properties(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			found[key] = value
		}
	}
	return found
}

// Either is yes or no, in the words that are given.
func Either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// FirstLine is the first line of text that says anything.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

// WriteJSON writes v indented, for people and for programs.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
