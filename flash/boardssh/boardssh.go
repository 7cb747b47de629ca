// Package boardssh turns an address into a connection to a running board, over SSH. It
// checks the board's host key, logs in with the user's keys, runs programs, opens single
// streams. Files, deploys and containers are the packages below it; flash writes disks.
//
// Slipway does not trust a board's answers. It limits their size, and shows text by Printable.
package boardssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds on how long a board may keep us waiting.
const (
	dialLimit  = 20 * time.Second // one connection, from the first packet to the login
	slowest    = 20 * time.Second // for a board that reacts to "stop this", but is slow
	probeAfter = 10 * time.Second // silence after which Slipway requests a sign of life
	goneAfter  = 35 * time.Second // silence after which the connection counts as lost
)

// Conn is a connection to one board. Its methods may be called from any goroutine. A connection
// that is lost stays lost; only Reboot and Redial make a new one.
type Conn struct {
	addr  Address
	login *login

	mu   sync.Mutex
	link *link // nil after Close

	// NoSFTP says that no sftp-server answers on the board, so files go through its shell.
	NoSFTP atomic.Bool

	guest bool // its login and its jump hosts belong to another Conn
}

// Reach resolves the name or address of a machine with Resolve and connects to it as Dial does.
func Reach(ctx context.Context, host string) (*Conn, error) {
	a, err := Resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, a)
}

// Dial makes one attempt to connect to the board at a. It asks a person at a terminal whether an
// unknown host key is the board's, and for the passphrase of a key that the server would accept.
// Further connections of the Conn never ask.
func Dial(ctx context.Context, a Address) (*Conn, error) { return dialBy(ctx, a, true, 0) }

// dialBy makes a login for a with the rate limit of ctx, opens its first connection, and finds the
// sudo password. It asks questions if attended. If wait is not 0, the board may still be starting.
func dialBy(ctx context.Context, a Address, attended bool, wait time.Duration) (*Conn, error) {
	l, err := newLogin(a)
	if err != nil {
		return nil, err
	}
	if r, _ := ctx.Value(rateKey{}).(Rate); r != 0 {
		l.pace = &pace{rate: r, now: time.Now}
	}
	open := func() (*link, error) {
		if wait != 0 {
			return l.waitForLogin(ctx, wait)
		}
		return l.openLink(ctx)
	}
	first := open
	if attended {
		first = func() (*link, error) { return dialAsking(ctx, open) }
	}
	link, err := first()
	if err != nil {
		l.close()
		return nil, err
	}
	return l.openConn(ctx, link, attended)
}

// openConn makes a Conn and finds the sudo password. On an error it closes link and jump hosts.
func (l *login) openConn(ctx context.Context, link *link, attended bool) (*Conn, error) {
	c := &Conn{addr: l.addr, login: l, link: link}
	if err := c.findSudoPassword(ctx, attended); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openLink opens and authenticates one more SSH connection to the board, within l.patience.
func (l *login) openLink(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.patience, l.connectTimeoutError())
	defer cancel()
	w, err := l.awaitGreeting(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", l.addr, err)
	}
	return l.handshake(ctx, w)
}

// Address returns the address at which the board was reached.
func (c *Conn) Address() Address { return c.addr }

// Close closes the connection to the board, and those to its jump hosts, unless DialAgain made c. A
// lost or closed connection is no error.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil
	}
	err := c.link.Close()
	c.link = nil
	if !c.guest {
		c.login.close()
	}
	if errors.Is(err, net.ErrClosed) {
		return nil // it was lost before
	}
	return err
}

// currentLink returns c's SSH connection, even if it is lost, or an error after Close.
func (c *Conn) currentLink() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil, fmt.Errorf("connection to %s is closed", c.addr)
	}
	return c.link, nil
}

// DialContext opens a connection from the board to one of the board's own sockets (network "unix"),
// or to a network address that the board can reach. For a socket it may run a program on the board.
func (c *Conn) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	link, err := c.currentLink()
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	if network == "unix" {
		conn, err = c.dialUnix(ctx, link, address)
	} else {
		conn, err = link.dialWithin(ctx, network, address)
	}
	if err != nil {
		return nil, BoardError(fmt.Sprintf("open %s %s on %s", network, address, c.addr), err)
	}
	return conn, nil
}

// Lost says whether the connection has ended without Close.
func (c *Conn) Lost() bool {
	link, err := c.currentLink()
	if err != nil {
		return false
	}
	select {
	case <-link.gone:
		return true
	default:
		return false
	}
}

// RoundTrip returns the shortest of three keepalive round trips. known is false without an answer.
func (c *Conn) RoundTrip(ctx context.Context) (best time.Duration, known bool) {
	link, err := c.currentLink()
	for range 3 {
		if err != nil {
			break
		}
		began := time.Now()
		err = link.doWithin(ctx, func() {}, func() error {
			_, _, err := link.SendRequest("keepalive@openssh.com", true, nil)
			return err
		})
		if took := time.Since(began); err == nil && (!known || took < best) {
			best, known = took, true
		}
	}
	return best, known
}

// DialAgain makes one more connection, with c's login and jump hosts. So c has to stay open.
func (c *Conn) DialAgain(ctx context.Context) (*Conn, error) {
	link, err := c.login.openLink(ctx)
	if err != nil {
		return nil, err
	}
	return &Conn{addr: c.addr, login: c.login, link: link, guest: true}, nil
}
