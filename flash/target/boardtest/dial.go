// Package boardtest connects to the servers of targettest, and has a board with a real RAUC.
// Tests of target itself cannot use it, since it imports target.
package boardtest

import (
	"net"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/flash/target"
	"slipway/flash/target/sshd"
	"slipway/flash/target/targettest"
)

// AddressOf is where a server lets its own key in.
func AddressOf(s *sshd.Server) target.Address {
	return target.Address{Host: "127.0.0.1", Port: s.Port, KnownHosts: []string{s.KnownHosts}, Identities: []string{s.Identity}}
}

// Dial connects until the test ends.
func Dial(t *testing.T, a target.Address) *target.Conn {
	t.Helper()
	c, err := target.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Connect is a connection to a server of its own.
func Connect(t *testing.T, settings ...string) *target.Conn {
	t.Helper()
	return Dial(t, AddressOf(targettest.StartSSHD(t, settings...)))
}

// StartRelay leads to an address through a link that can be made to fail.
func StartRelay(t *testing.T, a target.Address, limit int64, stall bool) (target.Address, *sshd.Relay) {
	t.Helper()
	r := targettest.StartRelay(t, a.Port, limit, stall)
	a = WithAlias(t, a)
	a.Port = r.Port()
	return a, r
}

// WithAlias pins the key by an alias, whatever the port is.
func WithAlias(t *testing.T, a target.Address) target.Address {
	t.Helper()
	a.HostKeyAlias, a.KnownHosts = "the-board", []string{targettest.AliasKnownHosts(t, a.KnownHosts[0], a.Port)}
	return a
}

// AddressOfBoard is for root.
func AddressOfBoard(b targettest.Server) target.Address {
	return target.Address{Host: "127.0.0.1", Port: b.Port, User: "root", HostKeyAlias: "the-board", KnownHosts: []string{b.KnownHosts}, Identities: []string{b.Identity}}
}

// HostileBoard is the address of a server that does what serve does.
func HostileBoard(t *testing.T, serve func(net.Conn, *ssh.ServerConfig)) target.Address {
	t.Helper()
	return AddressOfBoard(targettest.ServeSSH(t, serve))
}
