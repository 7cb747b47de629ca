package boardssh

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"slipway/layers/plaintext"
)

const maxSaidBytes = 2048

// Printable turns a board's text into one line that is safe on a terminal. It escapes control and
// formatting characters, joins lines by " | ", makes tabs blanks, drops carriage returns and outer
// blanks, and cuts the middle out of text over maxSaidBytes before it escapes.
func Printable(s string) string {
	s = strings.TrimSpace(s)
	if half := maxSaidBytes / 2; len(s) > maxSaidBytes {
		s = s[:half] + " … " + s[len(s)-half:]
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString(" | ")
		case r == '\t':
			b.WriteByte(' ')
		case r == '\r':
		case unicode.IsGraphic(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[size:]
	}
	return b.String()
}

// boardError is an error whose text comes from the board.
type boardError struct {
	what  string
	cause error
}

// BoardError wraps an error whose text comes from the board.
func BoardError(what string, err error) error { return &boardError{what, err} }

// Error returns what and the cause's text by Printable. A NextStep line at its end stays.
func (e *boardError) Error() string {
	text, next := e.cause.Error(), ""
	if step, is := errors.AsType[NextStep](e.cause); is && strings.HasSuffix(text, step.line()) {
		text, next = strings.TrimSuffix(text, step.line()), step.line()
	}
	return e.what + ": " + Printable(text) + next
}

func (e *boardError) Unwrap() error { return e.cause }

// IsOfBoard reports whether the text of err comes from a board, so that its paths are the board's.
func IsOfBoard(err error) bool { return errors.As(err, new(*boardError)) }

// NextStep is an error with the user's next step after "next:": Slipway's text, never the board's.
type NextStep struct {
	Err  error
	Step string
}

// NextOnBoard adds to err a next step: the ssh line that runs command on the board, by sudo if the
// connection uses it. why is the comment after it.
func (c *Conn) NextOnBoard(err error, command, why string) error {
	if c.login.sudo != nil {
		command = "sudo " + command
	}
	return NextStep{err, fmt.Sprintf("ssh %s %s  # %s", c.login.sshArgs(), plaintext.SingleQuote(Printable(command)), why)}
}

func (e NextStep) line() string  { return "\nnext: " + e.Step }
func (e NextStep) Error() string { return e.Err.Error() + e.line() }
func (e NextStep) Unwrap() error { return e.Err }
