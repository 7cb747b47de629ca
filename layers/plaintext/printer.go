package plaintext

import (
	"os"
	"unicode/utf8"
)

// Printer writes text to a file as Printable returns it. On a terminal it keeps this package's
// colours. Callers must write a text at once: a secret in two pieces would not be found.
type Printer struct {
	To     *os.File
	Before func(text []byte) // called with each text; may be nil
	open   []byte            // of a character whose end was not written yet
}

var colour = Regexp("\x1b\\[(?:0|1|32|33|36|1;31)m")

// Write calls Before and writes the printable text. It keeps an incomplete character for later.
func (p *Printer) Write(b []byte) (int, error) {
	text := append(p.open, b...)
	whole := len(text)
	for i := max(0, whole-utf8.UTFMax+1); i < whole; i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			whole = i
		}
	}
	p.open = append([]byte(nil), text[whole:]...)
	if p.Before != nil {
		p.Before(b)
	}
	_, err := p.To.WriteString(p.clean(string(text[:whole])))
	return len(b), err
}

// clean returns text as Printable does, but lets the package's own colours through on a terminal.
func (p *Printer) clean(text string) string {
	if !Colours(p.To) {
		return Printable(text)
	}
	shown := ""
	for at := colour().FindStringIndex(text); at != nil; at = colour().FindStringIndex(text) {
		shown, text = shown+Printable(text[:at[0]])+text[at[0]:at[1]], text[at[1]:]
	}
	return shown + Printable(text)
}

// Fd returns the file's descriptor, by which Colours and Width recognise a terminal.
func (p *Printer) Fd() uintptr { return p.To.Fd() }
