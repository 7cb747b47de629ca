package trust

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/crypto/blake2b"
)

// Prefixes of lines in minisign's files.
const (
	untrustedHead = "untrusted comment: "
	trustedHead   = "trusted comment: "
)

// minisignKey is a public key: Ed25519 with a number that signatures refer to.
type minisignKey struct {
	id  [8]byte
	key ed25519.PublicKey
}

// keyName returns the number as minisign prints it, without leading zeros.
func keyName(id [8]byte) string { return fmt.Sprintf("%X", binary.LittleEndian.Uint64(id[:])) }

// parseMinisignKey parses a minisign public key. Its errors begin with a colon, so that the caller
// can put the file's name before them.
func parseMinisignKey(data []byte) (*minisignKey, error) {
	lines := textLines(data)
	if len(lines) != 2 {
		return nil, errors.New(": not a public key of minisign: want a comment and one line behind it")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(lines[1])
	if err != nil || len(raw) != 2+8+ed25519.PublicKeySize || string(raw[:2]) != "Ed" {
		return nil, errors.New(":2: not a public key of minisign")
	}
	k := &minisignKey{key: ed25519.PublicKey(raw[10:])}
	copy(k.id[:], raw[2:])
	return k, nil
}

func textLines(data []byte) []string {
	text := strings.TrimRight(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	return strings.Split(text, "\n")
}

// parseAndVerify verifies a minisign signature over all of data and returns the key's name. It
// refuses the old form, which signs the file itself, because that needs all of it in memory.
func (k *minisignKey) parseAndVerify(signature []byte, data io.Reader) (string, error) {
	lines := textLines(signature)
	if len(lines) != 4 || !strings.HasPrefix(lines[0], untrustedHead) || !strings.HasPrefix(lines[2], trustedHead) {
		return "", errors.New("not a signature of minisign: want two comments, and a line behind each")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(lines[1])
	if err != nil || len(raw) != 2+8+ed25519.SignatureSize {
		return "", errors.New("not a signature of minisign: its second line is none")
	}
	global, err := base64.StdEncoding.Strict().DecodeString(lines[3])
	if err != nil || len(global) != ed25519.SignatureSize {
		return "", errors.New("not a signature of minisign: its fourth line is none")
	}
	switch kind := string(raw[:2]); {
	case kind == "Ed":
		return "", errors.New("a signature of minisign's old form; sign again with minisign 0.6 or newer, without -l")
	case kind != "ED":
		return "", fmt.Errorf("a signature of minisign of kind %q; ED is known", kind)
	case !bytes.Equal(raw[2:10], k.id[:]):
		return "", fmt.Errorf("signed with minisign's key %s, want %s", keyName([8]byte(raw[2:10])), keyName(k.id))
	}
	return k.verifySignature(raw[10:], global, strings.TrimPrefix(lines[2], trustedHead), data)
}

// verifySignature verifies the signature of the trusted comment, and that of the data's BLAKE2b.
func (k *minisignKey) verifySignature(sig, global []byte, comment string, data io.Reader) (string, error) {
	if !ed25519.Verify(k.key, append(slices.Clone(sig), comment...), global) {
		return "", errors.New("the signature's comment is not the signer's")
	}
	h, err := blake2b.New512(nil)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(h, data); err != nil {
		return "", err
	}
	if !ed25519.Verify(k.key, h.Sum(nil), sig) {
		return "", errors.New("the signature is not of this file")
	}
	return "minisign key " + keyName(k.id), nil
}
