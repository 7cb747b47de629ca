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

// gate is the jump host that a board is reached through. All connections that are made
// with one login share one connection to it, and it stays when the board restarts.
type gate struct {
	login *login
	turn  chan struct{} // held by whoever connects

	mu     sync.Mutex
	link   *link
	closed bool
}

func newGate(a Address) (*gate, error) {
	l, err := newLogin(a)
	if err != nil {
		return nil, fmt.Errorf("jump host %s: %w", a.Host, err)
	}
	l.isHop = true
	return &gate{login: l, turn: make(chan struct{}, 1)}, nil
}

// dial opens a connection from the jump host to an address that it can reach.
func (g *gate) dial(ctx context.Context, address string) (net.Conn, error) {
	link, err := g.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("jump host: %w", err)
	}
	conn, err := link.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, g.explain(err)
	}
	return &passage{Conn: conn, hop: link}, nil
}

func (g *gate) explain(err error) error {
	what := fmt.Sprintf("jump host %s: it did not open the connection", g.login.addr)
	var refused *ssh.OpenChannelError
	if errors.As(err, &refused) && refused.Reason == ssh.Prohibited {
		return fmt.Errorf("%w\n  its sshd must allow this: AllowTcpForwarding yes, and PermitOpen for the board", said(what, err))
	}
	return said(what, err)
}

func (g *gate) open(ctx context.Context) (*link, error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-g.turn }()
	if l := g.alive(); l != nil {
		return l, nil
	}
	l, err := g.login.connect(ctx)
	if err != nil {
		return nil, err
	}
	return l, g.adopt(l)
}

// alive is the connection that there is, or nil.
func (g *gate) alive() *link {
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

func (g *gate) adopt(l *link) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		l.Close()
		return net.ErrClosed
	}
	g.link = l
	return nil
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.link != nil {
		g.link.Close()
	}
	g.login.close()
}

// passage is a connection that a jump host carries.
type passage struct {
	net.Conn
	hop  *link
	once sync.Once
}

// Close does not wait for the jump host, whose word alone ends a Read: one that does
// not give it loses its connection.
func (p *passage) Close() error {
	p.once.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		slow := func() bool { return p.hop.wire.silence() < slowest/4 }
		go p.hop.watch(ctx, watch{untimed, func() { p.Conn.Close() }, slow}, func() error {
			cancel()
			_, err := io.Copy(io.Discard, p.Conn)
			return err
		})
	})
	return nil
}

// jumps are the arguments that make ssh take the same way.
func (a Address) jumps() []string {
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
