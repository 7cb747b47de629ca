// Package plaintext makes text from outside safe to show on a terminal, in a log or in a
// report. It changes no file that a program reads.
package plaintext

import (
	"strings"
	"unicode"

	"slipway/layers/lazy"
)

// Printable is a text of several lines without the characters that a terminal would
// obey, or that turn a line around.
func Printable(s string) string {
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

var webUser = lazy.Regexp(`(https?://)[^/@\s]*@`)

// HideLogins removes user and password from the web addresses in a text: what is shown
// ends in a pipeline's log.
func HideLogins(s string) string { return webUser().ReplaceAllString(s, "$1") }
