package rig

import (
	"context"
	"io"
	"net"
	"sync"
)

// door is a port of this machine's loopback that leads to one of the room's.
type door struct {
	room     *room
	to       string
	listener net.Listener

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
	group  sync.WaitGroup
}

// openDoor listens, and forwards what comes until the door is closed.
func openDoor(m *room, to string) (*door, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &door{room: m, to: to, listener: l, open: map[net.Conn]bool{}}
	d.group.Go(d.accept)
	return d, nil
}

func (d *door) port() int { return d.listener.Addr().(*net.TCPAddr).Port }

func (d *door) accept() {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.group.Go(func() { d.pass(c) })
	}
}

// pass carries one connection, both ways.
func (d *door) pass(outer net.Conn) {
	defer outer.Close()
	inner, err := d.room.dial(d.to)
	if err != nil {
		return // the caller sees a connection that is closed
	}
	defer inner.Close()
	if !d.hold(outer, inner) {
		return
	}
	defer d.release(outer, inner)
	var both sync.WaitGroup
	both.Go(func() { pour(inner, outer) })
	both.Go(func() { pour(outer, inner) })
	both.Wait()
}

// pour copies until the end and passes that on.
func pour(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.(*net.TCPConn).CloseWrite()
}

func (d *door) hold(all ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range all {
		d.open[c] = true
	}
	return !d.closed
}

func (d *door) release(all ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range all {
		delete(d.open, c)
	}
}

// close ends what is open, before the room ends.
func (d *door) close() {
	d.listener.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.open {
		c.Close()
	}
	d.mu.Unlock()
	d.group.Wait()
}

// dial connects to an address as the room sees it: a socket belongs to the network of
// the thread that made it.
func (m *room) dial(address string) (c net.Conn, err error) {
	err = m.do(func() error {
		var dialer net.Dialer
		c, err = dialer.DialContext(context.Background(), "tcp", address)
		return err
	})
	return c, err
}
