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

// parseVars parses assignments, and refuses over varsLines lines. The last value of a name counts.
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

// valuePart matches a plain or quoted part of a value that a shell would not expand.
const valuePart = `'[^'\x00-\x08\x0a-\x1f\x7f]*'` +
	`|"(?:[^"\\$\x60\x00-\x08\x0a-\x1f\x7f]|\\["\\$\x60])*"` +
	`|[A-Za-z0-9_./:,+@%=-]+`

var (
	valueParts = plaintext.Regexp(valuePart)
	assignment = plaintext.Regexp(`^(?:export )?([^=]+)=((?:` + valuePart + `)*)(?:[ \t;]+|$)`)
	unescape   = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\$`, "$", "\\`", "`")
)

// parseLine adds the assignments of one line to vars. It skips comments, and refuses other code.
func parseLine(vars map[string]string, line string) error {
	for line != "" && line[0] != '#' {
		m := assignment().FindStringSubmatch(line)
		if m == nil || !varName().MatchString(m[1]) {
			return fmt.Errorf("%.60q is no assignment of a plain value", plaintext.OneLine(line))
		}
		name, value := m[1], joinParts(m[2])
		if len(value) > valueBytes {
			return fmt.Errorf("%s: a value of more than %d bytes", name, valueBytes)
		}
		if value != plaintext.Printable(value) {
			return fmt.Errorf("%s: a character that is not for print", name)
		}
		vars[name] = value
		line = line[len(m[0]):]
	}
	return nil
}

// joinParts returns a value without its quotes and backslashes.
func joinParts(text string) string {
	return valueParts().ReplaceAllStringFunc(text, func(part string) string {
		switch part[0] {
		case '\'':
			return part[1 : len(part)-1]
		case '"':
			return unescape.Replace(part[1 : len(part)-1])
		}
		return part
	})
}
