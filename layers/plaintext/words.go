package plaintext

import (
	"encoding/json"
	"io"
	"strings"
)

// Properties parses lines of KEY=value, without removing quotes, and ignores other lines.
func Properties(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			found[key] = value
		}
	}
	return found
}

// Either returns yes if b is true, and no otherwise.
func Either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// FirstLine returns the first line of text that is not blank.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

// WriteJSON writes v as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
