package plaintext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"slipway/layers/lazy"
)

// Escapes are a terminal's control sequences: colours, titles, cursor movements.
var Escapes = lazy.Regexp("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\\\)|[ -/]*[0-~])")

// Clean returns the first bytes of text without control characters, and without
// those that turn the direction of writing or show as nothing.
func Clean(text string, limit int) string {
	cut := len(text) - limit
	if cut > 0 {
		text = strings.ToValidUTF8(text[:limit], "")
	}
	text = Visible(text)
	if cut > 0 {
		text += fmt.Sprintf("… (%d bytes more)", cut)
	}
	return text
}

// CleanTail keeps the last bytes: what a log ends with matters most.
func CleanTail(text string, limit int) string {
	cut := len(text) - limit
	if cut > 0 {
		text = strings.ToValidUTF8(text[cut:], "")
	}
	text = Visible(text)
	if cut > 0 {
		text = fmt.Sprintf("(%d bytes before) …%s", cut, text)
	}
	return text
}

// Visible leaves nothing that XML 1.0 or a reader could not show, so less than
// Printable leaves.
func Visible(text string) string {
	text = Escapes().ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), "")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return HideSecrets(strings.Map(func(c rune) rune {
		switch {
		case c == '\n', c == '\t', c == utf8.RuneError, unicode.IsPrint(c):
			return c
		case unicode.IsSpace(c):
			return ' '
		}
		return -1
	}, text))
}
