// Package plaintext makes text from outside safe to show on a terminal, in a log or in a
// report. It changes no file that a program reads.
package plaintext

import (
	"strings"
	"unicode"
)

// Printable is a text of several lines without the characters that a terminal would
// obey, or that turn a line around, and without secrets.
func Printable(s string) string { return HideSecrets(WithoutControls(s)) }

// HasControls reports whether a name has characters that a person cannot see, or ends a line.
func HasControls(name string) bool {
	return strings.ContainsAny(name, "\n\t") || WithoutControls(name) != name
}

// WithoutControls is Printable for what a program reads, too.
func WithoutControls(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s)
}

var breaks = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ", "\t", " ")

// OneLine is Printable with spaces in the place of line breaks and tabs.
func OneLine(s string) string { return Printable(breaks.Replace(s)) }
