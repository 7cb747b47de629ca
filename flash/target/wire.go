package target

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// wire is the TCP connection below SSH. It knows when the board last sent
// something: an answer to a probe can be queued behind megabytes of an upload,
// but then other answers come.
type wire struct {
	net.Conn
	in    *bufio.Reader
	heard atomic.Int64 // Unix nanoseconds
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	w.heard.Store(time.Now().UnixNano())
	return n, err
}

func (w *wire) silence() time.Duration { return time.Since(time.Unix(0, w.heard.Load())) }

// link is an SSH connection and the wire below it.
type link struct {
	*ssh.Client
	wire *wire
	gone chan struct{} // closed when the connection has ended
}

func newLink(client *ssh.Client, w *wire) *link {
	l := &link{client, w, make(chan struct{})}
	go func() {
		l.Wait()
		close(l.gone)
	}()
	return l
}

// greet connects and waits for the first byte of the server's greeting. Port
// forwarders accept connections for boards that are not up yet, so an open
// connection alone proves nothing.
func greet(ctx context.Context, a Address) (*wire, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", a.hostPort())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w := &wire{Conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	_, err = w.in.Peek(1)
	if !stop() {
		return nil, fmt.Errorf("no greeting from an SSH server: %w", context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("no greeting from an SSH server: %w", err)
	}
	w.heard.Store(time.Now().UnixNano())
	return w, nil
}

// keep closes the link when the board has fallen silent, so that whoever waits for
// it gets an error instead of waiting for ever.
func (l *link) keep() {
	tick := time.NewTicker(probeAfter)
	defer tick.Stop()
	for {
		select {
		case <-l.gone:
			return
		case <-tick.C:
		}
		switch silence := l.wire.silence(); {
		case silence > goneAfter:
			l.Close()
		case silence >= probeAfter/2:
			go l.SendRequest("keepalive@openssh.com", true, nil)
		}
	}
}
