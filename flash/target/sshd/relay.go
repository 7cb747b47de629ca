package sshd

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// Relay stands between us and a board, as a cable that can be pulled. It leads to
// another port after the board was switched on again.
type Relay struct {
	listener net.Listener
	to       atomic.Int64
	mu       sync.Mutex
	open     map[net.Conn]bool
	work     sync.WaitGroup
}

// NewRelay makes one that leads nowhere yet.
func NewRelay() (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{listener: l, open: map[net.Conn]bool{}}
	r.work.Go(r.serve)
	return r, nil
}

// Port returns the local port on which the relay accepts connections.
func (r *Relay) Port() int { return r.listener.Addr().(*net.TCPAddr).Port }

// Lead has the connections from now on lead to a port of this machine's.
func (r *Relay) Lead(port int) { r.to.Store(int64(port)) }

func (r *Relay) serve() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() { r.carry(near) })
	}
}

func (r *Relay) carry(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.FormatInt(r.to.Load(), 10)))
	if err != nil {
		return // the board is off
	}
	defer far.Close()
	r.hold(near, far, true)
	defer r.hold(near, far, false)
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		r.work.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // however it ends, both ends go
			done <- struct{}{}
		})
	}
	<-done
}

func (r *Relay) hold(near, far net.Conn, open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range []net.Conn{near, far} {
		if open {
			r.open[c] = true
		} else {
			delete(r.open, c)
		}
	}
}

// Cut breaks all connections off. New ones may be made.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // no farewell
		}
		c.Close()
	}
}

// Close cuts it for good.
func (r *Relay) Close() error {
	err := r.listener.Close()
	r.Cut()
	r.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
