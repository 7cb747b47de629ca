package plaintext

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Colour is the number of a colour in a terminal's escape sequence.
type Colour string

// The colours, by meaning. Each is readable on dark and on light.
const (
	Good    Colour = "32" // green
	Bad     Colour = "1;31"
	Doubt   Colour = "33" // yellow
	Heading Colour = "1"
	Next    Colour = "36" // cyan: a command to type
)

// On returns text in the colour, if w shows colours. Padding belongs outside of text.
func (c Colour) On(w io.Writer, text string) string {
	if text == "" || !Colours(w) {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// Colours reports whether w is a terminal that is to show colours.
func Colours(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && Redraws(w) }

// Redraws reports whether w is a terminal on which lines can be redrawn. In CI it returns false.
func Redraws(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && os.Getenv("CI") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// Width returns the width of the terminal w in characters. It returns otherwise if w is no
// terminal, does not say its size, or is narrower than narrowest.
func Width(w io.Writer, otherwise int) int {
	if f, ok := w.(interface{ Fd() uintptr }); ok {
		if width, rows, err := term.GetSize(int(f.Fd())); err == nil && width >= narrowest && rows > 0 {
			return width
		}
	}
	return otherwise
}

// narrowest is less than any terminal that a person reads.
const narrowest = 20

// Shorten cuts text to at most width characters with a final …, between two words if possible.
func Shorten(text string, width int) string {
	all := []rune(text)
	if len(all) <= width {
		return text
	}
	head := string(all[:max(width-1, 0)])
	if i := strings.LastIndexByte(head, ' '); i > len(head)/2 {
		return strings.TrimRight(head[:i], " ,;:") + " …"
	}
	return head + "…"
}
