package boardssh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// wire is the connection below SSH: TCP, a jump host's channel, or a ProxyCommand. It records when
// the board last sent something: behind an upload, the answer to a probe may come late.
type wire struct {
	net.Conn
	in    *bufio.Reader
	heard atomic.Int64 // Unix nanoseconds
	first string       // the start of the server's greeting
}

// Read returns buffered bytes from the server, and records the time.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	w.heard.Store(time.Now().UnixNano())
	return n, err
}

func (w *wire) silentFor() time.Duration { return time.Since(time.Unix(0, w.heard.Load())) }

// peekGreeting returns up to 40 bytes of the buffered greeting, and leaves them in the buffer.
func (w *wire) peekGreeting() string {
	data, _ := w.in.Peek(min(w.in.Buffered(), 40))
	return string(data)
}

// explainGreeting returns err as an ErrNotSSH that shows the server's greeting if that is not
// SSH's. Otherwise it returns err as it is.
func (w *wire) explainGreeting(err error) error {
	if w.first == "" || strings.HasPrefix(w.first, "SSH-"[:min(len(w.first), 4)]) {
		return err
	}
	return BoardError(fmt.Sprintf("%v at %s: it begins with %s", ErrNotSSH, w.RemoteAddr(), Printable(w.first)), kindError{ErrNotSSH, err})
}

// ErrNotSSH means that the server at the address does not speak SSH.
var ErrNotSSH = errors.New("no SSH server")

// kindError adds a sentinel error, the kind, to an error.
type kindError struct {
	kind error
	error
}

func (b kindError) Unwrap() []error { return []error{b.kind, b.error} }

// link is an SSH connection and the wire below it.
type link struct {
	*ssh.Client
	wire   *wire
	gone   chan struct{} // closed when the connection has ended
	probed atomic.Bool   // a probe has not been answered yet
	silent atomic.Bool   // Slipway closed it because the board was silent
	limit  time.Duration // how long the board may be silent
}

// newLink makes a link with a silence limit, and closes its channel gone when the connection ends.
func newLink(client *ssh.Client, w *wire, limit time.Duration) *link {
	l := &link{Client: client, wire: w, gone: make(chan struct{}), limit: limit}
	go func() {
		l.Wait()
		close(l.gone)
	}()
	return l
}

// awaitGreeting connects, with the login's rate limit, and waits for the first byte of the server's
// greeting. An open connection proves nothing: port forwarders accept it for a board that is off.
func (l *login) awaitGreeting(ctx context.Context) (*wire, error) {
	conn, err := l.dialHost(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w := &wire{Conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	if l.pace != nil {
		w.Conn = &paced{conn, l.pace, time.Sleep}
	}
	_, err = w.in.Peek(1)
	if !stop() {
		return nil, fmt.Errorf("no greeting from an SSH server: %w", context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		err = fmt.Errorf("no greeting from an SSH server: %w", err)
		if p, ok := conn.(*proxy); ok {
			err = p.explainFailure(err)
		}
		return nil, err
	}
	w.heard.Store(time.Now().UnixNano())
	w.first = w.peekGreeting()
	return w, nil
}

// dialHost connects to the board directly, through a jump host, or by a ProxyCommand.
func (l *login) dialHost(ctx context.Context) (net.Conn, error) {
	switch {
	case l.via != nil:
		return l.via.dialThrough(ctx, l.addr.hostPort())
	case l.addr.ProxyCommand != "":
		return startProxy(l.addr.ProxyCommand)
	}
	return l.addr.dialDirect(ctx)
}

// watchSilence closes the connection and marks it silent after the silence limit, at most
// goneAfter, and sends probes before that. It returns when the connection has ended.
func (l *link) watchSilence() {
	gone := min(goneAfter, l.limit)
	ask := min(probeAfter, gone/4)
	tick := time.NewTicker(ask)
	defer tick.Stop()
	for {
		select {
		case <-l.gone:
			return
		case <-tick.C:
		}
		switch silence := l.wire.silentFor(); {
		case silence > gone:
			l.silent.Store(true)
			l.dropLink()
		case silence >= ask/2:
			go l.sendProbe()
		}
	}
}

// sendProbe sends a keepalive request and waits for the answer, unless another does so already.
func (l *link) sendProbe() {
	if l.probed.CompareAndSwap(false, true) {
		l.SendRequest("keepalive@openssh.com", true, nil)
		l.probed.Store(false)
	}
}
