package boardssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"slipway/layers/progress"
)

// maxAsked is how often Slipway asks a person the same question.
const maxAsked = 3

// question is an error that a person can fix. Slipway asks after the connection has ended, so that
// no time limit runs during the answer.
type question struct {
	refusal error // the error where nobody can be asked
	ask     func(context.Context, *terminal) error
	next    string // the command that answers beforehand, or ""
}

func (q *question) Error() string { return q.refusal.Error() }

func (q *question) Unwrap() error { return q.refusal }

// asking is a semaphore: many boards may have a question, but only one at a time asks the person.
var asking = make(chan struct{}, 1)

// dialAsking calls try until it succeeds or fails with an error that is no question. Before the
// next try, it asks a person the question. Without an answer, it returns try's or asking's error.
func dialAsking(ctx context.Context, try func() (*link, error)) (*link, error) {
	for {
		link, err := try()
		var q *question
		if !errors.As(err, &q) {
			return link, err
		}
		answered, failed := q.askPerson(ctx)
		if failed != nil && !errors.Is(failed, io.EOF) {
			return nil, failed
		}
		if !answered || failed != nil { // Ctrl-D is no answer
			return nil, err
		}
	}
}

// askPerson asks the person at the terminal, after other boards' questions. It returns false
// without asking in CI and without a terminal.
func (q *question) askPerson(ctx context.Context) (answered bool, err error) {
	select {
	case asking <- struct{}{}:
		defer func() { <-asking }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	t := atTerminal()
	if t == nil {
		return false, nil
	}
	return true, q.ask(ctx, t)
}

// terminal is the terminal where a person reads questions and types answers.
type terminal struct{ in, out *os.File }

// atTerminal returns the terminal of standard input and error; nil in CI, or if one is no terminal.
var atTerminal = func() *terminal {
	if os.Getenv("CI") != "" || !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	return &terminal{os.Stdin, os.Stderr}
}

const maxLineBytes = 4096

// readAnswer pauses the progress display, prints the prompt and reads one line from the terminal,
// without echo if secret. If ctx ends first, it returns an error, and its goroutine still reads.
func (t *terminal) readAnswer(ctx context.Context, prompt string, secret bool) (string, error) {
	if secret {
		show, err := t.hideEcho()
		if err != nil {
			return "", err
		}
		defer fmt.Fprintln(t.out)
		defer show()
	}
	defer progress.Release(ctx)()
	fmt.Fprint(t.out, prompt)
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := readLine(t.in)
		answers <- answer{text, err}
	}()
	select {
	case a := <-answers:
		return a.text, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// readLine reads one line byte by byte, because other readers get what follows. It drops bytes
// after maxLineBytes. An input that ends before the newline is an error.
func readLine(in io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := in.Read(b)
		switch {
		case n > 0 && b[0] == '\n':
			return string(line), nil
		case n > 0 && len(line) < maxLineBytes:
			line = append(line, b[0])
		case n == 0 && err != nil:
			return "", fmt.Errorf("read an answer: %w", err)
		}
	}
}

// hideEcho turns the terminal's echo off, and line mode and Ctrl-C on. show restores the settings.
func (t *terminal) hideEcho() (show func(), err error) {
	fd := int(t.in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("hide what is typed: %w", err)
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	hidden.Lflag |= unix.ICANON | unix.ISIG
	hidden.Iflag |= unix.ICRNL
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &hidden); err != nil {
		return nil, fmt.Errorf("hide what is typed: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }, nil
}
