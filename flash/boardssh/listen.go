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

// ErrForwarding says that the board's SSH server opens no ports for us.
var ErrForwarding = errors.New("the board's SSH server forwards no ports")

// Listen opens a port on the board's loopback address, whose connections arrive
// here: a program on the board can then send requests to this machine, whatever
// lies between the two. Any program on the board can, so the service here must expect
// hostile requests. The listener ends with the connection, or with its Close.
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

// timedListener gives its connections deadlines for reading, which those of SSH lack:
// a server could never be rid of a client that says nothing.
type timedListener struct{ net.Listener }

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
	read net.Conn // what the client says
}

func (c timedConn) Read(p []byte) (int, error)        { return c.read.Read(p) }
func (c timedConn) SetReadDeadline(t time.Time) error { return c.read.SetReadDeadline(t) }

func (c timedConn) Close() error {
	c.read.Close()
	return c.Conn.Close()
}

// Redial makes a new connection in the place of one that was lost.
func (c *Conn) Redial(ctx context.Context, timeout time.Duration) error {
	link, err := c.login.waitForLogin(ctx, timeout)
	if err != nil {
		return err
	}
	c.adoptLink(link)
	return nil
}
