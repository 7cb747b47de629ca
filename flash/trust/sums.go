package trust

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// SumsName is the name of a list of digests, as "sha256sum -c" reads it.
const SumsName = "SHA256SUMS"

const (
	maxSumsBytes     = 4 << 20 // more than a release's list of digests has
	maxSumsLineBytes = 8 << 10
)

// ParseDigest parses sha256:HEX and returns HEX in lower case. ok is false if text is no digest, so
// perhaps it names a list. Other algorithms and a wrong length are an error.
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
	sumLine          = plaintext.Regexp(`^(\\?)([0-9A-Fa-f]{64})(?: [ *](.+))?$`)
	bsdLine          = plaintext.Regexp(`^(\\?)SHA256 \((.+)\) = ([0-9A-Fa-f]{64})$`)
	nameUnescaper    = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")
)

// Sums is a list of digests, as sha256sum writes and reads it.
type Sums struct {
	file   string
	byName map[string]string
	only   string // the digest in a file that holds nothing else
}

// ParseSums parses a list such as SHA256SUMS: the lines of sha256sum, also with --tag, --binary and
// escaped names, or a single digest. Like sha256sum it accepts capital digits, comments, empty
// lines and carriage returns. Unlike sha256sum it returns an error for a name with two digests.
func ParseSums(file string, data []byte) (Sums, error) {
	s := Sums{file: file, byName: map[string]string{}}
	if len(data) > maxSumsBytes {
		return s, fmt.Errorf("%s: more than %d MiB, which no list of digests has", file, maxSumsBytes>>20)
	}
	for i, line := range strings.Split(string(data), "\n") {
		if err := s.addLine(line); err != nil {
			return s, fmt.Errorf("%s:%d: %w", file, i+1, err)
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

// addLine adds the digest in a line to s. It accepts empty lines and comments.
func (s *Sums) addLine(line string) error {
	line = strings.TrimSuffix(line, "\r")
	if line == "" || line[0] == '#' {
		return nil
	}
	escaped, sum, name := "", "", ""
	if m := bsdLine().FindStringSubmatch(line); m != nil {
		escaped, name, sum = m[1], m[2], m[3]
	} else if m := sumLine().FindStringSubmatch(line); m != nil && len(line) <= maxSumsLineBytes {
		escaped, sum, name = m[1], m[2], m[3]
	} else {
		return errLine
	}
	sum = strings.ToLower(sum)
	if escaped != "" {
		name = nameUnescaper.Replace(name)
	}
	if name == "" {
		if s.only != "" && s.only != sum {
			return errors.New("a second digest without a name")
		}
		s.only = sum
		return nil
	}
	name = strings.TrimPrefix(name, "./")
	if old, ok := s.byName[name]; ok && old != sum {
		return fmt.Errorf("%q has two digests: it is named twice", plaintext.OneLine(name))
	}
	s.byName[name] = sum
	return nil
}

// Named returns the digest of a file in the list's own folder, not of that name in another folder.
func (s Sums) Named(name string) (digest string, ok bool) {
	digest, ok = s.byName[name]
	return digest, ok
}

// DigestOf returns the digest of a file: from its line, or the only digest, without a name, of a
// list called as the file with a suffix, as disk.img.sha256 is for disk.img.
func (s Sums) DigestOf(name string) (string, error) {
	if digest, ok := s.Named(name); ok {
		return digest, nil
	}
	if s.only == "" {
		err := fmt.Errorf("%s names no digest of %s", s.file, name)
		if strings.HasPrefix(s.file, "http://") || strings.HasPrefix(s.file, "https://") {
			err = fmt.Errorf("%w\nnext: curl %s", err, plaintext.Quote(s.file))
		} else if localfile.Exists(s.file) {
			err = fmt.Errorf("%w\nnext: cat %s", err, plaintext.Quote(s.file))
		}
		return "", err
	}
	list, _, _ := strings.Cut(path.Base(s.file), "?")
	if !strings.HasPrefix(list, name+".") {
		return "", fmt.Errorf("%s has a digest without a name, and is not called %s.sha256\nnext: mv %s %s.sha256  # or give the digest itself, as --digest=sha256:…", s.file, name, plaintext.Quote(s.file), plaintext.Quote(path.Join(path.Dir(s.file), name)))
	}
	return s.only, nil
}
