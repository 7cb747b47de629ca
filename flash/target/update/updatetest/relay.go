package updatetest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"slipway/flash/target"
	"slipway/flash/target/relay"
	"slipway/flash/target/sshd"
	"slipway/flash/target/sudotest"
)

// ConnectBy is Connect through a line that can be cut.
func ConnectBy(t *testing.T, settings ...string) (*target.Conn, *relay.Relay) {
	t.Helper()
	return through(t, serve(t, settings...), target.Address{})
}

// ConnectBySudo is ConnectBy as a user who is not root, with a line of sudotest.Rights.
func ConnectBySudo(t *testing.T, rights string, settings ...string) (*target.Conn, *relay.Relay) {
	t.Helper()
	t.Setenv("SSH_AUTH_SOCK", "")
	s := sudotest.Start(t, rights, settings...)
	sudotest.TypePassword(t)
	return through(t, s, target.Address{User: sudotest.User, Become: "root"})
}

func through(t *testing.T, s *sshd.Server, a target.Address) (*target.Conn, *relay.Relay) {
	t.Helper()
	r, err := relay.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	r.Lead(s.Port)
	a.Port = r.Port()
	return dial(t, s, a), r
}

// dial logs in on a server by the port of an address, which leads to it.
func dial(t *testing.T, s *sshd.Server, a target.Address) *target.Conn {
	t.Helper()
	text, err := os.ReadFile(s.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	pinned := filepath.Join(t.TempDir(), "known_hosts")
	text = []byte(strings.Replace(string(text), strconv.Itoa(s.Port), strconv.Itoa(a.Port), 1))
	if err := os.WriteFile(pinned, text, 0o600); err != nil {
		t.Fatal(err)
	}
	a.Host, a.KnownHosts, a.Identities = "127.0.0.1", []string{pinned}, []string{s.Identity}
	c, err := target.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
