package bfb

import (
	"bytes"
	"fmt"
	"strings"

	"slipway/layers/plaintext"
)

// MaxConfigBytes is more than any bf.cfg that people write.
const MaxConfigBytes = 128 << 10

var (
	// Names such as BMC_PASSWORD_MINIMUM_LENGTH hold no password.
	secret   = plaintext.Regexp(`(?i)(PASSWORD|PASSWD)(_?[0-9]+)?$`)
	flag     = plaintext.Regexp(`^(CTL_)?DELETE_`)
	assigned = plaintext.Regexp(`^([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\+?=`)
	// Formats of crypt(3) and grub-mkpasswd-pbkdf2. An incomplete hash would lock all users out.
	hashed = plaintext.Regexp(`^(` + strings.Join([]string{
		`\$1\$[./0-9A-Za-z]{0,8}\$[./0-9A-Za-z]{22}`,
		`\$5\$(rounds=[0-9]+\$)?[./0-9A-Za-z]{0,16}\$[./0-9A-Za-z]{43}`,
		`\$6\$(rounds=[0-9]+\$)?[./0-9A-Za-z]{0,16}\$[./0-9A-Za-z]{86}`,
		`\$2[abxy]\$[0-9]{2}\$[./0-9A-Za-z]{53}`,
		`\$g?y\$[./0-9A-Za-z]+\$[./0-9A-Za-z]{0,86}\$[./0-9A-Za-z]{43}`,
		`\$7\$[./0-9A-Za-z]{11,97}\$[./0-9A-Za-z]{43}`,
		`grub\.pbkdf2\.sha512\.[0-9]+\.[0-9A-F]+\.[0-9A-F]+`,
	}, "|") + `)$`)
)

// CheckConfig returns an error, which begins with the line number, if a bf.cfg sets a password
// variable to anything but a hash that bash takes literally. A plain password would be readable in
// the stream and on the DPU, where the installer keeps the file. CheckConfig also refuses a file
// that is too long or has NUL bytes, carriage returns or unclosed quotes, and checks nothing else.
func CheckConfig(text []byte) error {
	if len(text) > MaxConfigBytes {
		return fmt.Errorf("1: it has more than the %d KiB that a bf.cfg may have", MaxConfigBytes>>10)
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return fmt.Errorf("%d: a NUL byte; a bf.cfg is text", lineNumber(text, i))
	}
	if i := bytes.IndexByte(text, '\r'); i >= 0 {
		return fmt.Errorf("%d: a carriage return, as editors on Windows write them; bash takes it for a part of the value, so take all out: sed -i 's/\\r//' FILE", lineNumber(text, i))
	}
	l := lexer{text: text}
	for {
		w, ok, err := l.nextWord()
		if err != nil || !ok {
			return err
		}
		if err := w.checkPassword(); err != nil {
			return fmt.Errorf("%d: %w", lineNumber(text, w.at), err)
		}
	}
}

func lineNumber(text []byte, at int) int { return 1 + bytes.Count(text[:at], []byte("\n")) }

// checkPassword returns an error if the word assigns a password variable and the value is neither
// empty nor a complete hash that bash takes literally.
func (w word) checkPassword() error {
	m := assigned().FindStringSubmatch(w.text)
	if m == nil || !secret().MatchString(m[1]) || flag().MatchString(m[1]) {
		return nil
	}
	name, value := m[1], w.text[len(m[0]):]
	switch {
	case w.array:
		return fmt.Errorf("%s is a list, and what it holds is not looked at; write one hash in single quotes", name)
	case hashed().MatchString(value) && w.expands:
		return fmt.Errorf("the hash for %s is not in single quotes, so bash puts its own variables where a $ stands; write %s='…'", name, name)
	case w.expands:
		return fmt.Errorf("what %s becomes is known only when the script runs; write a hash in single quotes, as openssl passwd -6 makes it", name)
	case value == "", hashed().MatchString(value):
		return nil
	}
	if strings.HasPrefix(value, "$") {
		return fmt.Errorf("%s is not a whole hash of one of crypt's forms; copy all of it, or make one by openssl passwd -6", name)
	}
	return fmt.Errorf("%s is not a hash; openssl passwd -6 makes one, and where a plain password is the only thing that works, set it by hand on the board", name)
}

// word is one word of the script without its quotes.
type word struct {
	at      int
	text    string
	expands bool // contains an unquoted or double-quoted $ or `
	array   bool // NAME=(...)
}

// lexer splits a script into words, also those of here-documents and function bodies.
type lexer struct {
	text []byte
	pos  int
}

// separators are the characters that end a word in bash; braces are not, as in ${#A}.
const separators = " \t\n;&|<>()"

// nextWord returns the next word without its quotes; false at the end of the script.
func (l *lexer) nextWord() (word, bool, error) {
	l.skipSeparators()
	if l.pos >= len(l.text) {
		return word{}, false, nil
	}
	w, out := word{at: l.pos}, &strings.Builder{}
	for l.pos < len(l.text) && !strings.ContainsRune(separators, rune(l.text[l.pos])) {
		if err := l.readPart(&w, out); err != nil {
			return w, false, err
		}
	}
	w.text = out.String()
	w.array = l.pos < len(l.text) && l.text[l.pos] == '(' && strings.HasSuffix(w.text, "=")
	return w, true, nil
}

// skipSeparators skips bash's separators, comments, and backslashes that join two lines.
func (l *lexer) skipSeparators() {
	for l.pos < len(l.text) {
		switch c := l.text[l.pos]; {
		case c == '#':
			if end := bytes.IndexByte(l.text[l.pos:], '\n'); end >= 0 {
				l.pos += end
			} else {
				l.pos = len(l.text)
			}
		case strings.ContainsRune(separators, rune(c)):
			l.pos++
		case c == '\\' && l.pos+1 < len(l.text) && l.text[l.pos+1] == '\n':
			l.pos += 2
		default:
			return
		}
	}
}

// readPart adds a quoted string or one character to out. A $ or ` that bash expands sets w.expands.
func (l *lexer) readPart(w *word, out *strings.Builder) error {
	c := l.text[l.pos]
	switch {
	case c == '\'':
		return l.readSingleQuoted(w, out)
	case c == '"':
		return l.readDoubleQuoted(w, out)
	case c == '\\':
		l.pos++
		if l.pos < len(l.text) && l.text[l.pos] != '\n' { // a backslash joins two lines
			out.WriteByte(l.text[l.pos])
		}
		l.pos++
	default:
		w.expands = w.expands || c == '$' || c == '`'
		out.WriteByte(c)
		l.pos++
	}
	return nil
}

// readSingleQuoted adds the content of single quotes to out.
func (l *lexer) readSingleQuoted(w *word, out *strings.Builder) error {
	end := bytes.IndexByte(l.text[l.pos+1:], '\'')
	if end < 0 {
		return l.unclosedError("single", w)
	}
	out.Write(l.text[l.pos+1 : l.pos+1+end])
	l.pos += end + 2
	return nil
}

// readDoubleQuoted adds the content of double quotes to out. A $ or ` in it sets w.expands.
func (l *lexer) readDoubleQuoted(w *word, out *strings.Builder) error {
	began := l.pos
	for l.pos++; l.pos < len(l.text); l.pos++ {
		c := l.text[l.pos]
		switch {
		case c == '"':
			l.pos++
			return nil
		case c == '\\' && l.pos+1 < len(l.text) && strings.IndexByte("$`\"\\\n", l.text[l.pos+1]) >= 0:
			l.pos++
			if l.text[l.pos] != '\n' {
				out.WriteByte(l.text[l.pos])
			}
			continue
		case c == '$', c == '`':
			w.expands = true
		}
		out.WriteByte(c)
	}
	l.pos = began
	return l.unclosedError("double", w)
}

func (l *lexer) unclosedError(which string, w *word) error {
	return fmt.Errorf("%d: the %s quote of %.40q is not closed", lineNumber(l.text, l.pos), which, plaintext.OneLine(string(l.text[w.at:min(len(l.text), w.at+40)])))
}
