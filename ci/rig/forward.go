package rig

import (
	"context"
	"io"
	"net"
	"sync"
)

// portForward forwards a port of this machine's loopback to an address in the
// namespaces.
type portForward struct {
	spaces   *namespaces
	to       string
	listener net.Listener

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
	group  sync.WaitGroup
}

// startForward listens on a free port of 127.0.0.1 and forwards connections to an address in the
// namespaces, until close.
func startForward(m *namespaces, to string) (*portForward, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &portForward{spaces: m, to: to, listener: l, open: map[net.Conn]bool{}}
	d.group.Go(d.acceptAll)
	return d, nil
}

func (d *portForward) localPort() int { return d.listener.Addr().(*net.TCPAddr).Port }

func (d *portForward) acceptAll() {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.group.Go(func() { d.forwardConn(c) })
	}
}

// forwardConn forwards one connection in both directions.
func (d *portForward) forwardConn(outer net.Conn) {
	defer outer.Close()
	inner, err := d.spaces.dial(d.to)
	if err != nil {
		return // the caller sees a connection that is closed
	}
	defer inner.Close()
	if !d.addConns(outer, inner) {
		return
	}
	defer d.removeConns(outer, inner)
	var both sync.WaitGroup
	both.Go(func() { copyHalf(inner, outer) })
	both.Go(func() { copyHalf(outer, inner) })
	both.Wait()
}

// copyHalf copies from one connection to the other until the end, then closes the other for
// writing.
func copyHalf(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.(*net.TCPConn).CloseWrite()
}

func (d *portForward) addConns(all ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range all {
		d.open[c] = true
	}
	return !d.closed
}

func (d *portForward) removeConns(all ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range all {
		delete(d.open, c)
	}
}

// close closes the listener and all connections, and waits for their goroutines. It must be called
// before the namespaces end.
func (d *portForward) close() {
	d.listener.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.open {
		c.Close()
	}
	d.mu.Unlock()
	d.group.Wait()
}

// dial connects to an address inside the namespaces. It dials on their thread, because a socket
// belongs to the network of the thread that creates it.
func (m *namespaces) dial(address string) (c net.Conn, err error) {
	err = m.runOnThread(func() error {
		var dialer net.Dialer
		c, err = dialer.DialContext(context.Background(), "tcp", address)
		return err
	})
	return c, err
}
