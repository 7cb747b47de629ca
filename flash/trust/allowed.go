package trust

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"
)

const (
	maxSignersBytes = 1 << 20
	maxLineBytes    = 64 << 10
)

// allowedSigner is one line of a file of allowed signers; ssh-keygen(1) describes the format.
type allowedSigner struct {
	line       int
	principals string
	authority  bool // signs certificates, which are not supported
	namespaces []string
	after      time.Time // zero: always
	before     time.Time
	key        ssh.PublicKey
}

// parseAllowed parses a file of allowed signers, at least one. Errors begin with ":LINE:", or ":".
func parseAllowed(data []byte) ([]allowedSigner, error) {
	var entries []allowedSigner
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxLineBytes)
	n := 0
	for lines.Scan() {
		n++
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		e, err := parseSigner(text)
		if err != nil {
			return nil, fmt.Errorf(":%d: %w", n, err)
		}
		e.line = n
		entries = append(entries, e)
	}
	switch {
	case lines.Err() != nil:
		return nil, fmt.Errorf(":%d: %w", n+1, lines.Err())
	case len(entries) == 0:
		return nil, errors.New(": it names no signer; a line is: NAME ssh-ed25519 AAAA…")
	}
	return entries, nil
}

// parseSigner parses a line: principals [options] type key [comment].
func parseSigner(text string) (allowedSigner, error) {
	var e allowedSigner
	words := append(splitQuoted(text, " \t"), "", "", "") // those that may be missing
	e.principals = strings.Trim(words[0], `"`)
	if e.principals == "" || strings.ContainsFunc(e.principals, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return e, errors.New("no name of a signer before the key")
	}
	if !isKeyType(words[1]) {
		if err := e.parseOptions(words[1]); err != nil {
			return e, err
		}
		words = words[1:]
	}
	return e, e.parseKey(words[1], words[2])
}

// parseKey sets e.key from base64. It refuses a certificate, and a key of another kind than kind.
func (e *allowedSigner) parseKey(kind, encoded string) error {
	if !isKeyType(kind) {
		return fmt.Errorf("%q is no kind of key; a line is: NAME [OPTIONS] ssh-ed25519 AAAA…", shorten(kind))
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return errors.New("the key is not base64")
	}
	if e.key, err = ssh.ParsePublicKey(data); err != nil {
		return fmt.Errorf("the key: %s", shorten(err.Error()))
	}
	if e.key.Type() != kind {
		return fmt.Errorf("a key of kind %s is called %s", shorten(e.key.Type()), shorten(kind))
	}
	if _, is := e.key.(*ssh.Certificate); is {
		return errors.New("a certificate; list plain keys")
	}
	return nil
}

func isKeyType(s string) bool {
	return strings.HasPrefix(s, "ssh-") || strings.HasPrefix(s, "ecdsa-") || strings.HasPrefix(s, "sk-")
}

// parseOptions parses options between commas. It refuses unknown ones, which could be restrictions.
func (e *allowedSigner) parseOptions(text string) error {
	if strings.HasPrefix(text, "AAAA") {
		return errors.New("the line is a public key without the signer's name before it, such as me@example.com")
	}
	for _, option := range splitQuoted(text, ",") {
		name, value, valued := strings.Cut(option, "=")
		if valued {
			if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
				return fmt.Errorf("option %s: want its value in quotes", shorten(name))
			}
			value = value[1 : len(value)-1]
		}
		var err error
		switch name = strings.ToLower(name); {
		case name == "cert-authority" && !valued:
			e.authority = true
		case name == "namespaces" && value != "":
			e.namespaces = strings.Split(value, ",")
		case name == "valid-after" && valued:
			e.after, err = parseTime(value)
		case name == "valid-before" && valued:
			e.before, err = parseTime(value)
		default:
			err = errors.New("unknown, or without a value")
		}
		if err != nil {
			return fmt.Errorf("option %q: %w (known: cert-authority, namespaces=, valid-after=, valid-before=)", shorten(option), err)
		}
	}
	if !e.after.IsZero() && !e.before.IsZero() && !e.before.After(e.after) {
		return errors.New("valid-before is not after valid-after")
	}
	return nil
}

// splitQuoted splits text at separators outside quotes. It keeps the quotes and drops empty parts.
func splitQuoted(text, separators string) []string {
	quoted := false
	return strings.FieldsFunc(text, func(r rune) bool {
		quoted = quoted != (r == '"')
		return !quoted && strings.ContainsRune(separators, r)
	})
}

var layouts = []string{"20060102", "200601021504", "20060102150405"}

// parseTime parses YYYYMMDD[HHMM[SS]] in this machine's time zone, or in UTC if it ends with Z.
func parseTime(text string) (time.Time, error) {
	digits, zulu := strings.CutSuffix(text, "Z")
	zone := time.Local
	if zulu {
		zone = time.UTC
	}
	for _, layout := range layouts {
		if len(digits) == len(layout) {
			return time.ParseInLocation(layout, digits, zone)
		}
	}
	return time.Time{}, errors.New("want YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, with Z behind it for UTC")
}

// findSigner returns the principals of the first line that allows the key at the time now. As for
// ssh-keygen, one such line is enough even if another line forbids the key.
func (s Signers) findSigner(key ssh.PublicKey, now time.Time) (string, error) {
	var why []error
	for _, e := range s.entries {
		if !bytes.Equal(e.key.Marshal(), key.Marshal()) {
			continue
		}
		err := e.checkAllowed(now)
		if err == nil {
			return e.principals, nil
		}
		why = append(why, fmt.Errorf("%s:%d: %s %w", s.file, e.line, e.principals, err))
	}
	if len(why) > 0 {
		return "", errors.Join(why...)
	}
	return "", fmt.Errorf("signed by %s %s, whom %s does not name", key.Type(), ssh.FingerprintSHA256(key), s.file)
}

// checkAllowed returns why the line does not allow its key to sign files at the time now, or nil.
func (e allowedSigner) checkAllowed(now time.Time) error {
	switch {
	case e.authority:
		return errors.New("is a certificate authority (cert-authority), whose certificates are not taken; list plain keys")
	case len(e.namespaces) > 0 && !matchList(e.namespaces, namespace):
		return fmt.Errorf("may sign only for %s (namespaces)", strings.Join(e.namespaces, ", "))
	case !e.after.IsZero() && now.Before(e.after):
		return fmt.Errorf("may sign from %s on (valid-after)", e.after.Format(time.RFC3339))
	case !e.before.IsZero() && now.After(e.before):
		return fmt.Errorf("could sign until %s (valid-before)", e.before.Format(time.RFC3339))
	}
	return nil
}

// matchList reports whether name matches OpenSSH's list of patterns. A match of a pattern after !
// forbids the name. A pattern with [ or \ matches nothing.
func matchList(patterns []string, name string) bool {
	allowed := false
	for _, p := range patterns {
		p, forbids := strings.CutPrefix(p, "!")
		// OpenSSH has no classes of characters and no escapes.
		if match, _ := path.Match(p, name); match && !strings.ContainsAny(p, `[\`) {
			if forbids {
				return false
			}
			allowed = true
		}
	}
	return allowed
}
