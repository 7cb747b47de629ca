package updatetest

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"slipway/flash/target"
	"slipway/flash/target/sshd"
)

// Relay is a line to a board that can be cut.
type Relay struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	conns []net.Conn
}

// ConnectBy is Connect through a relay.
func ConnectBy(t *testing.T, settings ...string) (*target.Conn, *Relay) {
	t.Helper()
	s := serve(t, settings...)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	r := &Relay{listener: listener, to: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))}
	go r.accept()
	return dial(t, s, listener.Addr().(*net.TCPAddr).Port), r
}

func (r *Relay) accept() {
	for {
		here, err := r.listener.Accept()
		if err != nil {
			return
		}
		there, err := net.Dial("tcp", r.to)
		if err != nil {
			here.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, here, there)
		r.mu.Unlock()
		go pass(here, there)
		go pass(there, here)
	}
}

func pass(to, from net.Conn) {
	io.Copy(to, from)
	to.Close()
	from.Close()
}

// Cut ends all connections. New ones may be made.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
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
