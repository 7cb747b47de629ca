package trust

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestRevoke(t *testing.T) {
	dir := t.TempDir()
	keygen := func(argv ...string) string {
		t.Helper()
		out, err := exec.Command("ssh-keygen", argv...).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen %q: %v: %s", argv, err, out)
		}
		return string(out)
	}
	readFile := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, name := range []string{"old", "new"} {
		keygen("-q", "-t", "ed25519", "-N", "", "-C", name, "-f", filepath.Join(dir, name))
	}
	old, other := readFile("old.pub"), readFile("new.pub")
	fingerprint := strings.Fields(keygen("-l", "-f", filepath.Join(dir, "old.pub")))[1]
	if err := os.WriteFile(filepath.Join(dir, "image"), []byte("an image"), 0o644); err != nil {
		t.Fatal(err)
	}
	keygen("-q", "-Y", "sign", "-n", "file", "-f", filepath.Join(dir, "old"), filepath.Join(dir, "image"))
	keygen("-q", "-k", "-f", filepath.Join(dir, "krl"), filepath.Join(dir, "old.pub"))
	signers, err := ParseSigners("signers", []byte("ann "+old+"bob "+other))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, list, wantErr, wantVerify string }{
		{"nobody", "# none yet\n\n", "", ""},
		{"another key", other, "", ""},
		{"the key", "# lost\n" + old, "", "gone:2: the key " + fingerprint + " is revoked"},
		{"its fingerprint", fingerprint + "\n", "", "gone:1: the key " + fingerprint + " is revoked"},
		{"its fingerprint with a comment", other + fingerprint + " lost in May", "", "gone:2: the key"},
		{"a cut fingerprint", fingerprint[:40], "gone:1: not a whole fingerprint", ""},
		{"a word", other + "ann\n", "gone:2: neither a public key nor a fingerprint", ""},
		{"a line of authorized_keys", "no-pty " + old, "gone:1: neither a public key", ""},
		{"a list of ssh-keygen", readFile("krl"), "gone: a binary list of ssh-keygen -k", ""},
		{"a huge list", strings.Repeat("#", maxSignersBytes+1), "gone: more than 1 MiB", ""},
	} {
		left, err := signers.Revoke("gone", []byte(tt.list))
		if !saysError(err, tt.wantErr) {
			t.Errorf("%s: Revoke = %v; want %q", tt.name, err, tt.wantErr)
		}
		if err != nil {
			continue
		}
		if _, err = left.Verify(t.Context(), []byte(readFile("image.sig")), strings.NewReader("an image")); !saysError(err, tt.wantVerify) {
			t.Errorf("%s: Verify = %v; want %q", tt.name, err, tt.wantVerify)
		}
	}
	if _, err := (Signers{file: "ring", ring: []byte("x")}).Revoke("gone", []byte(old)); !saysError(err, "only keys of OpenSSH") {
		t.Errorf("of GPG: %v", err)
	}
}

func saysError(err error, want string) bool {
	if want == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), want)
}

// A list that is taken has a fingerprint for each line that is no comment.
func FuzzRevoke(f *testing.F) {
	f.Add([]byte("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB3q0vBN0rDyg5YlJuqxVb5mRE8nyWXcB0mJm2m0pXhB lost\n"))
	f.Add([]byte("SHA256:Lhqw90+7NoWvni3vhs+Xz0lbsyTYC3/My9Xg2lOUguU in May\n# none\n"))
	f.Add([]byte(krlMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := (Signers{entries: []allowedSigner{}}).Revoke("gone", data)
		if err != nil {
			return
		}
		for line := range bytes.Lines(data) {
			line = bytes.TrimSpace(line)
			if len(line) > 0 && line[0] != '#' && len(s.revoked.line) == 0 {
				t.Errorf("%q revokes nothing", line)
			}
		}
		for fingerprint := range s.revoked.line {
			if !fingerprintForm().MatchString(fingerprint) {
				t.Errorf("%q is no fingerprint", fingerprint)
			}
		}
	})
}
