package boardssh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/ssh"
)

// The size of the board's terminal: wide lines, as a program that edits its line would fold it.
const (
	terminalRows    = 50
	terminalColumns = 1000
)

// Terminal runs a program at a terminal on the board, because programs without one buffer their
// output. It calls talk with its keyboard and screen, which gets both outputs. When talk returns,
// it closes the session, which ends the program, and returns talk's error. It ignores the exit
// status. A sudo that needs a password is ErrBecome.
func (c *Conn) Terminal(ctx context.Context, talk func(keys io.Writer, screen io.Reader) error, argv ...string) error {
	link, session, err := c.openProgram(ctx, argv)
	if err != nil {
		return err
	}
	defer func() { go session.Close() }()
	program := c.login.newProgram(io.Discard)
	if program.needsPassword() {
		return fmt.Errorf("%w: a program at a terminal of %s needs NOPASSWD in its sudoers", ErrBecome, c.addr)
	}
	program.ready = "" // it would be on the screen
	screen, output := io.Pipe()
	defer screen.Close()
	pid := &pidLine{mark: "slipway-run-" + rand.Text() + " ", out: output}
	session.Stdout = pid
	keys, err := session.StdinPipe()
	if err != nil {
		return err
	}
	stopping := stopper{login: c.login, link: link, session: session, pid: pid}
	stop := func() {
		screen.Close() // wakes talk
		stopping.stopProgram()
	}
	err = link.doWithin(ctx, stop, func() error {
		err := session.RequestPty("dumb", terminalRows, terminalColumns, ssh.TerminalModes{ssh.ECHO: 0})
		if err != nil {
			return BoardError(fmt.Sprintf("get a terminal of %s; is devpts mounted there, and PermitTTY on for its sshd?", c.addr), err)
		}
		if err = session.Start(pid.shellPrefix() + program.commandLine(argv)); err != nil {
			return BoardError(fmt.Sprintf("run %s at a terminal of %s", argv[0], c.addr), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return link.watch(ctx, watch{noQuietLimit, stop, stopping.said.heard.Load, false}, func() error {
		err := holdDialogue(session, pid, talk, keys, screen, output)
		if pid.knownPID() == 0 {
			return c.shellError(pid.said)
		}
		return err
	})
}

// holdDialogue calls talk, then closes the session, drops further output, and waits for the
// program's end. It returns talk's error, or one of the session that is no exit status.
func holdDialogue(session *ssh.Session, pid *pidLine, talk func(io.Writer, io.Reader) error, keys io.WriteCloser, screen *io.PipeReader, output *io.PipeWriter) error {
	ended := make(chan error, 1)
	go func() {
		err := session.Wait()
		pid.flushHeld()
		output.Close()
		ended <- err
	}()
	err := talk(keys, screen)
	go io.Copy(io.Discard, screen) // drop what it still prints
	keys.Close()
	session.Close()
	if left := <-ended; err == nil && left != nil && !errors.As(left, new(*ssh.ExitError)) && !errors.As(left, new(*ssh.ExitMissingError)) {
		err = left
	}
	return err
}
