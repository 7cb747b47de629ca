package sshd

import (
	"errors"
	"io"
	"math"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Relay is a TCP link to a board that can be made to fail, as a cable that is pulled. It leads
// to another port after the board was switched on again. Limit and Stall are set before Lead.
type Relay struct {
	Limit int64        // bytes of a connection that pass towards the board; then it is cut
	Stall bool         // hold a connection at its limit instead of cutting it
	Late  atomic.Int64 // nanoseconds by which answers are held back
	Sent  atomic.Int64 // bytes that passed towards the board

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
	r := &Relay{Limit: math.MaxInt64, listener: l, open: map[net.Conn]bool{}}
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
	r.work.Go(func() {
		_, _ = io.CopyN(counting{far, &r.Sent}, near, r.Limit) // however it ends, both ends go
		if !r.Stall {
			done <- struct{}{}
		}
	})
	r.work.Go(func() {
		_, _ = io.Copy(held{near, &r.Late}, far)
		done <- struct{}{}
	})
	<-done
}

type counting struct {
	io.Writer
	sent *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
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

// End cuts it for good, and does not wait for answers that are held back.
func (r *Relay) End() error {
	err := r.listener.Close()
	r.Cut()
	return err
}

// Close is End that waits.
func (r *Relay) Close() error {
	err := r.End()
	r.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
