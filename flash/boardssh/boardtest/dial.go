// Package boardtest connects to the servers of sshtest, and has a board with a real RAUC.
// Tests of target itself cannot use it, since it imports target.
package boardtest

import (
	"net"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
)

// AddressOf is where a server lets its own key in.
func AddressOf(s *sshd.Server) boardssh.Address {
	return boardssh.Address{Host: "127.0.0.1", Port: s.Port, KnownHosts: []string{s.KnownHosts}, Identities: []string{s.Identity}}
}

// Dial connects until the test ends.
func Dial(t *testing.T, a boardssh.Address) *boardssh.Conn {
	t.Helper()
	c, err := boardssh.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Connect is a connection to a server of its own.
func Connect(t *testing.T, settings ...string) *boardssh.Conn {
	t.Helper()
	return Dial(t, AddressOf(sshtest.StartSSHD(t, settings...)))
}

// StartRelay leads to an address through a link that can be made to fail.
func StartRelay(t *testing.T, a boardssh.Address, limit int64, stall bool) (boardssh.Address, *sshd.Relay) {
	t.Helper()
	r := sshtest.StartRelay(t, a.Port, limit, stall)
	a = WithAlias(t, a)
	a.Port = r.Port()
	return a, r
}

// WithAlias pins the key by an alias, whatever the port is.
func WithAlias(t *testing.T, a boardssh.Address) boardssh.Address {
	t.Helper()
	a.HostKeyAlias, a.KnownHosts = "the-board", []string{sshtest.AliasKnownHosts(t, a.KnownHosts[0], a.Port)}
	return a
}

// AddressOfBoard is for root.
func AddressOfBoard(b sshtest.Server) boardssh.Address {
	return boardssh.Address{Host: "127.0.0.1", Port: b.Port, User: "root", HostKeyAlias: "the-board", KnownHosts: []string{b.KnownHosts}, Identities: []string{b.Identity}}
}

// HostileBoard is the address of a server that does what serve does.
func HostileBoard(t *testing.T, serve func(net.Conn, *ssh.ServerConfig)) boardssh.Address {
	t.Helper()
	return AddressOfBoard(sshtest.ServeSSH(t, serve))
}
