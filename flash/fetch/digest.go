package fetch

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"unicode"

	"slipway/layers/lazy"
)

// maxSumsBytes is more than a release's list of digests has.
const maxSumsBytes = 4 << 20

// Sums is a list of digests, as sha256sum writes it.
type Sums struct {
	file   string
	byName map[string]string
	only   string // the digest in a file that holds nothing else
}

// ParseDigest reads sha256:HEX. ok is false where text is no digest, so that it may be
// a reference to a list of digests.
func ParseDigest(text string) (digest string, ok bool, err error) {
	algorithm, sum, ok := strings.Cut(text, ":")
	if !ok || !algorithmPattern().MatchString(algorithm) {
		return "", false, nil
	}
	sum = strings.ToLower(sum)
	if algorithm != "sha256" || !hexPattern().MatchString(sum) {
		return "", true, fmt.Errorf("%q: want sha256: and 64 hex digits\nnext: sha256sum FILE", text)
	}
	return sum, true, nil
}

var (
	algorithmPattern = lazy.Regexp(`^(?:sha|md|blake|b)[0-9][0-9a-z]*$`)
	hexPattern       = lazy.Regexp(`^[0-9a-f]{64}$`)
	sumLine          = lazy.Regexp(`^(\\?)([0-9A-Fa-f]{64})(?: [ *](.+))?$`)
	bsdLine          = lazy.Regexp(`^(\\?)SHA256 \((.+)\) = ([0-9A-Fa-f]{64})$`)
)

// ParseSums reads a list such as SHA256SUMS: the lines of sha256sum, also with --tag,
// or a single digest.
func ParseSums(file string, data []byte) (Sums, error) {
	s := Sums{file: file, byName: map[string]string{}}
	if len(data) > maxSumsBytes {
		return s, fmt.Errorf("%s: more than %d MiB, which no list of digests has", file, maxSumsBytes>>20)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxReferenceBytes*2)
	n := 0
	for lines.Scan() {
		n++
		line := strings.TrimRight(lines.Text(), " \t\r")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.addLine(line); err != nil {
			return s, fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	switch {
	case lines.Err() != nil:
		return s, fmt.Errorf("%s:%d: %w", file, n+1, lines.Err())
	case s.only == "" && len(s.byName) == 0:
		return s, fmt.Errorf("%s: no digests in it", file)
	case s.only != "" && len(s.byName) > 0:
		return s, fmt.Errorf("%s: a digest without a name among others", file)
	}
	return s, nil
}

// addLine parses one line of the list.
func (s *Sums) addLine(line string) error {
	escaped, sum, name := "", "", ""
	if m := bsdLine().FindStringSubmatch(line); m != nil {
		escaped, name, sum = m[1], m[2], m[3]
	} else if m := sumLine().FindStringSubmatch(line); m != nil {
		escaped, sum, name = m[1], m[2], m[3]
	} else {
		return errors.New("not a line of sha256sum: want 64 hex digits, two spaces and a name")
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
	base := path.Base(name)
	if old, ok := s.byName[base]; ok && old != sum {
		return fmt.Errorf("%q has two digests", printable(base))
	}
	s.byName[base] = sum
	return nil
}

var nameUnescaper = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")

// Of returns the digest of a file, by its name without folders. A list that is a single
// digest has it for every name. ok is false where the list has none.
func (s Sums) Of(name string) (digest string, ok bool) {
	if s.only != "" {
		return s.only, true
	}
	return s.Named(name)
}

// Named returns the digest of a file that the list names.
func (s Sums) Named(name string) (digest string, ok bool) {
	digest, ok = s.byName[name]
	return digest, ok
}

// SumOf returns the SHA-256 of a file's content.
func SumOf(ctx context.Context, path string, count func(int64)) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, &countingReader{ctx, f, count}); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// countingReader reports the bytes read through it. It fails once its context ends.
type countingReader struct {
	ctx   context.Context
	in    io.Reader
	count func(int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.in.Read(p)
	c.count(int64(n))
	return n, err
}

// printable replaces the characters that a terminal must not receive by question marks.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
