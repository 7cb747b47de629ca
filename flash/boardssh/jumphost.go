package boardssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// jumpHost is a jump host of a board. All connections of one login share one connection to it,
// which stays open when the board restarts.
type jumpHost struct {
	login   *login
	dialing chan struct{} // held by whoever connects

	mu     sync.Mutex
	link   *link
	closed bool
}

// newJumpHost makes the login for a jump host as newLogin does. It opens no connection.
func newJumpHost(a Address) (*jumpHost, error) {
	l, err := newLogin(a)
	if err != nil {
		return nil, fmt.Errorf("jump host %s: %w", a.Host, err)
	}
	l.isHop = true
	return &jumpHost{login: l, dialing: make(chan struct{}, 1)}, nil
}

// dialThrough opens a TCP connection through the jump host, which it connects to if needed.
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

// explainRefusal returns the error for a connection that the jump host did not open. If its sshd
// prohibits that, the error names the settings to change.
func (g *jumpHost) explainRefusal(err error) error {
	what := fmt.Sprintf("jump host %s: it did not open the connection", g.login.addr)
	if refused, is := errors.AsType[*ssh.OpenChannelError](err); is && refused.Reason == ssh.Prohibited {
		return fmt.Errorf("%w\n  its sshd must allow this: AllowTcpForwarding yes, and PermitOpen for the board", BoardError(what, err))
	}
	return BoardError(what, err)
}

// openLink returns the live connection to the jump host, or makes one, one caller at a time.
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
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed { // meanwhile
		l.Close()
		return nil, net.ErrClosed
	}
	g.link = l
	return l, nil
}

// liveLink returns the connection to the jump host, or nil if there is none or it has ended.
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

// close closes the connection to this jump host and to those before it. No new ones can be made.
func (g *jumpHost) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.link != nil {
		g.link.Close()
	}
	g.login.close()
}

// hopConn is a connection to a board through a jump host.
type hopConn struct {
	net.Conn
	hop  *link
	once sync.Once
}

// Close returns nil and closes the connection in the background. Only the jump host's answer ends a
// pending Read, so if it does not answer, Close drops the whole connection to the jump host.
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

// jumpArgs returns the ssh arguments, quoted for a shell, for the same jump hosts (-J) or
// ProxyCommand, or nil.
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

// proxy is a connection over the standard input and output of a ProxyCommand.
type proxy struct {
	net.Conn
	stop  context.CancelFunc
	words *LimitedBuffer // the program's standard error
	ended chan struct{}  // closed when the program has ended
}

// startProxy runs a ProxyCommand with the user's shell, as ssh does, and returns the connection to
// its standard input and output. Values that were filled in are safe, because tokens.expandCommand
// has checked them. The program ends with the connection, not with a context.
func startProxy(command string) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start the ProxyCommand: %w", err)
	}
	defer theirs.Close()
	shell := cmp.Or(os.Getenv("SHELL"), "/bin/sh")
	ctx, stop := context.WithCancel(context.Background())
	p := &proxy{Conn: ours, stop: stop, words: &LimitedBuffer{}, ended: make(chan struct{})}
	cmd := run.Prepare(ctx, run.Command{Argv: []string{shell, "-c", "exec " + command}})
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, p.words
	if err := cmd.Start(); err != nil {
		stop()
		ours.Close()
		return nil, fmt.Errorf("start the ProxyCommand %q: %w", plaintext.Printable(command), err)
	}
	go p.waitForEnd(cmd)
	return p, nil
}

// waitForEnd waits for the program's end, releases its context, and closes p.ended.
func (p *proxy) waitForEnd(cmd *exec.Cmd) {
	cmd.Wait()
	p.stop()
	close(p.ended)
}

// socketPair returns a connected Unix socket's ends: one for Slipway, one for a program.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
	}
	return conn, theirs, err
}

func (p *proxy) Close() error {
	p.stop()
	return p.Conn.Close()
}

// explainFailure waits up to 2*quick for the program's end and adds its standard error to err. If
// that is empty, it adds "it said nothing".
func (p *proxy) explainFailure(err error) error {
	select {
	case <-p.ended:
	case <-time.After(2 * quick):
	}
	words := cmp.Or(Printable(string(p.words.Bytes())), "it said nothing")
	return errors.Join(fmt.Errorf("ProxyCommand: %w", err), errors.New("  "+words))
}
