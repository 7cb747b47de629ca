package trust

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// serveAgent serves an ssh-agent with one key.
func serveAgent(t *testing.T, keyFile string) {
	t.Helper()
	private, err := ssh.ParseRawPrivateKey(readText(t, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: private}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	t.Setenv("SSH_AUTH_SOCK", socket)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = agent.ServeAgent(ring, conn) }()
		}
	}()
}

// ssh-keygen accepts our signatures, of each kind of key, from a file and from an agent.
func TestSign(t *testing.T) {
	for name, args := range map[string][]string{
		"ed25519": {"-t", "ed25519"}, "ecdsa": {"-t", "ecdsa", "-b", "384"}, "rsa": {"-t", "rsa", "-b", "2048"},
	} {
		file, public := keygen(t, args...)
		serveAgent(t, file)
		for _, from := range []string{file, file + ".pub"} {
			t.Run(name+" "+filepath.Ext(from), func(t *testing.T) {
				key, err := ReadKey(from)
				if err != nil {
					t.Fatal(err)
				}
				sig, err := Sign(key, strings.NewReader(message))
				if err != nil {
					t.Fatal(err)
				}
				if !judged(t, "ann "+public+"\n", "ann", sig, message) {
					t.Errorf("ssh-keygen refuses\n%s", sig)
				}
				if who, err := verify(t, "ann "+public, sig, message); err != nil {
					t.Errorf("Verify = %q, %v", who, err)
				}
				if name == "ed25519" && string(sig) != string(sign(t, file, message, "-n", "file")) {
					t.Errorf("Sign = %s; want what ssh-keygen writes", sig)
				}
			})
		}
	}
}

func TestReadKeyRefuses(t *testing.T) {
	file, _ := keygen(t, "-t", "ed25519")
	locked, _ := keygen(t, "-t", "ed25519")
	runTool(t, "ssh-keygen", "-q", "-p", "-N", "secret", "-f", locked)
	open, _ := keygen(t, "-t", "ed25519")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	runTool(t, "ssh-keygen", "-q", "-s", file, "-I", "ann", "-n", "ann", open+".pub")
	tests := []struct{ name, path, wantErr string }{
		{"passphrase", locked, "it has a passphrase, and Slipway asks for none\nnext: ssh-add " + locked},
		{"readable by others", open, "others on this machine may read it (mode 0644)\nnext: chmod 600 " + open},
		{"no key", write(t, "key", "key\n"), "read the key"},
		{"no file", filepath.Join(t.TempDir(), "key"), "no such file"},
		{"a device", "/dev/zero", "no regular file"},
		{"a certificate", open + "-cert.pub", "takes no signature of kind ssh-ed25519-cert"},
		{"not in the agent", open + ".pub", "it has 1 keys, and not this one\nnext: ssh-add"},
	}
	serveAgent(t, file)
	for _, test := range tests {
		if _, err := ReadKey(test.path); err == nil || !strings.Contains(err.Error(), test.wantErr) {
			t.Errorf("%s: ReadKey = %v; want an error with %q", test.name, err, test.wantErr)
		}
	}
	t.Setenv("SSH_AUTH_SOCK", "")
	if _, err := ReadKey(file + ".pub"); err == nil || !strings.Contains(err.Error(), "next: eval $(ssh-agent)") {
		t.Errorf("ReadKey without an agent = %v; want the next step", err)
	}
}
