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

// Relay is a TCP forwarder to a rig, or to a board of a test. It can fail like a cable that is
// pulled, and lead to another port after a restart. Set Limit, Stall and Dial before SetTarget.
type Relay struct {
	Dial  func(address string) (net.Conn, error)
	Limit int64        // bytes to the board in one connection, after which it is cut
	Stall bool         // hold a connection at its limit instead of cutting it
	Late  atomic.Int64 // delay of answers in nanoseconds
	Sent  atomic.Int64 // bytes that passed towards the board

	listener net.Listener
	to       atomic.Int64
	mu       sync.Mutex
	open     map[net.Conn]bool
	ended    atomic.Bool
	work     sync.WaitGroup
}

// NewRelay starts a relay on a free local port. Call SetTarget to set its target.
func NewRelay() (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{Limit: math.MaxInt64, listener: l, open: map[net.Conn]bool{}}
	r.Dial = func(address string) (net.Conn, error) { return net.Dial("tcp", address) }
	r.work.Go(r.serve)
	return r, nil
}

// Port returns the local port on which the relay accepts connections.
func (r *Relay) Port() int { return r.listener.Addr().(*net.TCPAddr).Port }

// SetTarget makes new connections go to a port of this machine, or of the rig.
func (r *Relay) SetTarget(port int) { r.to.Store(int64(port)) }

// serve carries each new connection in a goroutine, until the listener is closed.
func (r *Relay) serve() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() { r.carry(near) })
	}
}

// carry forwards a connection to the board, and closes it once a side ends or the board is off. It
// also closes it after Limit bytes to the board, or with Stall sends no more but leaves it open.
func (r *Relay) carry(near net.Conn) {
	defer near.Close()
	far, err := r.Dial(net.JoinHostPort("127.0.0.1", strconv.FormatInt(r.to.Load(), 10)))
	if err != nil {
		return // the board is off
	}
	defer far.Close()
	r.track(near, far, true)
	defer r.track(near, far, false)
	if r.ended.Load() {
		return // End did not see these connections
	}
	done := make(chan struct{}, 2)
	r.work.Go(func() {
		_, _ = io.CopyN(counting{far, &r.Sent}, near, r.Limit) // on any end, carry closes both connections
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

// Write writes p and adds its length to c.sent.
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

// track adds both connections to r.open, or, if open is false, removes them.
func (r *Relay) track(near, far net.Conn, open bool) {
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

// Cut resets all open connections. The relay still accepts new ones.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // send a reset instead of a normal close
		}
		c.Close()
	}
}

// End closes the listener and resets all connections. It does not wait for delayed answers.
func (r *Relay) End() error {
	err := r.listener.Close()
	r.ended.Store(true)
	r.Cut()
	return err
}

// Close is End that waits until all goroutines of the relay have ended.
func (r *Relay) Close() error {
	err := r.End()
	r.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
