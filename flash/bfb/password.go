package bfb

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

const (
	leastPassword = 8 // what the installed system asks for when the password is changed there
	mostPassword  = 512
)

// MakeConfig asks for a password on in, a terminal or not, and writes a bf.cfg that
// gives it to user. The password itself is written nowhere. A file that is there stays.
func MakeConfig(ctx context.Context, in *os.File, ask io.Writer, path, user string) error {
	if _, err := Config(user, HashPassword([]byte("a name is tried first"))); err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there already; remove it, or add the line of another file to it", path)
	}
	password, err := askPassword(ctx, in, ask, user)
	if err != nil {
		return err
	}
	text, err := Config(user, HashPassword(password))
	clear(password)
	if err != nil {
		return err
	}
	return create(path, text)
}

// create does not use a rename, which would replace a file that came meanwhile.
func create(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func askPassword(ctx context.Context, in *os.File, ask io.Writer, user string) ([]byte, error) {
	lines := bufio.NewReader(io.LimitReader(in, 2*(mostPassword+2)))
	if fd := int(in.Fd()); term.IsTerminal(fd) {
		return askTwice(ctx, fd, lines, ask, user)
	}
	password, err := askLine(ctx, lines)
	if err != nil {
		return nil, err
	}
	return acceptable(password)
}

func askTwice(ctx context.Context, fd int, lines *bufio.Reader, ask io.Writer, user string) ([]byte, error) {
	restore, err := hide(fd)
	if err != nil {
		return nil, err
	}
	defer restore()
	fmt.Fprintf(ask, "Password for %s on the DPU: ", user)
	first, err := askLine(ctx, lines)
	fmt.Fprintln(ask)
	if err == nil {
		first, err = acceptable(first)
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprint(ask, "The same again: ")
	again, err := askLine(ctx, lines)
	fmt.Fprintln(ask)
	if err == nil && !bytes.Equal(first, again) {
		err = errors.New("the two are not the same; nothing was written")
	}
	clear(again)
	return first, err
}

// hide takes the echo from a terminal, until restore is called. The library's own way does
// so beside the reading, which a Ctrl-C does not end, and could do it after restore.
func hide(fd int) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	hidden.Lflag |= unix.ICANON | unix.ISIG
	hidden.Iflag |= unix.ICRNL
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &hidden); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }, nil
}

func askLine(ctx context.Context, lines *bufio.Reader) ([]byte, error) {
	line, err := unlessEnded(ctx, func() ([]byte, error) { return lines.ReadBytes('\n') })
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// unlessEnded does not wait for an answer any longer once the context has ended.
func unlessEnded(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type answer struct {
		text []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := read()
		answers <- answer{text, err}
	}()
	select {
	case a := <-answers:
		return a.text, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func acceptable(password []byte) ([]byte, error) {
	switch n := len(password); {
	case n < leastPassword:
		return nil, fmt.Errorf("a password of %d characters is too short; take %d or more", n, leastPassword)
	case n > mostPassword:
		return nil, fmt.Errorf("a password has no more than %d characters", mostPassword)
	case bytes.IndexByte(password, 0) >= 0:
		return nil, errors.New("a password cannot hold a NUL byte")
	}
	return password, nil
}
