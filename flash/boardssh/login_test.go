package boardssh

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
)

func TestHostKeyIsNeverTakenOnTrust(t *testing.T) {
	s := sshtest.StartSSHD(t)
	name := "[127.0.0.1]:" + strconv.Itoa(s.Port)
	other, err := sshd.WriteKey(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	otherLine := string(ssh.MarshalAuthorizedKey(other))
	tests := []struct {
		name, pinned, alias string
		want                []string
	}{
		{"nothing pinned", "", "", []string{"SHA256:", "ssh -o UserKnownHostsFile="}},
		{"another host pinned", "elsewhere " + otherLine, "", []string{"nothing is known", "SHA256:"}},
		{"another key pinned", name + " " + otherLine, "", []string{"pins ssh-ed25519", "ssh-keygen -R '" + name + "'"}},
		{"another kind of key pinned", name + " " + ecdsaLine(t), "", []string{"no host key of the pinned kind", "ssh-ed25519"}},
		{"right key, other alias", "ours" + pinnedKey(t, s), "theirs", []string{"HostKeyAlias=theirs"}},
		{"revoked", "@revoked *" + pinnedKey(t, s), "", []string{"revoked"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := addressOf(s)
			a.HostKeyAlias = tt.alias
			a.KnownHosts = []string{filepath.Join(t.TempDir(), "known_hosts")}
			if err := os.WriteFile(a.KnownHosts[0], []byte(tt.pinned), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = WaitDial(t.Context(), a, time.Hour) // at once, or the test hangs
			if !errors.Is(err, ErrHostKey) {
				t.Fatalf("WaitDial = %v; want %v", err, ErrHostKey)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

func TestHostKeyMayBePinnedByAlias(t *testing.T) {
	s := sshtest.StartSSHD(t)
	a := addressOf(s)
	a.HostKeyAlias = "board-17"
	a.KnownHosts = []string{filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "known_hosts")}
	if err := os.WriteFile(a.KnownHosts[1], []byte("board-17"+pinnedKey(t, s)), 0o600); err != nil {
		t.Fatal(err)
	}
	dialBoard(t, a)
}

// pinnedKey is the server's known_hosts line without its host.
func pinnedKey(t *testing.T, s *sshd.Server) string {
	t.Helper()
	line, err := os.ReadFile(s.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	return string(line[strings.IndexByte(string(line), ' '):])
}

func TestRefusedLogin(t *testing.T) {
	s := sshtest.StartSSHD(t)
	dir := t.TempDir()
	wrong, locked := filepath.Join(dir, "wrong"), filepath.Join(dir, "locked")
	if _, err := sshd.WriteKey(wrong); err != nil {
		t.Fatal(err)
	}
	lockKey(t, s.Identity, locked)
	tests := []struct {
		name       string
		identities []string
		want       string
	}{
		{"wrong key", []string{wrong}, "unable to authenticate"},
		{"no key", nil, "no key"},
		{"passphrase", []string{locked}, "ssh-add " + locked},
		{"no such file", []string{wrong + ".none"}, wrong + ".none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := addressOf(s)
			a.Identities = tt.identities
			_, err := WaitDial(t.Context(), a, time.Minute)
			if !errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("WaitDial = %v; want %v with %q", err, ErrLogin, tt.want)
			}
		})
	}
}

// lockKey writes a private key once more, with the passphrase "secret" in one round of its KDF.
func lockKey(t *testing.T, from, file string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	runKeygen(t, "-q", "-p", "-a", "1", "-P", "", "-N", "secret", "-f", file)
}

func TestLoginWithTheAgent(t *testing.T) {
	s := sshtest.StartSSHD(t)
	t.Setenv("SSH_AUTH_SOCK", startAgent(t, s.Identity))
	a := addressOf(s)
	a.Identities = nil
	dialBoard(t, a)
}

// startAgent runs an agent that holds the keys of files, and returns its socket.
func startAgent(t *testing.T, files ...string) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		key, err := ssh.ParseRawPrivateKey(data)
		if err != nil {
			t.Fatal(err)
		}
		if err := ring.Add(agent.AddedKey{PrivateKey: key, Comment: filepath.Base(file)}); err != nil {
			t.Fatal(err)
		}
	}
	return serveAgent(t, ring)
}

func serveAgent(t *testing.T, a agent.Agent) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go agent.ServeAgent(a, conn)
		}
	}()
	return socket
}

// silentAgent accepts connections, lists its keys if it has any, and answers nothing else.
func silentAgent(t *testing.T, keys ...*agent.Key) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			t.Cleanup(func() { conn.Close() })
			if len(keys) > 0 {
				go agent.ServeAgent(lists{agent.NewKeyring(), keys, t.Context()}, conn)
			}
		}
	}()
	t.Setenv("SSH_AUTH_SOCK", socket)
}

// lists is an agent that never signs.
type lists struct {
	agent.Agent
	keys []*agent.Key
	end  context.Context
}

func (l lists) List() ([]*agent.Key, error) { return l.keys, nil }

func (l lists) Sign(ssh.PublicKey, []byte) (*ssh.Signature, error) {
	<-l.end.Done()
	return nil, l.end.Err()
}

// As in a tmux whose ssh -A was lost: the socket is there, the answer never comes.
func TestLoginPastASilentAgent(t *testing.T) {
	was := agentLimit
	t.Cleanup(func() { agentLimit = was })
	agentLimit = 100 * time.Millisecond // it is used up
	s := sshtest.StartSSHD(t)
	silentAgent(t)
	dialBoard(t, addressOf(s))
	a := addressOf(s)
	a.Identities = nil
	if _, err := Dial(t.Context(), a); !errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), "does not list its keys") {
		t.Errorf("Dial without a key = %v; want %v that names the agent", err, ErrLogin)
	}
}

func TestAgentDoesNotOutliveTheContext(t *testing.T) {
	s := sshtest.StartSSHD(t)
	key, err := os.ReadFile(s.Identity)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := signer.PublicKey()
	tests := []struct {
		name string
		keys []*agent.Key
	}{
		{"lists nothing", nil},
		{"signs nothing", []*agent.Key{{Format: public.Type(), Blob: public.Marshal()}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			silentAgent(t, tt.keys...)
			a := addressOf(s)
			a.Identities = nil
			enough := errors.New("enough")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, enough)
			defer cancel()
			if _, err := Dial(ctx, a); !errors.Is(err, enough) || errors.Is(err, ErrLogin) {
				t.Errorf("Dial = %v; want %v", err, enough)
			}
		})
	}
}

func TestWaitDialWaitsForTheServer(t *testing.T) {
	t.Parallel()
	s := sshtest.NewSSHD(t)
	started := make(chan error, 1)
	time.AfterFunc(700*time.Millisecond, func() { started <- s.Start(context.Background()) })
	c, err := WaitDial(t.Context(), addressOf(s), sshtest.LongEnough)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// A port forwarder accepts connections for a board that is not up, and says
// nothing on them even when it is.
func TestWaitDialIsNotHeldUpBySilentConnections(t *testing.T) {
	t.Parallel()
	s := sshtest.StartSSHD(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	up := time.Now().Add(time.Second)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			if time.Now().Before(up) {
				defer conn.Close()
				continue
			}
			go pipe(conn, addressOf(s).hostPort())
		}
	}()
	a := addressOf(s)
	a.Port, a.HostKeyAlias = l.Addr().(*net.TCPAddr).Port, "board"
	a.KnownHosts = []string{filepath.Join(t.TempDir(), "known_hosts")}
	if err := os.WriteFile(a.KnownHosts[0], []byte("board"+pinnedKey(t, s)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := WaitDial(t.Context(), a, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestWaitDialSaysWhatItSaw(t *testing.T) {
	a := addressOf(sshtest.NewSSHD(t))
	_, err := WaitDial(t.Context(), a, 1500*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "1.5s") {
		t.Errorf("WaitDial = %v; want it to tell of refused connections and 1.5s", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := WaitDial(ctx, a, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitDial = %v; want %v", err, context.Canceled)
	}
}

func ecdsaLine(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := ssh.NewPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(ssh.MarshalAuthorizedKey(public))
}

func pipe(in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	go io.Copy(out, in)
	io.Copy(in, out)
}
