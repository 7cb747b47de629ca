package tegra

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// A package's variables are in files that its scripts source. Slipway parses them and
// never runs them: only assignments of plain words, nothing that a shell would expand.
const (
	varsBytes  = 64 << 10
	varsLines  = 1000
	valueBytes = 4096
)

// varName matches the name of a variable, or of an element of a bash associative array.
var varName = plaintext.Regexp(`^[A-Za-z_][A-Za-z0-9_]*(\[[A-Za-z_][A-Za-z0-9_]*\])?$`)

// readVars parses a file of assignments. It returns nil if the file does not exist.
func readVars(path string) (map[string]string, error) {
	data, err := localfile.Read(path, varsBytes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	vars, err := parseVars(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return vars, nil
}

func parseVars(text string) (map[string]string, error) {
	vars := map[string]string{}
	n := 0
	for line := range strings.Lines(text) {
		if n++; n > varsLines {
			return nil, fmt.Errorf("more than %d lines", varsLines)
		}
		if err := parseLine(vars, strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return vars, nil
}

// parseLine adds the assignments of one line to vars. It refuses any other shell code.
func parseLine(vars map[string]string, line string) error {
	for line != "" && line[0] != '#' {
		name, rest, ok := strings.Cut(line, "=")
		if name = strings.TrimPrefix(name, "export "); !ok || !varName().MatchString(name) {
			return fmt.Errorf("%.60q is no assignment of a plain value", plaintext.OneLine(line))
		}
		value, rest, err := parseValue(rest)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if value != plaintext.Printable(value) {
			return fmt.Errorf("%s: a character that is not for print", name)
		}
		vars[name] = value
		line = strings.TrimLeft(rest, " \t;")
	}
	return nil
}

// parseValue parses a word of plain and quoted parts, which ends at a space, tab or semicolon.
func parseValue(s string) (value, rest string, err error) {
	var b strings.Builder
	for s != "" && !strings.ContainsRune(" \t;", rune(s[0])) {
		if b.Len() > valueBytes {
			return "", "", fmt.Errorf("a value of more than %d bytes", valueBytes)
		}
		var part string
		switch s[0] {
		case '\'':
			part, s, err = parseQuoted(s[1:], '\'')
		case '"':
			part, s, err = parseQuoted(s[1:], '"')
		default:
			part, s, err = parseBare(s)
		}
		if err != nil {
			return "", "", err
		}
		b.WriteString(part)
	}
	return b.String(), s, nil
}

// parseQuoted parses up to the closing quote. It refuses what a shell would expand.
func parseQuoted(s string, quote byte) (part, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == quote:
			return b.String(), s[i+1:], nil
		case c < ' ' && c != '\t', c == 0x7f:
			return "", "", errors.New("a control character")
		case quote == '"' && (c == '$' || c == '`'):
			return "", "", fmt.Errorf("%q would be expanded by a shell; only plain values are read", c)
		case quote == '"' && c == '\\':
			if i+1 == len(s) || !strings.ContainsRune(`"\$`+"`", rune(s[i+1])) {
				return "", "", errors.New("a backslash before a plain character")
			}
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", fmt.Errorf("no closing %c", quote)
}

var barePattern = plaintext.Regexp(`^[A-Za-z0-9_./:,+@%=\-]+`)

func parseBare(s string) (part, rest string, err error) {
	part = barePattern().FindString(s)
	if part == "" {
		return "", "", fmt.Errorf("%q outside of quotes; only plain values are read", s[:1])
	}
	return part, s[len(part):], nil
}
