package trust

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode"

	"slipway/layers/plaintext"
)

// SumsName is the name of a list of digests, as "sha256sum -c" reads it.
const SumsName = "SHA256SUMS"

const (
	maxSumsBytes     = 4 << 20 // more than a release's list of digests has
	maxSumsLineBytes = 8 << 10
	maxNameBytes     = 255
)

// ParseDigest parses sha256:HEX. ok is false if text is no digest, so perhaps it names a list.
func ParseDigest(text string) (digest string, ok bool, err error) {
	algorithm, sum, ok := strings.Cut(text, ":")
	if !ok || !algorithmPattern().MatchString(algorithm) {
		return "", false, nil
	}
	sum = strings.ToLower(sum)
	if algorithm != "sha256" || !hexPattern().MatchString(sum) {
		return "", true, fmt.Errorf("%q: want sha256: and 64 hex digits, as sha256sum prints them", text)
	}
	return sum, true, nil
}

var (
	algorithmPattern = plaintext.Regexp(`^(?:sha|md|blake|b)[0-9][0-9a-z]*$`)
	hexPattern       = plaintext.Regexp(`^[0-9a-f]{64}$`)
	plainLine        = plaintext.Regexp(`^[0-9a-f]{64} [ *][^\n\r]+$`)
	sumLine          = plaintext.Regexp(`^(\\?)([0-9A-Fa-f]{64})(?: [ *](.+))?$`)
	bsdLine          = plaintext.Regexp(`^(\\?)SHA256 \((.+)\) = ([0-9A-Fa-f]{64})$`)
	nameUnescaper    = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")
)

// Sums is a list of digests, as sha256sum writes and reads it.
type Sums struct {
	Names  []string // in the list's order; of its own folder they have no ./
	file   string
	byName map[string]string
	only   string // the digest in a file that holds nothing else
	odd    error  // the first line that a release must not have
}

// ParseSums parses a list such as SHA256SUMS: the lines of sha256sum, also with --tag, --binary and
// escaped names, or a single digest. Like sha256sum it accepts capital digits, comments, empty
// lines and carriage returns. Unlike sha256sum it returns an error for a name with two digests.
func ParseSums(file string, data []byte) (Sums, error) {
	s := Sums{file: file, byName: map[string]string{}}
	if len(data) > maxSumsBytes {
		return s, fmt.Errorf("%s: more than %d MiB, which no list of digests has", file, maxSumsBytes>>20)
	}
	text, whole := strings.CutSuffix(string(data), "\n")
	if !whole {
		s.odd = fmt.Errorf("%s:1: the list does not end with a whole line: it is empty or cut off", file)
	}
	for i, line := range strings.Split(text, "\n") {
		odd, err := s.addLine(line)
		if err != nil {
			return s, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		if odd != nil && s.odd == nil {
			s.odd = fmt.Errorf("%s:%d: %w", file, i+1, odd)
		}
	}
	switch {
	case s.only == "" && len(s.byName) == 0:
		return s, fmt.Errorf("%s: no digests in it: it is empty or cut off", file)
	case s.only != "" && len(s.byName) > 0:
		return s, fmt.Errorf("%s: a digest without a name among others", file)
	}
	return s, nil
}

var errLine = errors.New("not a line of sha256sum: want 64 hex digits, two spaces and a name")

// addLine parses one line of the list. odd says why the list of a release must not have this line.
func (s *Sums) addLine(line string) (odd, err error) {
	if !plainLine().MatchString(line) {
		odd = errLine
	}
	line = strings.TrimSuffix(line, "\r")
	if line == "" || line[0] == '#' {
		return odd, nil
	}
	escaped, sum, name := "", "", ""
	if m := bsdLine().FindStringSubmatch(line); m != nil {
		escaped, name, sum = m[1], m[2], m[3]
	} else if m := sumLine().FindStringSubmatch(line); m != nil && len(line) <= maxSumsLineBytes {
		escaped, sum, name = m[1], m[2], m[3]
	} else {
		return odd, errLine
	}
	sum = strings.ToLower(sum)
	if escaped != "" {
		name = nameUnescaper.Replace(name)
	}
	if name == "" {
		if s.only != "" && s.only != sum {
			return odd, errors.New("a second digest without a name")
		}
		s.only = sum
		return odd, nil
	}
	if odd == nil {
		odd = checkName(name)
	}
	name = strings.TrimPrefix(name, "./")
	if old, ok := s.byName[name]; ok {
		if old != sum {
			return odd, fmt.Errorf("%q has two digests: it is named twice", plaintext.OneLine(name))
		}
		if odd == nil {
			odd = fmt.Errorf("%q is named twice", name)
		}
		return odd, nil
	}
	s.Names, s.byName[name] = append(s.Names, name), sum
	return odd, nil
}

// checkName returns an error for a name with a path, a leading dot, or invisible characters.
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

// CheckRelease returns an error for a list that no release has: each line must be complete and
// plain, and name another file in the list's own folder.
func (s Sums) CheckRelease() error { return s.odd }

// Named returns the digest of a file in the list's own folder. It ignores lines for files in other
// folders, even if their last name is the same.
func (s Sums) Named(name string) (digest string, ok bool) {
	digest, ok = s.byName[name]
	return digest, ok
}

// DigestOf returns the digest of a file: from its line, or the only digest of a list that is called as
// the file with a suffix, as disk.img.sha256 is for disk.img.
func (s Sums) DigestOf(name string) (string, error) {
	if digest, ok := s.Named(name); ok {
		return digest, nil
	}
	if s.only == "" {
		return "", fmt.Errorf("%s names no digest of %s", s.file, name)
	}
	list, _, _ := strings.Cut(path.Base(s.file), "?")
	if !strings.HasPrefix(list, name+".") {
		return "", fmt.Errorf("%s has a digest without a name, and is not called %s.sha256\nnext: mv %s %s.sha256  # or give the digest itself, as --digest=sha256:…", s.file, name, plaintext.Quote(s.file), plaintext.Quote(path.Join(path.Dir(s.file), name)))
	}
	return s.only, nil
}
