package boardssh

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh/sshtest"
)

// Dropbear 2022.83 crashes where it is offered RSA before the kind of key that it has.
func TestDropbear(t *testing.T) {
	board := addressOf(sshtest.StartSSHD(t))
	other := filepath.Join(t.TempDir(), "other")
	runKeygen(t, "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", other)
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		t.Run(kind, func(t *testing.T) {
			a := dropbear(t, kind)
			text := "the-board " + readPublicKey(t, other+".pub") + "\n" + readPublicKey(t, a.KnownHosts[0]) + "\n"
			if err := os.WriteFile(a.KnownHosts[0], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := dialBoard(t, a)
			if r, err := c.Run(t.Context(), "echo", "here"); err != nil || string(r.Stdout) != "here\n" {
				t.Errorf("Run = %q, %v", r.Stdout, err)
			}
			behind := board
			behind.Via = &a
			dialBoard(t, behind)
		})
	}
}

func TestFirstContactWithDropbear(t *testing.T) {
	nobody(t)
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		t.Run(kind, func(t *testing.T) {
			a := dropbear(t, kind)
			text := readPublicKey(t, a.KnownHosts[0])
			fp := ssh.FingerprintSHA256(trustKey(t, strings.TrimPrefix(text, "the-board ")))
			_, _, authority := sshtest.NewKey(t)
			if err := os.WriteFile(a.KnownHosts[0], []byte("@cert-authority * "+authority+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Dial(t.Context(), a); !errors.Is(err, ErrHostKey) || !strings.Contains(err.Error(), "--pin="+fp) {
				t.Errorf("Dial = %v; want %v with the fingerprint %s", err, ErrHostKey, fp)
			}
			a.Pins = []string{fp}
			dialBoard(t, a)
		})
	}
}
