package run

import (
	"strings"

	"slipway/layers/plaintext"
)

const (
	tailLines    = 15
	maxLineBytes = 4096 // longer lines are cut: output is not trusted to have ends
)

// tailWriter keeps the last tailLines lines of its input, and calls line with each.
type tailWriter struct {
	line  func(string)
	lines []string
	open  []byte
}

// Write collects lines, which end with \n or \r, cuts them at maxLineBytes and flushes each.
func (t *tailWriter) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case b == '\n' || b == '\r':
			t.flush()
		case len(t.open) < maxLineBytes:
			t.open = append(t.open, b)
		}
	}
	return len(p), nil
}

// flush ends the open line, unless it is empty: it calls t.line and keeps the last tailLines lines.
func (t *tailWriter) flush() {
	if len(t.open) == 0 {
		return
	}
	line := string(t.open)
	t.open = t.open[:0]
	if t.line != nil {
		t.line(line)
	}
	t.lines = append(t.lines, line)
	if len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
}

// String returns the kept lines as printable text.
func (t *tailWriter) String() string {
	return plaintext.Printable(plaintext.WithoutEscapes(strings.Join(t.lines, "\n")))
}
