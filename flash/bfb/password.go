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
	leastPassword = 8 // the installed system's minimum
	mostPassword  = 512
)

// MakeConfig reads a password from in, a terminal or not, and writes a bf.cfg that
// gives it to user. It writes the password itself nowhere. It does not replace a file.
func MakeConfig(ctx context.Context, in *os.File, ask io.Writer, path, user string) error {
	if _, err := Config(user, HashPassword([]byte("a name is tried first"))); err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already; remove it, or add the line of another file to it", path)
	}
	password, err := readPassword(ctx, in, ask, user)
	if err != nil {
		return err
	}
	text, err := Config(user, HashPassword(password))
	clear(password)
	if err != nil {
		return err
	}
	return createFile(path, text)
}

// createFile does not use a rename, which would replace a file that appeared since the check.
func createFile(path string, text []byte) error {
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

func readPassword(ctx context.Context, in *os.File, ask io.Writer, user string) ([]byte, error) {
	lines := bufio.NewReader(io.LimitReader(in, 2*(mostPassword+2)))
	if fd := int(in.Fd()); term.IsTerminal(fd) {
		return readPasswordTwice(ctx, fd, lines, ask, user)
	}
	password, err := readLine(ctx, lines)
	if err != nil {
		return nil, err
	}
	return checkPasswordLength(password)
}

func readPasswordTwice(ctx context.Context, fd int, lines *bufio.Reader, ask io.Writer, user string) ([]byte, error) {
	restore, err := disableEcho(fd)
	if err != nil {
		return nil, err
	}
	defer restore()
	fmt.Fprintf(ask, "Password for %s on the DPU: ", user)
	first, err := readLine(ctx, lines)
	fmt.Fprintln(ask)
	if err == nil {
		first, err = checkPasswordLength(first)
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprint(ask, "The same again: ")
	again, err := readLine(ctx, lines)
	fmt.Fprintln(ask)
	if err == nil && !bytes.Equal(first, again) {
		err = errors.New("the two are not the same; nothing was written")
	}
	clear(again)
	return first, err
}

// disableEcho disables a terminal's echo until restore is called. The library does so
// in the reading call, which Ctrl-C does not end. It could thus disable the echo after
// restore.
func disableEcho(fd int) (restore func(), err error) {
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

func readLine(ctx context.Context, lines *bufio.Reader) ([]byte, error) {
	line, err := readUnlessDone(ctx, func() ([]byte, error) { return lines.ReadBytes('\n') })
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// readUnlessDone stops waiting for read when the context ends.
func readUnlessDone(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
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

func checkPasswordLength(password []byte) ([]byte, error) {
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
