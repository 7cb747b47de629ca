package targettest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Relay is a TCP link that can be made to fail. It passes limit bytes towards
// the server, then does what broken says.
type Relay struct {
	Port int

	t      *testing.T
	listen net.Listener
	to     string
	limit  int64
	stall  bool         // hold what comes instead of cutting
	Late   atomic.Int64 // nanoseconds by which answers are held back
	Sent   atomic.Int64 // bytes that passed towards the server

	mu    sync.Mutex
	conns []net.Conn
}

// StartRelay leads to an address of this machine.
func StartRelay(t *testing.T, to string, limit int64, stall bool) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{Port: l.Addr().(*net.TCPAddr).Port, t: t, listen: l, to: to, limit: limit, stall: stall}
	go r.serve()
	t.Cleanup(r.Close)
	return r
}

func (r *Relay) serve() {
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
		go io.Copy(held{in, &r.Late}, out)
		go func() {
			io.CopyN(counting{out, &r.Sent}, in, r.limit)
			if !r.stall {
				in.Close()
				out.Close()
			}
		}()
	}
}

// Close ends all connections.
func (r *Relay) Close() {
	r.listen.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
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
