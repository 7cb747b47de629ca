package container

import (
	"net"
	"os"
	"strconv"
	"testing"

	"slipway/flash/target"
	"slipway/flash/target/sshd"
	"slipway/flash/target/targettest"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK") // the person's own keys are no part of the tests
	os.Exit(m.Run())
}

func addressOf(s *sshd.Server) target.Address {
	return target.Address{Host: "127.0.0.1", Port: s.Port, KnownHosts: []string{s.KnownHosts}, Identities: []string{s.Identity}}
}

func dialBoard(t *testing.T, a target.Address) *target.Conn {
	t.Helper()
	c, err := target.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// connect is a connection to a server of its own.
func connect(t *testing.T, settings ...string) *target.Conn {
	t.Helper()
	return dialBoard(t, addressOf(targettest.StartSSHD(t, settings...)))
}

func startRelay(t *testing.T, a target.Address, limit int64, stall bool) (target.Address, *targettest.Relay) {
	t.Helper()
	r := targettest.StartRelay(t, net.JoinHostPort(a.Host, strconv.Itoa(a.Port)), limit, stall)
	a = aliased(t, a)
	a.Port = r.Port
	return a, r
}

// aliased pins the key by an alias, whatever the port is.
func aliased(t *testing.T, a target.Address) target.Address {
	t.Helper()
	a.HostKeyAlias, a.KnownHosts = "the-board", []string{targettest.AliasKnownHosts(t, a.KnownHosts[0], a.Port)}
	return a
}
