// Package plaintext makes text from outside safe to show on a terminal, in a log or in a
// report. It changes no file that a program reads.
package plaintext

import (
	"fmt"
	"strings"
	"unicode"
)

// Printable returns a text of several lines without secrets, and without characters that control a
// terminal or reverse the direction of a line.
func Printable(s string) string { return HideSecrets(WithoutControls(s)) }

// HasControls reports whether a name has invisible characters or line breaks.
func HasControls(name string) bool {
	return strings.ContainsAny(name, "\n\t") || WithoutControls(name) != name
}

// WithoutControls removes control characters but line feeds and tabs, and those that reverse a
// line's direction. It keeps secrets, unlike Printable: a program can still read the text.
func WithoutControls(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s)
}

var breaks = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ", "\t", " ")

// OneLine returns a text as Printable does, with spaces for line breaks and tabs.
func OneLine(s string) string { return Printable(breaks.Replace(s)) }

// ShortLine returns a text from outside as one printable line, cut after 200 bytes, with "...".
func ShortLine(text string) string {
	text = OneLine(text)
	const most = 200
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// SizeText returns a size in a binary unit, such as 1.5 GiB.
func SizeText(n int64) string {
	const units = "KMGTP"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n)/(1<<10), 0
	for size >= 1<<10 && unit < len(units)-1 {
		size, unit = size/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", size, units[unit])
}
