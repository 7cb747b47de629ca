package lint

import (
	"fmt"
	"strings"
	"unicode"

	"slipway/layers/yaml"
)

// Limits for one text. Real ones stay far below.
const (
	maxTextBytes  = 1 << 20
	maxStatements = 20_000
	maxWords      = 100_000
)

// Source is a piece of configuration with its place.
type Source struct {
	File string
	Line int // of its first line: 1, or where a block of a project file begins
	Text string
	// Indent is how far a block's lines are moved to the right in its file.
	Indent int
}

// Statement is an assignment, or a directive such as require.
type Statement struct {
	At    Position
	Var   string // with its overrides, as it is written; a directive's own name
	Flag  string // of [flag]
	Op    string // = ?= ??= := += =+ .= =. as it is written; "" is a directive
	Value string
	Words []Word // of Value
}

// Word is a word of a value.
type Word struct {
	At   Position
	Text string
}

// Position is a place in a file.
type Position = yaml.Position

// badLine is a line that bitbake would stop at.
type badLine struct {
	At       Position
	Why, How string
}

// logicalLine is a line joined with its continuation lines.
type logicalLine struct {
	text   string
	starts []int // where in text each of the physical lines begins
	first  int
	source Source
}

// positionAt returns the file, line and column of an offset in the joined text.
func (l logicalLine) positionAt(offset int) Position {
	i := len(l.starts) - 1
	for i > 0 && l.starts[i] > offset {
		i--
	}
	return Position{File: l.source.File, Line: l.first + i, Column: l.source.Indent + offset - l.starts[i] + 1}
}

// parseConf parses configuration line by line, as bitbake does. It returns the lines that it cannot
// parse in bad, and an error only for a text over the limits.
func parseConf(src Source) (statements []Statement, bad []badLine, err error) {
	if len(src.Text) > maxTextBytes {
		return nil, nil, fmt.Errorf("%s: more than %d bytes of configuration", src.File, maxTextBytes)
	}
	words := 0
	for _, l := range joinLines(src, &bad) {
		if strings.TrimSpace(l.text) == "" || l.text[0] == '#' {
			continue
		}
		s, problem := l.parseStatement()
		if problem != nil {
			bad = append(bad, *problem)
			continue
		}
		statements = append(statements, s)
		if words += len(s.Words); words > maxWords || len(statements) > maxStatements {
			return nil, nil, fmt.Errorf("%s: more than %d statements or %d words", src.File, maxStatements, maxWords)
		}
	}
	return statements, bad, nil
}

// joinLines joins each line that ends in a backslash with the next, comments too, as bitbake does.
// It adds to bad a line that so becomes part of a comment.
func joinLines(src Source, bad *[]badLine) []logicalLine {
	var all []logicalLine
	var open *logicalLine
	n := max(src.Line, 1)
	for line := range strings.Lines(src.Text) {
		line = strings.TrimRightFunc(line, unicode.IsSpace)
		if open == nil {
			all = append(all, logicalLine{first: n, source: src})
			open = &all[len(all)-1]
		} else if strings.HasPrefix(open.text, "#") && !strings.HasPrefix(line, "#") {
			*bad = append(*bad, badLine{
				Position{File: src.File, Line: n, Column: 1},
				"the comment above ends in a backslash, so that bitbake takes this line for a part of it",
				"remove the backslash at the end of the comment",
			})
		}
		open.starts = append(open.starts, len(open.text))
		text, more := strings.CutSuffix(line, `\`)
		open.text += text
		if !more {
			open = nil
		}
		n++
	}
	return all
}

// directives are what a configuration file may hold besides assignments.
var directives = map[string]bool{
	"include": true, "require": true, "include_all": true, "inherit": true, "export": true, "unset": true,
	"addpylib": true, "addfragments": true, "addtask": true, "deltask": true, "addhandler": true, "EXPORT_FUNCTIONS": true,
}

// includeDirectives are the directives that read other files.
var includeDirectives = map[string]bool{"include": true, "require": true, "include_all": true, "addfragments": true}

// quotedHint is the advice for a line that is neither an assignment nor a directive.
const quotedHint = `write it as NAME = "value", with the quotes`

// parseStatement parses an assignment or a directive, or returns why bitbake cannot read the line.
func (l logicalLine) parseStatement() (Statement, *badLine) {
	text := l.text
	i := len(text) - len(strings.TrimLeft(text, " \t"))
	if i > 0 {
		return Statement{}, &badLine{l.positionAt(0), "bitbake reads no line that begins with a space", "remove the space, or end the line before in a backslash if they belong together"}
	}
	if rest, ok := strings.CutPrefix(text, "export "); ok && strings.Contains(rest, "=") {
		i = len(text) - len(strings.TrimLeft(rest, " \t"))
	} else if word, rest, _ := strings.Cut(text, " "); directives[word] && leadingOperator(strings.TrimLeft(rest, " \t")) == "" {
		return l.parseDirective(i, word), nil
	}
	s := Statement{At: l.positionAt(i)}
	end := i
	for end < len(text) && inName(text, end) {
		end++
	}
	s.Var = text[i:end]
	if end < len(text) && text[end] == '[' {
		closing := strings.IndexByte(text[end:], ']')
		if closing < 0 {
			return s, &badLine{l.positionAt(end), "a flag without its closing bracket", quotedHint}
		}
		if s.Flag = text[end+1 : end+closing]; s.Flag == "" || strings.ContainsAny(s.Flag, " \t") {
			return s, &badLine{l.positionAt(end), "a flag that is no word", quotedHint}
		}
		end += closing + 1
	}
	end += len(text[end:]) - len(strings.TrimLeft(text[end:], " \t"))
	s.Op = leadingOperator(text[end:])
	if s.Op == "" || s.Var == "" {
		return s, &badLine{l.positionAt(min(end, max(len(text)-1, 0))), "bitbake cannot read this line", quotedHint}
	}
	return l.parseValue(s, end+len(s.Op))
}

// parseDirective returns the directive word at i, with the rest of the line as its value.
func (l logicalLine) parseDirective(i int, word string) Statement {
	from := i + len(word)
	return Statement{At: l.positionAt(i), Var: word, Value: strings.TrimSpace(l.text[from:]), Words: l.splitWords(from, len(l.text))}
}

// parseValue returns s with its value and words: the text after the offset from, without the quotes
// at its two ends. It returns why bitbake cannot read a value without these, or with more of them.
func (l logicalLine) parseValue(s Statement, from int) (Statement, *badLine) {
	text := l.text
	from += len(text[from:]) - len(strings.TrimLeft(text[from:], " \t"))
	if from >= len(text) || text[from] != '"' && text[from] != '\'' {
		return s, &badLine{l.positionAt(min(from, len(text)-1)), "the value of " + s.Var + " does not begin with a quote", quotedHint}
	}
	last := len(text) - 1
	if last == from || text[last] != text[from] {
		how := "close the quote, or end each line of the value but the last with a backslash"
		if closing := strings.IndexByte(text[from+1:], text[from]); closing >= 0 && strings.HasPrefix(strings.TrimLeft(text[from+closing+2:], " \t"), "#") {
			how = "move the comment onto a line of its own, before this one"
		}
		return s, &badLine{l.positionAt(from), "the value of " + s.Var + " has no closing quote at the end of its line", how}
	}
	if strings.Count(text[from:], text[from:from+1]) == 3 {
		return s, &badLine{l.positionAt(from), "the value of " + s.Var + " has one of its own quotes in it", "put the value in the other kind of quotes"}
	}
	s.Value = text[from+1 : last]
	s.Words = l.splitWords(from+1, last)
	return s, nil
}

// splitWords returns the words between two offsets of the line, with their positions.
func (l logicalLine) splitWords(from, to int) []Word {
	var all []Word
	for i := from; i < to; {
		if strings.IndexByte(" \t", l.text[i]) >= 0 {
			i++
			continue
		}
		end := i + 1
		for end < to && strings.IndexByte(" \t", l.text[end]) < 0 {
			end++
		}
		all = append(all, Word{l.positionAt(i), l.text[i:end]})
		i = end
	}
	return all
}

// inName reports whether the character at i may be in a name: not a colon, dot or plus before "=".
func inName(text string, i int) bool {
	c := text[i]
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_${}/~", c) >= 0:
		return true
	case c == ':' || c == '.' || c == '+':
		return i+1 < len(text) && text[i+1] != '='
	}
	return false
}

// The longer ones first.
var operators = []string{"??=", "?=", ":=", "+=", "=+", ".=", "=.", "="}

// leadingOperator returns the assignment operator that a text begins with, "" without one.
func leadingOperator(text string) string {
	for _, op := range operators {
		if strings.HasPrefix(text, op) {
			return op
		}
	}
	return ""
}
