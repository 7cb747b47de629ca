package yaml

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// emitter writes a value as kas does, byte for byte: in PyYAML's block style, two spaces deep,
// texts of several lines in literal blocks, and lines broken after 80 columns. It writes an object
// twice that PyYAML would write as an anchor and aliases: kas's own output of these is broken.
type emitter struct {
	b      bytes.Buffer
	column int
	spaced bool // the next word needs no space before it
	fresh  bool // the line holds nothing but indentation and "-", "?" or ":"
	keeps  bool // the last text ends in empty lines that a reader must not drop
}

const (
	indentBy  = 2
	lineWidth = 80
	simpleKey = 123 // characters, from which on a key is written with a "?"
)

// YAML returns v as kas dumps it.
func (v *Value) YAML() []byte {
	e := &emitter{spaced: true, fresh: true}
	e.writeValue(v, 0, 0)
	e.moveTo(0)
	if e.keeps {
		e.writeIndicator("...", true)
		e.moveTo(0)
	}
	return e.b.Bytes()
}

// writeValue writes v. A list's items begin at the column list, a dict's entries at column deep.
func (e *emitter) writeValue(v *Value, deep, list int) {
	switch {
	case v.Kind == Dict && len(v.Keys) == 0:
		e.writeIndicator("{}", true)
	case v.Kind == Dict:
		for _, key := range v.Keys {
			e.moveTo(deep)
			e.writeEntry(key, v.Numbers[key], v.Dict[key], deep)
		}
	case len(v.List) > 0:
		for _, item := range v.List {
			e.moveTo(list)
			e.writeIndicator("-", true)
			e.writeValue(item, list+indentBy, list+indentBy)
		}
	case v.Kind == Text:
		e.writeText(v.Text, deep, false)
	case v.Kind != Null:
		e.writeIndicator(cmp.Or(v.Text, "[]"), true) // an empty list has no text
	}
}

// writeEntry writes a key, unquoted if it is a number, with its value. A list below a simple key is
// not indented. A "?" comes before a key that is empty or has simpleKey characters or more.
func (e *emitter) writeEntry(key string, number bool, v *Value, deep int) {
	if key != "" && utf8.RuneCountInString(key) < simpleKey {
		if number {
			e.writeFlow(key, "", deep, false)
		} else {
			e.writeText(key, deep, true)
		}
		e.writeIndicator(":", false)
		e.spaced, e.fresh = false, false
		e.writeValue(v, deep+indentBy, deep)
		return
	}
	e.writeIndicator("?", true)
	e.writeText(key, deep+indentBy, false)
	e.moveTo(deep)
	e.writeIndicator(":", true)
	e.writeValue(v, deep+indentBy, deep+indentBy)
}

// writeIndicator writes an indicator, such as "-" or "?". apart asks for a space before it.
func (e *emitter) writeIndicator(w string, apart bool) {
	if apart && !e.spaced {
		w = " " + w
	}
	e.writeRaw(w)
	e.spaced, e.keeps = false, false
	e.fresh = e.fresh && (w == "-" || w == "?" || w == ":" || w == " -" || w == " ?")
}

func (e *emitter) writeRaw(s string) {
	e.b.WriteString(s)
	e.column += len(s)
}

func (e *emitter) lineBreak() {
	e.b.WriteByte('\n')
	e.column, e.spaced, e.fresh = 0, true, true
}

// moveTo moves to a column, on this line if nothing is in the way.
func (e *emitter) moveTo(column int) {
	if !e.fresh || e.column > column || e.column == column && !e.spaced {
		e.lineBreak()
	}
	if e.column < column {
		e.writeRaw(strings.Repeat(" ", column-e.column))
		e.spaced = true
	}
}

// writeText writes a text in PyYAML's style: literal, plain, single or double quotes. Its further
// lines begin at the column deep. A key stays on one line.
func (e *emitter) writeText(s string, deep int, key bool) {
	look := possibleStyles(s)
	switch {
	case !key && strings.Contains(s, "\n") && look.block:
		e.writeLiteral(s, deep)
	case !strings.Contains(s, "\n") && look.plain && plainKind(s) == Text:
		e.writeFlow(s, "", deep, !key)
	case !strings.Contains(s, "\n") && look.quoted:
		e.writeFlow(s, "'", deep, !key)
	default:
		e.writeDoubleQuoted(s, deep, !key)
	}
}

// styles are the styles in which a text may be written.
type styles struct{ plain, quoted, block bool }

// possibleStyles returns the styles that PyYAML allows for s besides double quotes.
func possibleStyles(s string) styles {
	if s == "" {
		return styles{plain: false, quoted: true}
	}
	special := strings.ContainsFunc(s, func(c rune) bool { return c != '\n' && (c < ' ' || c > '~') })
	if special || strings.Contains(s, " \n") {
		return styles{}
	}
	edge := strings.HasPrefix(s, " ") || strings.HasSuffix(s, " ")
	return styles{
		plain:  !edge && !hasIndicator(s),
		quoted: true,
		block:  !strings.HasSuffix(s, " "),
	}
}

// hasIndicator reports whether YAML would read s, written without quotes, as syntax such as a list
// item, a mapping, a comment or an alias. s is not empty. It ignores numbers and words like true.
func hasIndicator(s string) bool {
	if strings.HasPrefix(s, "---") || strings.HasPrefix(s, "...") || strings.ContainsRune("#,[]{}&*!|>'\"%@`", rune(s[0])) {
		return true
	}
	if strings.ContainsRune("?:-", rune(s[0])) && (len(s) == 1 || s[1] == ' ') {
		return true
	}
	return strings.Contains(s, ": ") || strings.HasSuffix(s, ":") || strings.Contains(s, " #")
}

// writeFlow writes a text of one line in quote, which is ' or "" for plain. split breaks it after
// lineWidth at a space, and the next line begins at the column deep.
func (e *emitter) writeFlow(s, quote string, deep int, split bool) {
	if !e.spaced {
		e.writeRaw(" ")
	}
	e.writeRaw(quote)
	e.spaced, e.fresh, e.keeps = false, false, false
	for i := 0; i < len(s); {
		spaces := len(s[i:]) - len(strings.TrimLeft(s[i:], " "))
		end := i + spaces
		word := end + len(s[end:])
		if n := strings.IndexByte(s[end:], ' '); n >= 0 {
			word = end + n
		}
		if spaces == 1 && split && e.column > lineWidth && i > 0 && end < len(s) {
			e.moveTo(deep)
			e.spaced, e.fresh = false, false
		} else {
			e.writeRaw(s[i:end])
		}
		if quote != "" {
			e.writeRaw(strings.ReplaceAll(s[end:word], "'", "''"))
		} else {
			e.writeRaw(s[end:word])
		}
		i = word
	}
	e.writeRaw(quote)
}

// writeLiteral writes a text of several lines as a literal block (|) that is indented by deep.
func (e *emitter) writeLiteral(s string, deep int) {
	hints := ""
	if s[0] == ' ' || s[0] == '\n' {
		hints = fmt.Sprint(indentBy)
	}
	keeps := s == "\n" || strings.HasSuffix(s, "\n\n")
	if keeps {
		hints += "+"
	} else if !strings.HasSuffix(s, "\n") {
		hints += "-"
	}
	e.writeIndicator("|"+hints, true)
	e.lineBreak()
	for line := range strings.Lines(s) {
		line, ended := strings.CutSuffix(line, "\n")
		if line != "" {
			e.moveTo(deep)
			e.writeRaw(line)
		}
		e.fresh = line == ""
		if ended {
			e.lineBreak()
		}
	}
	if !strings.HasSuffix(s, "\n") {
		e.lineBreak()
	}
	e.keeps = keeps
}

var escapes = map[rune]string{
	0: `\0`, 7: `\a`, 8: `\b`, 9: `\t`, 10: `\n`, 11: `\v`, 12: `\f`, 13: `\r`, 27: `\e`,
	'"': `\"`, '\\': `\\`, 0x85: `\N`, 0xa0: `\_`, 0x2028: `\L`, 0x2029: `\P`,
}

// escapeRune returns a character as YAML writes it in double quotes.
func escapeRune(c rune) string {
	switch short, ok := escapes[c]; {
	case ok:
		return short
	case c >= ' ' && c <= '~':
		return string(c)
	case c <= 0xff:
		return fmt.Sprintf(`\x%02X`, c)
	case c <= 0xffff:
		return fmt.Sprintf(`\u%04X`, c)
	}
	return fmt.Sprintf(`\U%08X`, c)
}

// writeDoubleQuoted writes s in double quotes. split breaks long lines at a space or an escape.
func (e *emitter) writeDoubleQuoted(s string, deep int, split bool) {
	e.writeIndicator(`"`, true)
	text := []rune(s)
	var run []rune // not written yet
	for i, c := range text {
		next, full := c, e.column+len(run) > lineWidth && (c == ' ' || len(run) == 0)
		if escaped := escapeRune(c); escaped != string(c) {
			e.writeRaw(string(run) + escaped)
			run, next = nil, text[min(i+1, len(text)-1)]
			full = e.column-1 > lineWidth
		}
		if full && split && i > 0 && i < len(text)-1 {
			e.writeRaw(string(run) + `\`)
			run = nil
			e.moveTo(deep)
			e.spaced, e.fresh = false, false
			if next == ' ' {
				e.writeRaw(`\`)
			}
		}
		if escapeRune(c) == string(c) {
			run = append(run, c)
		}
	}
	e.writeRaw(string(run))
	e.writeIndicator(`"`, false)
}

// JSON returns v as Python's json.dump(v, indent=2) writes it, and ends the line.
func (v *Value) JSON() ([]byte, error) {
	var b bytes.Buffer
	err := json.Indent(&b, v.appendJSON(nil), "", "  ")
	b.WriteByte('\n')
	return b.Bytes(), err
}

// appendJSON appends v as JSON without line breaks.
func (v *Value) appendJSON(b []byte) []byte {
	switch v.Kind {
	case Dict:
		b = append(b, '{')
		for i, key := range v.Keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = v.Dict[key].appendJSON(append(append(b, jsonText(key)...), ':'))
		}
		return append(b, '}')
	case List:
		b = append(b, '[')
		for i, item := range v.List {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.appendJSON(b)
		}
		return append(b, ']')
	case Text:
		return append(b, jsonText(v.Text)...)
	case Null:
		return append(b, "null"...)
	}
	return append(b, v.Text...)
}

func jsonText(s string) []byte {
	quoted, _ := PythonJSON(s) // a text cannot fail
	return quoted
}
