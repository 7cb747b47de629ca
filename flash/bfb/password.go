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
	fd := int(in.Fd())
	if !term.IsTerminal(fd) {
		line, err := bufio.NewReader(io.LimitReader(in, mostPassword+2)).ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return acceptable(bytes.TrimRight(line, "\r\n"))
	}
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	// A Ctrl-C must not leave the terminal without its echo.
	defer context.AfterFunc(ctx, func() { _ = term.Restore(fd, before) })()
	first, err := askHidden(fd, ask, "Password for "+user+" on the DPU: ")
	if err != nil {
		return nil, err
	}
	if first, err = acceptable(first); err != nil {
		return nil, err
	}
	again, err := askHidden(fd, ask, "The same again: ")
	if err == nil && !bytes.Equal(first, again) {
		err = errors.New("the two are not the same; nothing was written")
	}
	clear(again)
	return first, err
}

func askHidden(fd int, ask io.Writer, prompt string) ([]byte, error) {
	fmt.Fprint(ask, prompt)
	defer fmt.Fprintln(ask)
	return term.ReadPassword(fd)
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
