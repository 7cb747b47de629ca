package ci

import (
	"encoding/json"
	"io"
	"strings"
)

// properties reads lines of KEY=value.
func properties(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			found[key] = value
		}
	}
	return found
}

func word(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// firstLine is the first line of text that says anything.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
