package trust

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"

	"slipway/layers/plaintext"
)

// revokedKeys maps the fingerprints of keys that may not sign any more to their lines in file.
type revokedKeys struct {
	file string
	line map[string]int
}

const krlMagic = "SSHKRL\n\x00"

var fingerprintForm = plaintext.Regexp(`^SHA256:[A-Za-z0-9+/]{43}$`)

// Revoke returns the signers without the keys in data, a list with an OpenSSH public key or a
// fingerprint of ssh-keygen -l on each line. It refuses a binary list, and a GPG keyring in s.
func (s Signers) Revoke(file string, data []byte) (Signers, error) {
	if s.entries == nil {
		return s, fmt.Errorf("%s: only keys of OpenSSH can be revoked, and %s has none", file, s.file)
	}
	if bytes.HasPrefix(data, []byte(krlMagic)) {
		return s, fmt.Errorf("%s: a binary list of ssh-keygen -k, which Slipway does not read; list public keys or fingerprints, one a line", file)
	}
	if len(data) > maxSignersBytes {
		return s, fmt.Errorf("%s: more than %d MiB, which no list of revoked keys has", file, maxSignersBytes>>20)
	}
	s.revoked = revokedKeys{file, map[string]int{}}
	n := 0
	for text := range strings.Lines(string(data)) {
		n++
		text = strings.TrimSpace(text)
		if text == "" || text[0] == '#' {
			continue
		}
		fingerprint, err := parseRevoked(text)
		if err != nil {
			return s, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		s.revoked.line[fingerprint] = n
	}
	return s, nil
}

// parseRevoked returns the fingerprint in a line, or that of the public key in the line.
func parseRevoked(text string) (string, error) {
	first, _, _ := strings.Cut(text, " ")
	if strings.HasPrefix(first, "SHA256:") {
		if !fingerprintForm().MatchString(first) {
			return "", errors.New("not a whole fingerprint: SHA256: and 43 letters, as ssh-keygen -l prints it")
		}
		return first, nil
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil || len(options) > 0 || len(rest) > 0 {
		return "", errors.New("neither a public key nor a fingerprint; a line is: ssh-ed25519 AAAA…, or SHA256:…")
	}
	return ssh.FingerprintSHA256(key), nil
}

// check returns an error if the key is revoked.
func (r revokedKeys) check(key ssh.PublicKey) error {
	fingerprint := ssh.FingerprintSHA256(key)
	if n, is := r.line[fingerprint]; is {
		return fmt.Errorf("%s:%d: the key %s is revoked", r.file, n, fingerprint)
	}
	return nil
}
