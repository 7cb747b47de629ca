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
)

// ConnectBy is Connect through a line that can be cut.
func ConnectBy(t *testing.T, settings ...string) (*target.Conn, *relay.Relay) {
	t.Helper()
	s := serve(t, settings...)
	r, err := relay.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	r.Lead(s.Port)
	return dial(t, s, r.Port()), r
}

// dial logs in on a server by a port that leads to it.
func dial(t *testing.T, s *sshd.Server, port int) *target.Conn {
	t.Helper()
	text, err := os.ReadFile(s.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	pinned := filepath.Join(t.TempDir(), "known_hosts")
	text = []byte(strings.Replace(string(text), strconv.Itoa(s.Port), strconv.Itoa(port), 1))
	if err := os.WriteFile(pinned, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := target.Dial(t.Context(), target.Address{Host: "127.0.0.1", Port: port, KnownHosts: []string{pinned}, Identities: []string{s.Identity}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
