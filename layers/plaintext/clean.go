package plaintext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escapes matches control sequences of a terminal: colours, titles, cursor movements, queries.
var escapes = Regexp("(?:\x1b\\[|\u009b)[0-?]*[ -/]*[@-~]|(?:\x1b[\\]PX^_]|[\u0090\u009d])[^\x07\x1b]{0,1000}(?:\x07|\x1b\\\\)|\x1b[ -/]*[0-~]")

// WithoutEscapes returns a text without a terminal's control sequences. Printable removes only
// their first character, and shows the rest.
func WithoutEscapes(text string) string { return escapes().ReplaceAllString(text, "") }

// escapeAround returns begin and end of the control sequence around an offset, or the offset twice.
func escapeAround(text string, at int) (from, to int) {
	from = strings.LastIndexByte(text[:at], 0x1b)
	if from < 0 {
		return at, at
	}
	found := escapes().FindStringIndex(text[from:min(len(text), from+1100)])
	if found == nil || found[0] > 0 || from+found[1] <= at {
		return at, at
	}
	return from, from + found[1]
}

// Clean returns the first limit bytes of a text as Visible does. Then it says how many it left out.
func Clean(text string, limit int) string {
	cut := 0
	if len(text) > limit {
		limit, _ = escapeAround(text, limit)
		cut = len(text) - limit
		text = strings.ToValidUTF8(text[:limit], "")
	}
	text = Visible(text)
	if cut > 0 {
		text += fmt.Sprintf("… (%d bytes more)", cut)
	}
	return text
}

// CleanTail is Clean for the end of a text, after the count of bytes cut: a log's end matters most.
func CleanTail(text string, limit int) string {
	cut := len(text) - limit
	if cut > 0 {
		_, cut = escapeAround(text, cut)
		text = strings.ToValidUTF8(text[cut:], "")
	}
	text = Visible(text)
	if cut > 0 {
		text = fmt.Sprintf("(%d bytes before) …%s", cut, text)
	}
	return text
}

// Visible returns a text without control sequences, secrets, and characters that XML 1.0 or a
// reader cannot show. It removes more than Printable.
func Visible(text string) string {
	text = WithoutEscapes(strings.ToValidUTF8(text, "\uFFFD"))
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
