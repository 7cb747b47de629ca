package sshtest

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// StartDropbear starts a server that runs a real dropbear for each connection, with a host key of
// this kind. dropbear reads authorized keys only from the user's home folder, so a test folder is
// mounted over that. It skips the test without root, dropbear, or the right to new mounts.
func StartDropbear(t *testing.T, kind string) Server {
	t.Helper()
	for _, program := range []string{"/usr/sbin/dropbear", "/usr/bin/dropbearkey"} {
		if _, err := os.Stat(program); err != nil {
			t.Skipf("%s is missing: install the Debian package dropbear-bin", program)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("dropbear reads the keys only in the home folder; to give it another one takes root")
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
	identity, _, text := NewKey(t)
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
	return Server{l.Addr().(*net.TCPAddr).Port, file("known_hosts"), identity}
}

const dropbearScript = `mount --bind "$1" "$2" && exec /usr/sbin/dropbear -i -r "$1/host"`

// serveDropbear runs dropbear for one connection, with home mounted over the user's home folder.
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

// publicLine returns the public key's line of dropbearkey's output.
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
