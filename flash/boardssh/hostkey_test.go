package boardssh

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/plaintext"
)

// The old key is to be forgotten where it is pinned, which need not be the first file.
func TestForgetNamesTheFileThatPins(t *testing.T) {
	s := sshtest.StartSSHD(t)
	other, err := sshd.WriteKey(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	name := "[127.0.0.1]:" + strconv.Itoa(s.Port)
	for kind, line := range map[string]string{"another key": string(ssh.MarshalAuthorizedKey(other)), "another kind": ecdsaLine(t)} {
		dir := t.TempDir()
		a := addressOf(s)
		a.KnownHosts = []string{filepath.Join(dir, "mine"), filepath.Join(dir, "everyone's")}
		for i, content := range []string{"elsewhere " + line, name + " " + line} {
			if err := os.WriteFile(a.KnownHosts[i], []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Dial(t.Context(), a)
		if want := "\nnext: ssh-keygen -R '" + name + "' -f " + plaintext.Quote(a.KnownHosts[1]); !errors.Is(err, ErrHostKey) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: Dial = %v; want it to end with %q", kind, err, want)
		}
	}
}

// A pin without a file, as of this run alone, gives no step.
func TestForgetWithoutFile(t *testing.T) {
	l := &login{addr: Address{Host: "h", Port: 22}}
	if got := l.forgetHint([]pin{{}}); !strings.HasSuffix(got, "forget the old key") {
		t.Errorf("forgetHint = %q; want no step", got)
	}
}

func TestSSHArgsNameAllKnownHosts(t *testing.T) {
	l := &login{addr: Address{Host: "h", User: "u", Port: 22, KnownHosts: []string{"/a", "/my files/b"}, Recorded: "/c"}}
	if got, want := l.sshArgs(), "-o 'UserKnownHostsFile=/a \"/my files/b\" /c' -p 22 u@h"; got != want {
		t.Errorf("sshArgs = %q; want %q", got, want)
	}
}
