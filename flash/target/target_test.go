package target

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"slipway/flash/target/sshd"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK") // the person's own keys are no part of the tests
	os.Exit(m.Run())
}

// startSSHD runs a real server for one test.
func startSSHD(t *testing.T, settings ...string) *sshd.Server {
	t.Helper()
	s := newSSHD(t, settings...)
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func newSSHD(t *testing.T, settings ...string) *sshd.Server {
	t.Helper()
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skipf("%s is missing: install the Debian package openssh-server", sshd.Program)
	}
	s, err := sshd.New(t.TempDir(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func addressOf(s *sshd.Server) Address {
	return Address{Host: "127.0.0.1", Port: s.Port, KnownHosts: []string{s.KnownHosts}, Identities: []string{s.Identity}}
}

func dial(t *testing.T, a Address) *Conn {
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
	return dial(t, addressOf(startSSHD(t, settings...)))
}

// relay is a TCP link that can be made to fail. It passes limit bytes towards
// the server, then does what broken says.
type relay struct {
	t      *testing.T
	listen net.Listener
	to     string
	limit  int64
	stall  bool         // hold what comes instead of cutting
	late   atomic.Int64 // nanoseconds by which answers are held back
	sent   atomic.Int64 // bytes that passed towards the server

	mu    sync.Mutex
	conns []net.Conn
}

func startRelay(t *testing.T, a Address, limit int64, stall bool) (Address, *relay) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, listen: l, to: a.hostPort(), limit: limit, stall: stall}
	go r.serve()
	t.Cleanup(r.close)
	// The relay has a port of its own, so the key is pinned by an alias.
	a = aliased(t, a)
	a.Port = l.Addr().(*net.TCPAddr).Port
	return a, r
}

// aliased pins the key by an alias, whatever the port is.
func aliased(t *testing.T, a Address) Address {
	t.Helper()
	pinned, err := os.ReadFile(a.KnownHosts[0])
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, append([]byte("the-board"), pinned[len("[127.0.0.1]:"+strconv.Itoa(a.Port)):]...), 0o600); err != nil {
		t.Fatal(err)
	}
	a.HostKeyAlias, a.KnownHosts = "the-board", []string{file}
	return a
}

func (r *relay) serve() {
	for {
		in, err := r.listen.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		r.mu.Unlock()
		go io.Copy(held{in, &r.late}, out)
		go func() {
			io.CopyN(counting{out, &r.sent}, in, r.limit)
			if !r.stall {
				in.Close()
				out.Close()
			}
		}()
	}
}

// counting hides what io.Copy would do without it.
type counting struct {
	to   io.Writer
	sent *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

type held struct {
	io.Writer
	late *atomic.Int64
}

func (h held) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(h.late.Load()))
	return h.Writer.Write(p)
}

func (r *relay) close() {
	r.listen.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
}

// longEnough is how long a test waits for what is sure to come.
const longEnough = 5 * time.Minute

func within(t *testing.T, limit time.Duration, work func()) {
	t.Helper()
	began := time.Now()
	work()
	if took := time.Since(began); took > 20*limit { // on a machine that does much else
		t.Errorf("took %s; want at most %s", took, limit)
	}
}
