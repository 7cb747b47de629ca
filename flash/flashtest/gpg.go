package flashtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Person is the owner of a key of the real gpg.
type Person struct {
	Ring string // file with the public key, as "gpg --export" writes it
	home string
	user string
}

// NewGPG makes and exports a gpg key. args precede --quick-gen-key. It skips without gpg and gpgv.
func NewGPG(t *testing.T, user, expires string, args ...string) Person {
	t.Helper()
	for _, program := range []string{"gpg", "gpgv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing (Debian packages gnupg and gpgv)", program)
		}
	}
	home, err := os.MkdirTemp("", "gpg") // a test's temporary folder is too long a name for the agent's socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		os.RemoveAll(home)
	})
	p := Person{filepath.Join(home, "ring.gpg"), home, user}
	p.Run(t, append(args, "--passphrase", "", "--quick-gen-key", user, "ed25519", "sign", expires)...)
	p.Export(t)
	return p
}

// Export writes the public key to Ring.
func (p Person) Export(t *testing.T) {
	t.Helper()
	p.Run(t, "--output", p.Ring, "--export", p.user)
}

// Run runs gpg with the person's key; it fails the test if gpg fails.
func (p Person) Run(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("gpg", append([]string{"--batch", "--yes", "--quiet", "--homedir", p.home}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// Sign writes a detached, armored signature of the file at path to path+ending.
func (p Person) Sign(t *testing.T, path, ending string, args ...string) {
	t.Helper()
	p.Run(t, append(args, "--output", path+ending, "--armor", "--detach-sign", path)...)
}
