package target

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// dropbear serves each connection by a real dropbear with one host key of the kind. It
// finds the key that it lets in in this user's home folder alone, so that it gets a
// folder of its own there.
func dropbear(t *testing.T, kind string) Address {
	t.Helper()
	for _, program := range []string{"/usr/sbin/dropbear", "/usr/bin/dropbearkey"} {
		if _, err := os.Stat(program); err != nil {
			t.Skipf("%s is missing: install the Debian package dropbear-bin", program)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("dropbear reads the keys in the home folder alone; to give it another one takes root")
	}
	if out, err := exec.Command("unshare", "-m", "--propagation", "private", "true").CombinedOutput(); err != nil {
		t.Skipf("mounts of its own cannot be made here: %v: %s", err, out)
	}
	home := t.TempDir()
	file := func(name string) string { return filepath.Join(home, name) }
	out, err := exec.Command("dropbearkey", "-t", kind, "-f", file("host")).Output()
	if err != nil {
		t.Fatal(err)
	}
	identity, _, text := newKey(t)
	if err := os.Mkdir(file(".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{".ssh/authorized_keys": text + "\n", "known_hosts": "the-board " + publicLine(t, string(out)) + "\n"} {
		if err := os.WriteFile(file(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go serveDropbear(conn, home)
		}
	}()
	return Address{
		Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "root", HostKeyAlias: "the-board",
		KnownHosts: []string{file("known_hosts")}, Identities: []string{identity},
	}
}

const dropbearScript = `mount --bind "$1" "$2" && exec /usr/sbin/dropbear -i -r "$1/host"`

func serveDropbear(conn net.Conn, home string) {
	defer conn.Close()
	f, err := conn.(*net.TCPConn).File()
	if err != nil {
		return
	}
	defer f.Close()
	me, err := user.Current()
	if err != nil {
		return
	}
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", dropbearScript, "sh", home, me.HomeDir)
	cmd.Stdin, cmd.Stdout = f, f
	cmd.Run()
}

func publicLine(t *testing.T, said string) string {
	t.Helper()
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "ssh-") || strings.HasPrefix(line, "ecdsa-") {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("no public key in %q", said)
	return ""
}

// Dropbear 2022.83 crashes where it is offered RSA before the kind of key that it has.
func TestDropbear(t *testing.T) {
	board := addressOf(startSSHD(t))
	other := filepath.Join(t.TempDir(), "other")
	keygen(t, "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", other)
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		t.Run(kind, func(t *testing.T) {
			a := dropbear(t, kind)
			text := "the-board " + publicText(t, other+".pub") + "\n" + publicText(t, a.KnownHosts[0]) + "\n"
			if err := os.WriteFile(a.KnownHosts[0], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := dial(t, a)
			if r, err := c.Run(t.Context(), "echo", "here"); err != nil || string(r.Stdout) != "here\n" {
				t.Errorf("Run = %q, %v", r.Stdout, err)
			}
			data := bytes.Repeat([]byte("dropbear"), 50_000)
			if _, err := PutBytes(t.Context(), c, data, filepath.Join(t.TempDir(), "file"), 0o644); err != nil {
				t.Errorf("Put: %v", err)
			}
			behind := board
			behind.Via = &a
			dial(t, behind)
		})
	}
}

func TestFirstContactWithDropbear(t *testing.T) {
	nobody(t)
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		t.Run(kind, func(t *testing.T) {
			a := dropbear(t, kind)
			text := publicText(t, a.KnownHosts[0])
			fp := ssh.FingerprintSHA256(trustKey(t, strings.TrimPrefix(text, "the-board ")))
			_, _, authority := newKey(t)
			if err := os.WriteFile(a.KnownHosts[0], []byte("@cert-authority * "+authority+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Dial(t.Context(), a); !errors.Is(err, ErrHostKey) || !strings.Contains(err.Error(), "-pin="+fp) {
				t.Errorf("Dial = %v; want %v with the fingerprint %s", err, ErrHostKey, fp)
			}
			a.Pins = []string{fp}
			dial(t, a)
		})
	}
}
