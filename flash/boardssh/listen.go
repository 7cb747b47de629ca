package boardssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// ErrForwarding means that the board's SSH server refuses to forward a port to Slipway.
var ErrForwarding = errors.New("the board's SSH server forwards no ports")

// Listen opens a port on the board's loopback address and returns a listener, which ends with the
// SSH connection. Any program on the board can connect, so the server behind the listener must
// expect hostile requests. If the board's server forwards no ports, it is an ErrForwarding.
func (c *Conn) Listen(ctx context.Context) (net.Listener, error) {
	link, err := c.currentLink()
	if err != nil {
		return nil, err
	}
	listener, err := openOnLink(ctx, link, func() (net.Listener, error) { return link.Listen("tcp", "127.0.0.1:0") })
	if err == nil {
		return timedListener{listener}, nil
	}
	if strings.Contains(err.Error(), "tcpip-forward request denied") {
		return nil, fmt.Errorf("listen on %s: %w; set AllowTcpForwarding yes (or remote) in its sshd_config", c.addr, ErrForwarding)
	}
	return nil, BoardError(fmt.Sprintf("listen on %s", c.addr), err)
}

// timedListener accepts connections that support read deadlines, which those of the SSH library do
// not. Without a deadline, a server could never end a silent client's connection.
type timedListener struct{ net.Listener }

// Accept returns a timedConn, which supports read deadlines. In the background it copies what the
// client sends into the timedConn's pipe.
func (l timedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	read, said := net.Pipe()
	go func() {
		io.Copy(said, conn)
		said.Close()
	}()
	return timedConn{conn, read}, nil
}

type timedConn struct {
	net.Conn
	read net.Conn // a copy of what the client sends, with deadlines
}

func (c timedConn) Read(p []byte) (int, error)        { return c.read.Read(p) }
func (c timedConn) SetReadDeadline(t time.Time) error { return c.read.SetReadDeadline(t) }

func (c timedConn) Close() error {
	c.read.Close()
	return c.Conn.Close()
}

// Redial makes a new connection for c, and closes the old one even if it is not lost. It retries
// until timeout, but ErrHostKey and ErrLogin end it at once. A closed c stays closed: no error.
func (c *Conn) Redial(ctx context.Context, timeout time.Duration) error {
	link, err := c.login.waitForLogin(ctx, timeout)
	if err != nil {
		return err
	}
	c.adoptLink(link)
	return nil
}
