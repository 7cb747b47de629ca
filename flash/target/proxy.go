package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// proxy is a connection that a program of the user's carries.
type proxy struct {
	net.Conn
	stop  context.CancelFunc
	words *LimitedBuffer // what it said on standard error
	ended chan struct{}  // closed when the program has ended
}

// startProxy runs a ProxyCommand. It is text of the user's own configuration, written
// for the user's shell, with its quotes, variables and pipes, so that shell reads it,
// as with ssh. What was filled in was checked by tokens.expandCommand. The program outlives
// the ctx that it is started with, and ends with the connection.
func startProxy(command string) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start the ProxyCommand: %w", err)
	}
	defer theirs.Close()
	shell := os.Getenv("SHELL")
	if shell == "" {
		shell = "/bin/sh"
	}
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

func (p *proxy) waitForEnd(cmd *exec.Cmd) {
	cmd.Wait()
	p.stop()
	close(p.ended)
}

// socketPair is one end for us and one for a program.
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

// explainFailure adds to an error what the program said, if it ended.
func (p *proxy) explainFailure(err error) error {
	select {
	case <-p.ended:
	case <-time.After(2 * quick):
	}
	words := Printable(string(p.words.Bytes()))
	if words == "" {
		words = "it said nothing"
	}
	return errors.Join(fmt.Errorf("ProxyCommand: %w", err), errors.New("  "+words))
}
