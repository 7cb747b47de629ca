package trust

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// namespace is the purpose for which a file must be signed, as by "ssh-keygen -Y sign -n file".
// Slipway refuses a signature for another purpose, such as a git commit.
const namespace = "file"

const (
	magic     = "SSHSIG"
	armorHead = "-----BEGIN SSH SIGNATURE-----"
	armorFoot = "-----END SSH SIGNATURE-----"
)

// Signers is one parsed list of trusted signers: allowed signers, or a keyring.
type Signers struct {
	file    string
	entries []allowedSigner // of allowed_signers
	ring    []byte          // of GPG, as "gpg --export" writes it or a keybox
}

// ParseSigners parses a file of allowed signers, or a GPG keyring. file is for errors. It refuses
// secret keys, keys of GPG as text, and keys of minisign.
func ParseSigners(file string, data []byte) (Signers, error) {
	s := Signers{file: file}
	if isRing(data) && len(data) <= maxRingBytes {
		s.ring = data
		return s, nil
	}
	if bytes.HasPrefix(data, []byte("-----BEGIN PGP PUBLIC KEY")) {
		return s, fmt.Errorf("%s: GPG's key as text, which gpgv does not take\nnext: gpg --dearmor -o keyring.gpg %[1]s", file)
	}
	if isSecret(data) {
		return s, fmt.Errorf("%s: a secret key, and signers are named by their public keys\nnext: gpg --export -o keyring.gpg  # or, for a key of ssh, ssh-keygen -y -f %[1]s", file)
	}
	if len(data) > maxSignersBytes {
		return s, fmt.Errorf("%s: more than %d MiB, which no list of signers has", file, maxSignersBytes>>20)
	}
	if bytes.HasPrefix(data, []byte("untrusted comment:")) {
		return s, fmt.Errorf("%s: a key of minisign, which Slipway does not take\nnext: minisign -V -p %[1]s -m IMAGE  # then flash the image by its --digest", file)
	}
	var err error
	if s.entries, err = parseAllowed(data); err != nil {
		return s, fmt.Errorf("%s%w", file, err)
	}
	return s, nil
}

// Endings returns the suffixes that these signers' signature files have.
func (s Signers) Endings() []string {
	if s.ring != nil {
		return []string{".asc", ".sig"}
	}
	return []string{".sig"}
}

// SignCommand returns the command that signs a file for these signers.
func (s Signers) SignCommand(file string) string {
	file = plaintext.Quote(file)
	if s.ring != nil {
		return "gpg --armor --detach-sign " + file
	}
	return "ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n file " + file
}

// Signer is who signed a file.
type Signer struct {
	Name        string `json:"name"`                  // the principals of allowed_signers, or the name of a key
	KeyType     string `json:"keyType,omitempty"`     // of OpenSSH
	Fingerprint string `json:"fingerprint,omitempty"` // of OpenSSH
}

// String returns the name, for OpenSSH with the key's type and fingerprint.
func (s Signer) String() string {
	if s.KeyType == "" {
		return s.Name
	}
	return fmt.Sprintf("%s (%s %s)", s.Name, s.KeyType, s.Fingerprint)
}

// Verify verifies a signature of OpenSSH or GPG over all of data, and returns the signer, who must
// be one of s. It refuses a signature longer than these programs write, and fails once ctx ends.
func (s Signers) Verify(ctx context.Context, signature []byte, data io.Reader) (Signer, error) {
	in := &errorReader{Reader: localfile.WithContext(ctx, data, nil)}
	switch {
	case len(signature) > maxSignatureBytes:
		return Signer{}, fmt.Errorf("a signature of more than %d KiB", maxSignatureBytes>>10)
	case s.ring != nil:
		name, err := s.verifyRing(ctx, signature, in)
		return Signer{Name: name}, err
	}
	return s.verifySSH(signature, in)
}

// verifySSH verifies an OpenSSH signature over all of data by an allowed key.
func (s Signers) verifySSH(signature []byte, data io.Reader) (Signer, error) {
	sig, err := parseSSH(signature)
	if err != nil {
		return Signer{}, err
	}
	// The signer is checked first, since reading the image takes long.
	name, err := s.findSigner(sig.key, time.Now())
	if err != nil {
		return Signer{}, err
	}
	if err := sig.verifySignature(data); err != nil {
		return Signer{}, err
	}
	return Signer{name, sig.key.Type(), ssh.FingerprintSHA256(sig.key)}, nil
}

// errorReader keeps the first error but io.EOF of its Reader, since gpgv does not return it.
type errorReader struct {
	io.Reader
	err error
}

// Read reads, and keeps the first error but io.EOF in r.err.
func (r *errorReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if !errors.Is(err, io.EOF) {
		r.err = cmp.Or(r.err, err)
	}
	return n, err
}

// sshSignature is a parsed OpenSSH signature.
type sshSignature struct {
	key      ssh.PublicKey
	reserved string
	hash     string
	sig      ssh.Signature
}

// wire is the binary form of a signature, after the word SSHSIG.
type wire struct {
	Version   uint32
	Key       []byte
	Namespace string
	Reserved  string
	Hash      string
	Signature []byte
}

// parseSSH parses an armored signature, as OpenSSH's PROTOCOL.sshsig describes it. It refuses one
// for another namespace, and unknown versions and digests.
func parseSSH(data []byte) (sshSignature, error) {
	blob, err := dearmor(string(data))
	if err != nil {
		return sshSignature{}, err
	}
	rest, ok := bytes.CutPrefix(blob, []byte(magic))
	if !ok {
		return sshSignature{}, errors.New("not an SSH signature: its text begins with another word")
	}
	var w wire
	if err := ssh.Unmarshal(rest, &w); err != nil {
		return sshSignature{}, fmt.Errorf("not a whole SSH signature: %w", err)
	}
	switch {
	case w.Version != 1:
		return sshSignature{}, fmt.Errorf("an SSH signature of version %d; version 1 is known", w.Version)
	case w.Namespace != namespace:
		return sshSignature{}, fmt.Errorf("signed for %q; a file's signature is for %q (ssh-keygen -Y sign -n file)", shorten(w.Namespace), namespace)
	case hashes[w.Hash] == nil:
		return sshSignature{}, fmt.Errorf("signed over a digest of kind %q; sha256 and sha512 are known", shorten(w.Hash))
	}
	s := sshSignature{reserved: w.Reserved, hash: w.Hash}
	if err := s.parseKey(w.Key); err != nil {
		return s, err
	}
	return s, s.parseSignature(w.Signature)
}

// parseKey sets s.key from its binary form. It refuses DSA, certificates and unusual encodings.
func (s *sshSignature) parseKey(data []byte) error {
	var err error
	if s.key, err = ssh.ParsePublicKey(data); err != nil {
		return fmt.Errorf("the signer's key: %s", shorten(err.Error())) // the error repeats the file's text
	}
	if s.key.Type() == "ssh-dss" {
		return errors.New("signed with a DSA key, whose signatures can be forged; sign with an Ed25519 key")
	}
	if _, is := s.key.(*ssh.Certificate); is {
		return errors.New("signed with a certificate; only plain keys are taken: sign with the key itself, and list that")
	}
	if !bytes.Equal(s.key.Marshal(), data) {
		return errors.New("the signer's key is written in an odd way")
	}
	return nil
}

// parseSignature sets s.sig. It refuses another kind than that of s.key, and RSA over SHA-1.
func (s *sshSignature) parseSignature(data []byte) error {
	if err := ssh.Unmarshal(data, &s.sig); err != nil {
		return fmt.Errorf("not a whole SSH signature: %w", err)
	}
	want := []string{s.key.Type()}
	if want[0] == ssh.KeyAlgoRSA { // over SHA-1 it can be forged, so OpenSSH refuses it too
		want = []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}
	}
	if !slices.Contains(want, s.sig.Format) {
		return fmt.Errorf("a signature of kind %q by a key of kind %s; want %s", shorten(s.sig.Format), s.key.Type(), strings.Join(want, " or "))
	}
	return nil
}

var hashes = map[string]func() hash.Hash{"sha256": sha256.New, "sha512": sha512.New}

// verifySignature verifies the signature over all of data.
func (s sshSignature) verifySignature(data io.Reader) error {
	h := hashes[s.hash]()
	if _, err := io.Copy(h, data); err != nil {
		return err
	}
	if err := s.key.Verify(signedBytes(s.reserved, s.hash, h.Sum(nil)), &s.sig); err != nil {
		return fmt.Errorf("the signature is not of this file: %w", err)
	}
	return nil
}

// signedBytes returns the bytes that the key signs: a structure with the file's digest.
func signedBytes(reserved, digest string, sum []byte) []byte {
	return append([]byte(magic), ssh.Marshal(struct{ Namespace, Reserved, Hash, Sum string }{namespace, reserved, digest, string(sum)})...)
}

// dearmor decodes the base64 between a signature's first and last line. It refuses text before or
// after them, which a reader could mistake for signed text.
func dearmor(text string) ([]byte, error) {
	text = strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n"))
	body, ok := strings.CutPrefix(text, armorHead+"\n")
	if !ok {
		return nil, fmt.Errorf("not an SSH signature: it does not begin with %s", armorHead)
	}
	body, ok = strings.CutSuffix(body, "\n"+armorFoot)
	if !ok {
		return nil, fmt.Errorf("not a whole SSH signature: it does not end with %s", armorFoot)
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(strings.ReplaceAll(body, "\n", ""))
	if err != nil {
		return nil, fmt.Errorf("not an SSH signature: %w", err)
	}
	return blob, nil
}

// shorten returns an untrusted text without control characters, cut to 60 bytes and "…" if longer.
func shorten(s string) string {
	s = plaintext.OneLine(s)
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}
