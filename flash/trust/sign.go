package trust

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

const (
	maxKeyBytes = 64 << 10
	armorWidth  = 70 // as ssh-keygen wraps it
)

// Sign signs data as "ssh-keygen -Y sign -n file" does.
func Sign(key ssh.Signer, data io.Reader) ([]byte, error) {
	h := sha512.New()
	if _, err := io.Copy(h, data); err != nil {
		return nil, err
	}
	sig, err := signBytes(key, signedBytes("", "sha512", h.Sum(nil)))
	if err != nil {
		return nil, fmt.Errorf("sign by %s %s: %w", key.PublicKey().Type(), ssh.FingerprintSHA256(key.PublicKey()), err)
	}
	w := wire{1, key.PublicKey().Marshal(), namespace, "", "sha512", ssh.Marshal(sig)}
	return armor(append([]byte(magic), ssh.Marshal(w)...)), nil
}

// signBytes signs data with the key. It makes RSA keys sign with SHA-512, because nobody accepts
// their default, SHA-1.
func signBytes(key ssh.Signer, data []byte) (*ssh.Signature, error) {
	if key.PublicKey().Type() != ssh.KeyAlgoRSA {
		return key.Sign(rand.Reader, data)
	}
	rsa, ok := key.(ssh.AlgorithmSigner)
	if !ok {
		return nil, errors.New("the key signs only over SHA-1")
	}
	return rsa.SignWithAlgorithm(rand.Reader, data, ssh.KeyAlgoRSASHA512)
}

func armor(blob []byte) []byte {
	text := []byte(base64.StdEncoding.EncodeToString(blob))
	lines := slices.Concat([][]byte{[]byte(armorHead)}, slices.Collect(slices.Chunk(text, armorWidth)), [][]byte{[]byte(armorFoot), nil})
	return bytes.Join(lines, []byte("\n"))
}

// ReadKey reads a private key without a passphrase, which only its owner may read. If the file is a
// public key, ReadKey returns the private key from ssh-agent.
func ReadKey(path string) (ssh.Signer, error) {
	data, err := localfile.Read(path, maxKeyBytes)
	if err != nil {
		return nil, localfile.ExplainUnreadable(path, err)
	}
	if public, _, _, _, err := ssh.ParseAuthorizedKey(data); err == nil {
		return findInAgent(path, public)
	}
	key, err := ssh.ParsePrivateKey(data)
	if errors.As(err, new(*ssh.PassphraseMissingError)) {
		return nil, fmt.Errorf("read the key %s: it has a passphrase, and Slipway asks for none\nnext: ssh-add %[2]s  # then name %[2]s.pub", path, plaintext.Quote(path))
	}
	if err != nil {
		return nil, fmt.Errorf("read the key %s: %s", path, shorten(err.Error()))
	}
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o077 != 0 {
		return nil, fmt.Errorf("read the key %s: others on this machine may read it (mode %04o)\nnext: chmod 600 %s", path, info.Mode().Perm(), plaintext.Quote(path))
	}
	return key, checkKind(path, key.PublicKey())
}

// checkKind returns an error for a certificate or a DSA key, whose signatures Verify refuses.
func checkKind(path string, key ssh.PublicKey) error {
	_, certificate := key.(*ssh.Certificate)
	if certificate || key.Type() == "ssh-dss" {
		return fmt.Errorf("read the key %s: Verify takes no signature of kind %s\nnext: ssh-keygen -t ed25519 -f key", path, key.Type())
	}
	return nil
}

// findInAgent returns the key of ssh-agent that belongs to public. The connection to the agent
// stays open, because the key signs over it.
func findInAgent(path string, public ssh.PublicKey) (ssh.Signer, error) {
	if err := checkKind(path, public); err != nil {
		return nil, err
	}
	conn, err := net.Dial("unix", cmp.Or(os.Getenv("SSH_AUTH_SOCK"), "/nonexistent"))
	if err != nil {
		return nil, fmt.Errorf("reach ssh-agent for the public key %s: %w\nnext: eval $(ssh-agent) && ssh-add %s", path, err, plaintext.Quote(strings.TrimSuffix(path, ".pub")))
	}
	keys, err := agent.NewClient(conn).Signers()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("list the keys of ssh-agent: %w", err)
	}
	at := slices.IndexFunc(keys, func(k ssh.Signer) bool { return bytes.Equal(k.PublicKey().Marshal(), public.Marshal()) })
	if at < 0 {
		conn.Close()
		return nil, fmt.Errorf("find %s in ssh-agent: it has %d keys, and not this one\nnext: ssh-add %s", path, len(keys), plaintext.Quote(strings.TrimSuffix(path, ".pub")))
	}
	return keys[at], nil
}
