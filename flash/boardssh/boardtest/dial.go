// Package boardtest connects tests to the servers of sshtest, and has a board with a real RAUC.
// Tests inside package boardssh cannot use it, since it imports boardssh.
package boardtest

import (
	"net"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
)

// AddressOf returns the address of a server, with its known hosts and key.
func AddressOf(s *sshd.Server) boardssh.Address {
	return boardssh.Address{Host: "127.0.0.1", Port: s.Port, KnownHosts: []string{s.KnownHosts}, Identities: []string{s.Identity}}
}

// Dial connects to a board and closes the connection at the end of the test.
func Dial(t *testing.T, a boardssh.Address) *boardssh.Conn {
	t.Helper()
	c, err := boardssh.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Connect starts a new sshd and connects to it.
func Connect(t *testing.T, settings ...string) *boardssh.Conn {
	t.Helper()
	return Dial(t, AddressOf(sshtest.StartSSHD(t, settings...)))
}

// StartRelay starts a relay to a's port, and returns the relay's address, as WithAlias makes it.
// After limit bytes to the board, the relay cuts a connection, or stops forwarding if stall is set.
func StartRelay(t *testing.T, a boardssh.Address, limit int64, stall bool) (boardssh.Address, *sshd.Relay) {
	t.Helper()
	r := sshtest.StartRelay(t, a.Port, limit, stall)
	a = WithAlias(t, a)
	a.Port = r.Port()
	return a, r
}

// WithAlias returns a with a HostKeyAlias, so that its host key applies to any port. It replaces
// KnownHosts by a new file with the keys of a's first one.
func WithAlias(t *testing.T, a boardssh.Address) boardssh.Address {
	t.Helper()
	a.HostKeyAlias, a.KnownHosts = "the-board", []string{sshtest.AliasKnownHosts(t, a.KnownHosts[0], a.Port)}
	return a
}

// AddressOfBoard returns the address of a test server for the user root.
func AddressOfBoard(b sshtest.Server) boardssh.Address {
	return boardssh.Address{Host: "127.0.0.1", Port: b.Port, User: "root", HostKeyAlias: "the-board", KnownHosts: []string{b.KnownHosts}, Identities: []string{b.Identity}}
}

// HostileBoard starts a server that calls serve for each connection, and returns its address.
func HostileBoard(t *testing.T, serve func(net.Conn, *ssh.ServerConfig)) boardssh.Address {
	t.Helper()
	return AddressOfBoard(sshtest.ServeSSH(t, serve))
}
