package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"slipway/layers/plaintext"
)

// jumpHost is a machine that a board is reached through. All connections of one login share
// one connection to it, which stays when the board restarts.
type jumpHost struct {
	login   *login
	dialing chan struct{} // held by whoever connects

	mu     sync.Mutex
	link   *link
	closed bool
}

func newJumpHost(a Address) (*jumpHost, error) {
	l, err := newLogin(a)
	if err != nil {
		return nil, fmt.Errorf("jump host %s: %w", a.Host, err)
	}
	l.isHop = true
	return &jumpHost{login: l, dialing: make(chan struct{}, 1)}, nil
}

// dialThrough opens a connection from the jump host to an address that it can reach.
func (g *jumpHost) dialThrough(ctx context.Context, address string) (net.Conn, error) {
	link, err := g.openLink(ctx)
	if err != nil {
		return nil, fmt.Errorf("jump host: %w", err)
	}
	conn, err := link.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, g.explainRefusal(err)
	}
	return &hopConn{Conn: conn, hop: link}, nil
}

func (g *jumpHost) explainRefusal(err error) error {
	what := fmt.Sprintf("jump host %s: it did not open the connection", g.login.addr)
	var refused *ssh.OpenChannelError
	if errors.As(err, &refused) && refused.Reason == ssh.Prohibited {
		return fmt.Errorf("%w\n  its sshd must allow this: AllowTcpForwarding yes, and PermitOpen for the board", BoardError(what, err))
	}
	return BoardError(what, err)
}

func (g *jumpHost) openLink(ctx context.Context) (*link, error) {
	select {
	case g.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-g.dialing }()
	if l := g.liveLink(); l != nil {
		return l, nil
	}
	l, err := g.login.openLink(ctx)
	if err != nil {
		return nil, err
	}
	return l, g.adoptLink(l)
}

// liveLink is the connection to the jump host, or nil.
func (g *jumpHost) liveLink() *link {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.link == nil {
		return nil
	}
	select {
	case <-g.link.gone:
		return nil
	default:
		return g.link
	}
}

func (g *jumpHost) adoptLink(l *link) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		l.Close()
		return net.ErrClosed
	}
	g.link = l
	return nil
}

func (g *jumpHost) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.link != nil {
		g.link.Close()
	}
	g.login.close()
}

// hopConn is a connection that a jump host carries.
type hopConn struct {
	net.Conn
	hop  *link
	once sync.Once
}

// Close does not wait for the jump host. Only the jump host's answer ends a Read; if it does not
// answer, its connection is closed.
func (p *hopConn) Close() error {
	p.once.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		slow := func() bool { return p.hop.wire.silentFor() < slowest/4 }
		go p.hop.watch(ctx, watch{noQuietLimit, func() { p.Conn.Close() }, slow, false}, func() error {
			cancel()
			_, err := io.Copy(io.Discard, p.Conn)
			return err
		})
	})
	return nil
}

// jumpArgs are the arguments with which ssh uses the same jump hosts.
func (a Address) jumpArgs() []string {
	if a.ProxyCommand != "" {
		return []string{"-o", plaintext.Quote("ProxyCommand=" + strings.ReplaceAll(a.ProxyCommand, "%", "%%"))}
	}
	var hops []string
	for hop := a.Via; hop != nil; hop = hop.Via {
		hops = append([]string{hop.String()}, hops...)
	}
	if len(hops) == 0 {
		return nil
	}
	return []string{"-J", plaintext.Quote(strings.Join(hops, ","))}
}
