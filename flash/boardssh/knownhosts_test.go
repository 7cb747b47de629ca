package boardssh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"slipway/flash/boardssh/sshtest"
)

func trustIn(t *testing.T, text string) *knownHosts {
	t.Helper()
	pins, err := parsePins("known_hosts", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &knownHosts{pins: pins}
}

func TestTrust(t *testing.T) {
	_, key, text := sshtest.NewKey(t)
	_, _, other := sshtest.NewKey(t)
	board := Address{Host: "board.lab", Port: 22}
	odd := Address{Host: "board.lab", Port: 2222}
	alias := Address{Host: "10.0.0.7", Port: 2222, HostKeyAlias: "serial-0042"}
	tests := []struct {
		name, lines string
		at          Address
		want        error
	}{
		{"nothing", "", board, errUnknown},
		{"the name", "board.lab " + text, board, nil},
		{"one of the names", "a,board.lab,c " + text, board, nil},
		{"in capitals", "BOARD.lab " + text, board, nil},
		{"a pattern", "*.lab " + text, board, nil},
		{"a pattern with ?", "boar?.lab " + text, board, nil},
		{"a pattern that is not for it", "*.lab,!board.* " + text, board, errUnknown},
		{"another key", "board.lab " + other, board, errChanged},
		{"another key and this one", "board.lab " + other + "\nboard.lab " + text, board, nil},
		{"hashed", knownhosts.HashHostname("board.lab") + " " + text, board, nil},
		{"hashed, another", knownhosts.HashHostname("door.lab") + " " + text, board, errUnknown},
		{"the port", "[board.lab]:2222 " + text, odd, nil},
		{"the port, hashed", knownhosts.HashHostname("[board.lab]:2222") + " " + text, odd, nil},
		{"another port", "[board.lab]:2223 " + text, odd, errUnknown},
		{"no port", "board.lab " + text, odd, nil},
		{"no port, another key", "board.lab " + other, odd, errUnknown},
		{"another key for the port", "board.lab " + text + "\n[board.lab]:2222 " + other, odd, errChanged},
		{"a port, for 22", "[board.lab]:2222 " + text, board, errUnknown},
		{"the alias", "serial-0042 " + text, alias, nil},
		{"not the alias", "10.0.0.7,[10.0.0.7]:2222 " + text, alias, errUnknown},
		{"an authority is no key", "@cert-authority board.lab " + text, board, errUnknown},
		{"an unknown mark", "@trusted board.lab " + text, board, errUnknown},
		{"a broken line before", "board.lab ssh-ed25519 !!!\nboard.lab " + text, board, nil},
		{"a comment", "# board.lab " + text, board, errUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := trustIn(t, tt.lines).checkKey(tt.at, key); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("check = %v; want %v", err, tt.want)
			}
		})
	}
	if _, err := trustIn(t, "board.lab "+text+"\n@revoked * "+text).checkKey(board, key); err == nil || !strings.Contains(err.Error(), "known_hosts:2") {
		t.Errorf("a revoked key: %v; want an error that names the line", err)
	}
	if _, err := parsePins("known_hosts", []byte("\n@revoked * ssh-ed25519 !!!")); err == nil || !strings.Contains(err.Error(), "known_hosts:2") {
		t.Errorf("a revoked key that cannot be read: %v; want an error that names the line", err)
	}
}

// ssh-keygen decides which lines are about a host.
func TestTrustFindsWhatSSHFinds(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is missing: install the Debian package openssh-client")
	}
	_, _, text := sshtest.NewKey(t)
	lines := []string{
		"board", "board,door", "*", "b*d", "b?ard", "!board,*", "*,!board", "[board]:2222", "[*]:2222", "boar", "*:2222",
		"[board]:*", knownhosts.HashHostname("board"), knownhosts.HashHostname("[board]:2222"), "BOARD", "[board]:22", "board*", "**", "?", "*board*,!*x",
	}
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(strings.Join(lines, " "+text+"\n")+" "+text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := readKnownHosts([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"board", "[board]:2222", "door", "x", "boarx"} {
		var want, got []string
		out, _ := exec.Command("ssh-keygen", "-F", host, "-f", file).Output()
		for line := range strings.Lines(string(out)) {
			if name, _, _ := strings.Cut(line, " "); name != "#" {
				want = append(want, name)
			}
		}
		for _, p := range known.findPins("", func(p pin) bool { return p.coversHost(host) }) {
			got = append(got, lines[p.line-1])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lines about %s (-ssh-keygen +ours):\n%s", host, diff)
		}
	}
}

// An authority is one of any kind; so is the host's key that it signs.
func TestHostCertificates(t *testing.T) {
	tests := []struct {
		name, kind string
		sign       []string // options of ssh-keygen
		pattern    string   // of the @cert-authority line; "": no line
		more       string   // what the file says besides; AUTHORITY and HOST stand for keys
		want       string   // "": it is trusted
	}{
		{"good", "ed25519", []string{"-n", "board-7"}, "board-*", "", ""},
		{"signed by RSA", "rsa", []string{"-n", "board-7"}, "board-7", "", ""},
		{"signed by ECDSA", "ecdsa", []string{"-n", "other,board-7"}, "*", "", ""},
		{"for a pattern of hosts", "ed25519", []string{"-n", "board-*"}, "*", "", ""},
		{"other host", "ed25519", []string{"-n", "board-8"}, "*", "", `principal "board-7" not in the set`},
		{"expired", "ed25519", []string{"-n", "board-7", "-V", "20200101:20200102"}, "*", "", "expired"},
		{"not yet", "ed25519", []string{"-n", "board-7", "-V", "20990101:20990102"}, "*", "", "not yet valid"},
		{"authority for others", "ed25519", []string{"-n", "board-7"}, "door", "", "nothing is known"},
		{"authority unknown, key pinned", "ed25519", []string{"-n", "board-7"}, "", "board-7 HOST", ""},
		{"authority revoked", "ed25519", []string{"-n", "board-7"}, "*", "@revoked * AUTHORITY", "revoked"},
		{"key revoked", "ed25519", []string{"-n", "board-7"}, "*", "@revoked * HOST", "revoked"},
		{"signed by SHA-1", "rsa", []string{"-t", "ssh-rsa", "-n", "board-7"}, "*", "", "SHA-1"},
	}
	bits := map[string]string{"rsa": "2048", "ecdsa": "256", "ed25519": "256"} // less work than the usual
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			runKeygen(t, "-q", "-t", tt.kind, "-b", bits[tt.kind], "-N", "", "-f", file("ca"))
			runKeygen(t, "-q", "-t", "ecdsa", "-N", "", "-f", file("host"))
			runKeygen(t, append(append([]string{"-q", "-s", file("ca"), "-I", "the board", "-h"}, tt.sign...), file("host.pub"))...)
			s := sshtest.StartSSHD(t, "HostKey "+file("host"), "HostCertificate "+file("host-cert.pub"))
			ca, host := readPublicKey(t, file("ca.pub")), readPublicKey(t, file("host.pub"))
			text := strings.NewReplacer("AUTHORITY", ca, "HOST", host).Replace(tt.more) + "\n"
			if tt.pattern != "" {
				text += "@cert-authority " + tt.pattern + " " + ca + "\n"
			}
			a := addressOf(s)
			a.HostKeyAlias, a.KnownHosts = "board-7", []string{file("known_hosts")}
			if err := os.WriteFile(a.KnownHosts[0], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Dial(t.Context(), a)
			if err == nil {
				c.Close()
			}
			if tt.want == "" && err != nil {
				t.Errorf("Dial = %v", err)
			}
			if tt.want != "" && (!errors.Is(err, ErrHostKey) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Dial = %v; want %v with %q", err, ErrHostKey, tt.want)
			}
		})
	}
}

// A board's description may say who vouches for it.
func TestHostAuthority(t *testing.T) {
	nobody(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	runKeygen(t, "-q", "-t", "ed25519", "-N", "", "-f", file("ca"))
	runKeygen(t, "-q", "-t", "ed25519", "-N", "", "-f", file("host"))
	runKeygen(t, "-q", "-s", file("ca"), "-I", "the board", "-h", "-n", "127.0.0.1", file("host.pub"))
	s := sshtest.StartSSHD(t, "HostKey "+file("host"), "HostCertificate "+file("host-cert.pub"))
	_, _, other := sshtest.NewKey(t)
	for keys, want := range map[string]string{
		"# ours\n" + other + "\n" + readPublicKey(t, file("ca.pub")): "",
		other:         "nothing is known",
		"\nssh-rsa !": "line 2 of the keys",
	} {
		a := addressOf(s)
		a.KnownHosts, a.HostCA = nil, keys
		c, err := Dial(t.Context(), a)
		if err == nil {
			c.Close()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Dial with the authorities %q = %v; want %q", keys, err, want)
		}
	}
}

func TestUserCertificates(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	runKeygen(t, "-q", "-t", "ed25519", "-N", "", "-f", file("ca"))
	s := sshtest.StartSSHD(t, "TrustedUserCAKeys "+file("ca.pub"))
	me, err := Address{Host: "x"}.fillDefaults()
	if err != nil {
		t.Fatal(err)
	}
	sign := func(name string, options ...string) string {
		runKeygen(t, "-q", "-t", "ed25519", "-N", "", "-f", file(name))
		runKeygen(t, append(append([]string{"-q", "-s", file("ca"), "-I", name, "-n", me.User}, options...), file(name+".pub"))...)
		return file(name)
	}
	beside, old, elsewhere := sign("beside"), sign("old", "-V", "20200101:20200102"), sign("elsewhere")
	if err := os.Rename(elsewhere+"-cert.pub", file("certificate")); err != nil {
		t.Fatal(err)
	}
	inAgent := sign("agent")
	if err := os.Remove(inAgent); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		a    Address
		want string
	}{
		{"beside the key", Address{Identities: []string{beside}}, ""},
		{"elsewhere", Address{Identities: []string{elsewhere}, Certificates: []string{file("certificate")}}, ""},
		{"without it", Address{Identities: []string{elsewhere}}, "unable to authenticate"},
		{"expired", Address{Identities: []string{old}}, "expired at 2020-01-02"},
		{"its key is nowhere", Address{Identities: []string{inAgent}}, "neither here nor in the agent"},
		{"a host's", Address{Identities: []string{beside}, Certificates: []string{file("ca.pub")}}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := addressOf(s)
			a.Identities, a.Certificates = tt.a.Identities, tt.a.Certificates
			c, err := Dial(t.Context(), a)
			if err == nil {
				c.Close()
			}
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Dial = %v; want %q", err, tt.want)
			}
		})
	}
}

func TestRevokedHostKeys(t *testing.T) {
	s := sshtest.StartSSHD(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	_, _, other := sshtest.NewKey(t)
	host := strings.TrimSpace(pinnedKey(t, s))
	for name, text := range map[string]string{
		"host.pub": host, "other.pub": other, "keys": "# old\n" + other + "\n",
	} {
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runKeygen(t, "-q", "-k", "-f", file("krl"), file("host.pub"))
	runKeygen(t, "-q", "-k", "-f", file("krl of others"), file("other.pub"))
	tests := []struct{ name, want string }{
		{"krl of others", ""},
		{"keys", "ssh-keygen -k -f NEW " + file("keys")},
		{"krl", "revoked by"},
		{"missing", "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := addressOf(s)
			a.Revoked = file(tt.name)
			c, err := Dial(t.Context(), a)
			if err == nil {
				c.Close()
			}
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, ErrHostKey) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Dial = %v; want %q", err, tt.want)
			}
		})
	}
	t.Setenv("PATH", dir)
	if err := checkRevoked(context.Background(), file("krl of others"), trustKey(t, host)); err == nil || !strings.Contains(err.Error(), "install openssh-client") {
		t.Errorf("a list without ssh-keygen: %v", err)
	}
}

func trustKey(t *testing.T, text string) ssh.PublicKey {
	t.Helper()
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func FuzzTrust(f *testing.F) {
	const key = " ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGzSc8SmV2v6lTq1vHTZvFXPwXBRBz8FS4a7nbZwRnLn"
	for _, line := range []string{"board", "@cert-authority *.lab,!x", "@revoked *", "|1|AAAA|AAAA", "[board]:22", "@", "!", "*?*?*?"} {
		f.Add(line+key, "board")
	}
	f.Add("@revoked * ssh-ed25519 AAAA", "board")
	f.Fuzz(func(t *testing.T, text, host string) {
		pins, err := parsePins("f", []byte(text))
		if err != nil {
			return
		}
		for _, p := range pins {
			if p.key == nil || p.line < 1 || len(p.names) == 0 {
				t.Errorf("%+v of %q", p, text)
			}
			if p.coversHost(host) && len(p.names) == 1 && strings.HasPrefix(p.names[0], "!") {
				t.Errorf("%q covers %q", p.names, host)
			}
		}
	})
}

func FuzzGlob(f *testing.F) {
	f.Add("*a*b?", "xxaxxbx")
	f.Add(strings.Repeat("*a", 50), strings.Repeat("a", 60)+"b")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if !matchesPattern("*", s) || !matchesPattern("*"+s, "x"+s) && !strings.ContainsAny(s, "*?") {
			t.Errorf("* does not match %q", s)
		}
		if matchesPattern(pattern, s) && !strings.ContainsAny(pattern, "*?") && pattern != s {
			t.Errorf("%q matches %q", pattern, s)
		}
	})
}

func TestPinsAreFingerprints(t *testing.T) {
	for _, p := range []string{"SHA256:", "MD5:aa", "yes", "SHA256:" + strings.Repeat("a", 42), "SHA256:" + strings.Repeat("!", 43)} {
		if _, err := Dial(t.Context(), Address{Host: "board", Pins: []string{p}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is no fingerprint", p)) {
			t.Errorf("Dial with the pin %q = %v", p, err)
		}
	}
}

// runKeygen runs ssh-keygen. It skips the test if ssh-keygen is missing.
func runKeygen(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is missing: install the Debian package openssh-client")
	}
	if out, err := exec.Command("ssh-keygen", args...).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen %q: %v: %s", args, err, out)
	}
}

// readPublicKey reads the line of a public key.
func readPublicKey(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}
