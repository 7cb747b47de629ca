package verify

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
)

const maxNameBytes = 255

// sums is a list of digests, by the names of files.
type sums struct {
	names  []string // in the list's order
	byName map[string]string
}

// sumLine is a line of sha256sum. Escaped names and the form of BSD are refused: a release
// has none.
var sumLine = lazy.Regexp(`^([0-9a-f]{64}) [ *]([^\n]+)$`)

// parseSums reads a list strictly: each line names one file of the list's own folder. Its
// errors begin with the line's number.
func parseSums(data []byte) (sums, error) {
	s := sums{byName: map[string]string{}}
	text, whole := strings.CutSuffix(string(data), "\n")
	if !whole {
		return s, errors.New("1: the list does not end with a whole line: it is empty or cut off")
	}
	for i, line := range strings.Split(text, "\n") {
		if err := s.addLine(line); err != nil {
			return s, fmt.Errorf("%d: %w", i+1, err)
		}
	}
	return s, nil
}

func (s *sums) addLine(line string) error {
	m := sumLine().FindStringSubmatch(line)
	if m == nil {
		return errors.New("not a line of sha256sum: want 64 hex digits, two spaces and a name")
	}
	digest, name := m[1], m[2]
	if err := checkName(name); err != nil {
		return err
	}
	if _, twice := s.byName[name]; twice {
		return fmt.Errorf("%q is named twice", name)
	}
	s.names, s.byName[name] = append(s.names, name), digest
	return nil
}

// checkName refuses names that lead out of the folder, hide, or look like others.
func checkName(name string) error {
	switch {
	case len(name) > maxNameBytes:
		return fmt.Errorf("a name of %d bytes; %d are the most", len(name), maxNameBytes)
	case strings.ContainsAny(name, `/\`):
		return fmt.Errorf("%q leads into another folder", plaintext.OneLine(name))
	case name[0] == '.':
		return fmt.Errorf("%q begins with a dot", plaintext.OneLine(name))
	case strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }):
		return fmt.Errorf("%q has characters that a person cannot see", plaintext.OneLine(name))
	}
	return nil
}
