package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/crypto/ssh"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

// listMagic begins a key revocation list, which ssh-keygen -k makes.
const listMagic = "SSHKRL\n\x00"

// checkRevoked looks for a key in the user's RevokedHostKeys. As with ssh, a file that
// cannot be read leaves no key trusted.
func checkRevoked(ctx context.Context, file string, key ssh.PublicKey) error {
	if file == "" {
		return nil
	}
	data, err := localfile.Read(file, maxTrustBytes)
	if err != nil {
		return fmt.Errorf("RevokedHostKeys: %w", err)
	}
	if bytes.HasPrefix(data, []byte(listMagic)) {
		return checkRevocationList(ctx, file, key)
	}
	return searchKeys(file, data, key)
}

func searchKeys(file string, data []byte, key ssh.PublicKey) error {
	keys := []ssh.PublicKey{key}
	if cert, ok := key.(*ssh.Certificate); ok {
		keys = append(keys, cert.Key, cert.SignatureKey)
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		listed, _, _, _, err := ssh.ParseAuthorizedKey(line)
		if err != nil {
			return fmt.Errorf("RevokedHostKeys %s:%d: not a public key", file, number)
		}
		for _, k := range keys {
			if sameKey(listed, k) {
				return fmt.Errorf("that key, or who signed it, is revoked by %s:%d", file, number)
			}
		}
	}
	return nil
}

// checkRevocationList has ssh-keygen read a list, which is in ssh-keygen's own format.
func checkRevocationList(ctx context.Context, list string, key ssh.PublicKey) error {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		return fmt.Errorf("RevokedHostKeys %s is a key revocation list, and ssh-keygen, which reads it, is missing: install openssh-client", list)
	}
	f, err := os.CreateTemp("", "slipway-key-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(ssh.MarshalAuthorizedKey(key))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	// ssh-keygen reports by its status whether the key is revoked, and fails if it cannot tell.
	if _, err := run.Output(ctx, run.Command{Argv: []string{"ssh-keygen", "-Q", "-f", list, f.Name()}}); err != nil {
		return fmt.Errorf("that key is revoked by %s, or the list cannot be read (ssh-keygen -Q -f %[1]s KEY.pub)", list)
	}
	return nil
}
