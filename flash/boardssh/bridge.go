package boardssh

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"
	"time"

	"slipway/layers/plaintext"

	"golang.org/x/crypto/ssh"
)

// bridgeScript joins its input and output to the socket $1, with a program that the board has for
// that. It first prints a line with the word $2, because a login script may have printed something
// before.
const bridgeScript = `[ -S "$1" ] || { echo "$2 absent"; exit; }
if command -v socat >/dev/null; then echo "$2 ready"; exec socat - "UNIX-CONNECT:$1"; fi
case $(nc -h 2>&1) in *-N*-U*) echo "$2 ready"; exec nc -N -U "$1" ;; esac
if command -v ncat >/dev/null; then echo "$2 ready"; exec ncat -U "$1"; fi
echo "$2 none"`

// plainPath is a socket's path that means itself to each of these programs.
var plainPath = plaintext.Regexp(`^/[A-Za-z0-9_./-]+$`)

// dialUnix opens a connection to a socket of the board's. Where its SSH server forwards
// none, as dropbear, or was told not to, a program there does.
func (c *Conn) dialUnix(ctx context.Context, link *link, address string) (net.Conn, error) {
	var refused *ssh.OpenChannelError
	var err error
	if c.login.sudo == nil { // the server opens sockets as the user who logs in
		conn, failed := link.dialWithin(ctx, "unix", address)
		if !errors.As(failed, &refused) || !plainPath().MatchString(address) {
			return conn, failed
		}
		err = failed
	}
	bridged, state, failed := c.openBridge(ctx, link, address)
	switch {
	case failed != nil:
		return nil, errors.Join(err, failed)
	case state == "none":
		return nil, errors.Join(err, errors.New("the SSH server forwards no sockets: set AllowStreamLocalForwarding yes in its sshd_config, or install socat on the board"))
	case state != "ready":
		return nil, cmp.Or(err, fs.ErrNotExist) // the server would, but there is no such socket
	}
	return bridged, nil
}

// bridge is a connection by such a program.
type bridge struct {
	*ssh.Session
	in        io.WriteCloser
	out       io.Reader
	stderr    *LimitedBuffer
	admission *boardProgram
	path      string
	over      func() error // waits for its end
}

// openBridge starts the program and returns what it says first.
func (c *Conn) openBridge(ctx context.Context, link *link, address string) (*bridge, string, error) {
	session, err := openSession(ctx, link)
	if err != nil {
		return nil, "", err
	}
	b := &bridge{Session: session, stderr: &LimitedBuffer{most: maxSaidBytes}, path: address, over: sync.OnceValue(session.Wait)}
	b.admission = c.login.newProgram(b.stderr)
	session.Stderr = b.admission
	var state string
	err = link.doWithin(ctx, func() { session.Close() }, func() (err error) {
		state, err = b.startProgram("slipway-bridge-" + rand.Text())
		return err
	})
	if err != nil || state != "ready" {
		go session.Close()
		return nil, state, err
	}
	return b, state, nil
}

func (b *bridge) startProgram(mark string) (state string, err error) {
	if b.in, err = b.StdinPipe(); err != nil {
		return "", err
	}
	if b.out, err = b.StdoutPipe(); err != nil {
		return "", err
	}
	if err := b.Start(b.admission.commandLine([]string{"sh", "-c", bridgeScript, "sh", b.path, mark})); err != nil {
		return "", err
	}
	if err := b.admission.passSudo(b.in); err != nil {
		return "", err
	}
	// Byte by byte: what follows is the connection's.
	var said []byte
	for one := make([]byte, 1); len(said) < maxHeldBytes; said = append(said, one...) {
		_, after, marked := bytes.Cut(said, []byte(mark+" "))
		if state, ended := bytes.CutSuffix(after, []byte("\n")); marked && ended {
			return string(state), nil
		}
		if _, err := io.ReadFull(b.out, one); err != nil {
			return "", b.explainEnd(err)
		}
	}
	return "", fmt.Errorf("the board's shell talks by itself: %s", Printable(string(said[:maxSaidBytes/8])))
}

func (b *bridge) Read(p []byte) (int, error) {
	n, err := b.out.Read(p)
	if err != nil {
		err = b.explainEnd(err)
	}
	return n, err
}

// explainEnd adds the program's own message to an end that it did not expect.
func (b *bridge) explainEnd(err error) error {
	_ = b.over() // then all of them are here
	if words := b.stderr.Bytes(); len(words) > 0 {
		return fmt.Errorf("%w: %s", err, Printable(string(words)))
	}
	return err
}

func (b *bridge) Write(p []byte) (int, error) { return b.in.Write(p) }

// Close ends the program too, whose input then ends.
func (b *bridge) Close() error {
	b.in.Close()
	return b.Session.Close()
}

func (b *bridge) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "@", Net: "unix"} }
func (b *bridge) RemoteAddr() net.Addr { return &net.UnixAddr{Name: b.path, Net: "unix"} }

// As on SSH's own connections, there are no deadlines.
func (b *bridge) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (b *bridge) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (b *bridge) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
