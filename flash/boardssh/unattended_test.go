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

// A first contact, with a person who is not asked, returns an error with all that pinning needs.
func TestUnaskedFirstContact(t *testing.T) {
	s := sshtest.StartSSHD(t)
	p := sitDown(t)
	a, fp := unknownServer(t, s)
	_, err := DialUnattended(t.Context(), a)
	var unknown *UnknownKey
	if !errors.Is(err, ErrHostKey) || !errors.As(err, &unknown) {
		t.Fatalf("DialUnattended = %v; want an UnknownKey", err)
	}
	name, _ := a.hostNames()
	if !strings.HasSuffix(unknown.Fingerprint(), " "+fp) || unknown.Name() != name || unknown.ByJumpHost() || unknown.File() != a.PinFile {
		t.Errorf("told of %s %s in %s; want %s %s in %s", unknown.Name(), unknown.Fingerprint(), unknown.File(), name, fp, a.PinFile)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(unknown.Line()))
	if err != nil || ssh.FingerprintSHA256(key) != fp {
		t.Errorf("Line() = %q, %v; want the key of %s", unknown.Line(), err, fp)
	}
	if err := unknown.Pin(); err != nil {
		t.Fatal(err)
	}
	a.KnownHosts = []string{a.PinFile}
	c, err := DialUnattended(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if p.saw() != "" {
		t.Errorf("a person was asked: %s", p.saw())
	}
}

func TestUnaskedFirstContactOfJumpHost(t *testing.T) {
	s := sshtest.StartSSHD(t)
	sitDown(t)
	hop, _ := unknownServer(t, s)
	hop.PinFile = ""
	board := addressOf(s)
	board.Via = &hop
	_, err := DialUnattended(t.Context(), board)
	var unknown *UnknownKey
	if !errors.As(err, &unknown) || !unknown.ByJumpHost() || !strings.Contains(unknown.Machine(), "127.0.0.1") {
		t.Fatalf("DialUnattended = %v; want the jump host's UnknownKey", err)
	}
	if err := unknown.Pin(); err == nil || !strings.Contains(err.Error(), "UserKnownHostsFile") {
		t.Errorf("Pin without a file = %v", err)
	}
}

// A login that is refused says something of a board only if the board itself refused it,
// and it has shown its key by then, also to somebody who has none to log in with.
func TestProved(t *testing.T) {
	s := sshtest.StartSSHD(t)
	with := func(a Address, files ...string) Address {
		a.Identities, a.Agent = files, "none"
		return a
	}
	other, _, _ := sshtest.NewKey(t)
	hop := with(addressOf(s), other)
	behind := addressOf(s)
	behind.Via = &hop
	for _, tt := range []struct {
		name string
		to   Address
		want bool
	}{
		{"another key", with(addressOf(s), other), true},
		{"no key", with(addressOf(s)), true},
		{"refused by the jump host", behind, false},
	} {
		if _, err := DialUnattended(t.Context(), tt.to); !errors.Is(err, ErrLogin) || HostProved(err) != tt.want {
			t.Errorf("%s: %v, Proved = %v; want %v", tt.name, err, HostProved(err), tt.want)
		}
	}
	a, _ := unknownServer(t, s)
	var unknown *UnknownKey
	if _, err := DialUnattended(t.Context(), with(a)); !errors.As(err, &unknown) {
		t.Errorf("a first contact without a key to log in with: %v; want an UnknownKey", err)
	}
}

// A passphrase is asked for once, before; without it the board is refused.
func TestUnlock(t *testing.T) {
	s := sshtest.StartSSHD(t)
	for _, tt := range []struct {
		name, answer string
		want         error
	}{{"given", "secret", nil}, {"not given", "", ErrLogin}} {
		t.Run(tt.name, func(t *testing.T) {
			a := locked(t, s)
			a.Identities = a.Identities[:1]
			behind := addressOf(s)
			behind.Via = &a
			p := sitDown(t, answer{"Passphrase for " + a.Identities[0], tt.answer})
			if err := UnlockKeys(t.Context(), []Address{a, behind, a}); err != nil {
				t.Fatal(err)
			}
			p.satisfied()
			c, err := DialUnattended(t.Context(), a)
			if !errors.Is(err, tt.want) {
				t.Errorf("DialUnattended = %v; want %v", err, tt.want)
			}
			if c != nil {
				c.Close()
			}
			if n := strings.Count(p.saw(), "Passphrase for"); n != 1 {
				t.Errorf("asked %d times; want once:\n%s", n, p.saw())
			}
		})
	}
}

// Nobody is asked where another key can be shown, nor where nobody is.
func TestUnlockIsNotAskedInVain(t *testing.T) {
	s := sshtest.StartSSHD(t)
	p := sitDown(t)
	a := locked(t, s)
	if err := UnlockKeys(t.Context(), []Address{a}); err != nil { // a second key of it is open
		t.Error(err)
	}
	nobody(t)
	a.Identities = a.Identities[:1]
	if err := UnlockKeys(t.Context(), []Address{a}); err != nil || Attended() {
		t.Errorf("UnlockKeys with nobody there = %v, attended %v", err, Attended())
	}
	if _, err := DialUnattended(t.Context(), a); !errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), "ssh-add ") {
		t.Errorf("DialUnattended = %v; want %v, and a word about the agent", err, ErrLogin)
	}
	if p.saw() != "" {
		t.Errorf("a person was asked: %s", p.saw())
	}
}

func TestPinnedRefusesWhatItCannotRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte("@revoked * nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := HasRecorded(file, "board"); err == nil {
		t.Error("HasRecorded = nil; want an error about the revoked key")
	}
}

// An authority or a revoked key in the file of recorded keys counts for nothing.
func TestRecordedKeysHaveNoMarkers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "known_hosts")
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJm2VLoW1yBL2E3gQpJjPAIm1i0m7eJeo6CmvDi5P7sT\n"
	for line, want := range map[string]bool{"board " + key: true, "@cert-authority board " + key: false, "@revoked board " + key: false} {
		if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := HasRecorded(file, "board"); got != want || err != nil {
			t.Errorf("HasRecorded with %q = %v, %v; want %v", line, got, err, want)
		}
	}
}
