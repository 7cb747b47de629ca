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
// that. It first prints a line with the word $2, because a login script may have printed before.
const bridgeScript = `[ -S "$1" ] || { echo "$2 absent"; exit; }
if command -v socat >/dev/null; then echo "$2 ready"; exec socat - "UNIX-CONNECT:$1"; fi
case $(nc -h 2>&1) in *-N*-U*) echo "$2 ready"; exec nc -N -U "$1" ;; esac
if command -v ncat >/dev/null; then echo "$2 ready"; exec ncat -U "$1"; fi
echo "$2 none"`

// plainPath matches socket paths without characters that socat, nc or ncat would interpret.
var plainPath = plaintext.Regexp(`^/[A-Za-z0-9_./-]+$`)

// dialUnix opens a connection to a Unix socket on the board. If the SSH server does not forward
// sockets (dropbear), or sudo is in use, socat, nc or ncat on the board connects to the socket.
// These take only a plainPath. A missing socket is the server's refusal, or fs.ErrNotExist.
func (c *Conn) dialUnix(ctx context.Context, link *link, address string) (net.Conn, error) {
	var err error
	if c.login.sudo == nil { // the server opens sockets as the user who logs in
		var conn net.Conn
		if conn, err = link.dialWithin(ctx, "unix", address); !errors.As(err, new(*ssh.OpenChannelError)) {
			return conn, err
		}
	}
	if !plainPath().MatchString(address) {
		return nil, cmp.Or(err, fmt.Errorf("the path %s has characters that socat or ncat would interpret", Printable(address)))
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

// bridge is a net.Conn over the input and output of the program that bridgeScript starts.
type bridge struct {
	*ssh.Session
	in        io.WriteCloser
	out       io.Reader
	stderr    *LimitedBuffer
	admission *boardProgram
	path      string
	over      func() error // waits for the program's end
}

// openBridge runs bridgeScript on the board and returns the connection and the script's state:
// ready, absent (no such socket), or none (no program for it). The bridge is nil unless ready.
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

// startProgram starts bridgeScript, passes sudo its password, and returns the state in the script's
// output line with the mark. It fails if maxHeldBytes come without that line.
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
	// Byte by byte: what follows the line belongs to the connection.
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

// Read reads the program's output. An error, also io.EOF, gets the program's standard error.
func (b *bridge) Read(p []byte) (int, error) {
	n, err := b.out.Read(p)
	if err != nil {
		err = b.explainEnd(err)
	}
	return n, err
}

// explainEnd waits for the program's end and adds its standard error, if any, to err.
func (b *bridge) explainEnd(err error) error {
	_ = b.over() // then its standard error is complete
	if words := b.stderr.Bytes(); len(words) > 0 {
		return fmt.Errorf("%w: %s", err, Printable(string(words)))
	}
	return err
}

func (b *bridge) Write(p []byte) (int, error) { return b.in.Write(p) }

// Close closes the program's input, which ends the program, and the session.
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
