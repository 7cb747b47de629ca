package boardssh

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK") // the person's own keys are no part of the tests
	os.Exit(m.Run())
}

func addressOf(s *sshd.Server) Address {
	return Address{Host: "127.0.0.1", Port: s.Port, KnownHosts: []string{s.KnownHosts}, Identities: []string{s.Identity}}
}

func dialBoard(t *testing.T, a Address) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// connect is a connection to a server of its own.
func connect(t *testing.T, settings ...string) *Conn {
	t.Helper()
	return dialBoard(t, addressOf(sshtest.StartSSHD(t, settings...)))
}

func startRelay(t *testing.T, a Address, limit int64, stall bool) (Address, *sshd.Relay) {
	t.Helper()
	r := sshtest.StartRelay(t, a.Port, limit, stall)
	// The relay has a port of its own, so the key is pinned by an alias.
	a = aliased(t, a)
	a.Port = r.Port()
	return a, r
}

// aliased pins the key by an alias, whatever the port is.
func aliased(t *testing.T, a Address) Address {
	t.Helper()
	a.HostKeyAlias, a.KnownHosts = "the-board", []string{sshtest.AliasKnownHosts(t, a.KnownHosts[0], a.Port)}
	return a
}

// addressOfBoard is for root.
func addressOfBoard(b sshtest.Server) Address {
	return Address{Host: "127.0.0.1", Port: b.Port, User: "root", HostKeyAlias: "the-board", KnownHosts: []string{b.KnownHosts}, Identities: []string{b.Identity}}
}

func hostileBoard(t *testing.T, serve func(net.Conn, *ssh.ServerConfig)) Address {
	t.Helper()
	return addressOfBoard(sshtest.ServeSSH(t, serve))
}

func dropbear(t *testing.T, kind string) Address {
	t.Helper()
	return addressOfBoard(sshtest.StartDropbear(t, kind))
}

// A server that speaks something else is told by its first words.
func TestNotSSH(t *testing.T) {
	s := sshtest.NewSSHD(t)
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listen.Close()
	go func() {
		for {
			conn, err := listen.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("220 \x1b[2Jmail\r\n"))
			conn.Close()
		}
	}()
	a := addressOf(s)
	a.Port = listen.Addr().(*net.TCPAddr).Port
	_, err = Dial(t.Context(), a)
	if !errors.Is(err, ErrNotSSH) || !strings.Contains(err.Error(), `it begins with 220 \x1b[2Jmail`) {
		t.Errorf("Dial = %v; want ErrNotSSH and the server's words", err)
	}
}

func TestLost(t *testing.T) {
	a := addressOf(sshtest.StartSSHD(t))
	a, r := startRelay(t, a, 1<<40, false)
	c := dialBoard(t, a)
	if c.Lost() {
		t.Error("a fresh connection is lost")
	}
	r.Close()
	for link, _ := c.currentLink(); !c.Lost(); {
		<-link.gone
	}
	if took, known := c.RoundTrip(t.Context()); known {
		t.Errorf("a lost connection has a round trip of %v", took)
	}
	c.Close()
	if c.Lost() {
		t.Error("a connection that was closed counts as lost")
	}
}
