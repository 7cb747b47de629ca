package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process has the lock.
var ErrLocked = errors.New("another process has the lock")

// Lock takes the lock of a file, which closing it gives back, as does the end of this
// process and of those that it gave the file to.
func Lock(f *os.File) error {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return ErrLocked
	case err != nil: // a file system without locks
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

const lockEvery = 20 * time.Millisecond

// AwaitLock is Lock that waits while another process has it.
func AwaitLock(ctx context.Context, f *os.File) error {
	for {
		err := Lock(f)
		if !errors.Is(err, ErrLocked) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockEvery):
		}
	}
}

// OpenLock opens the file of a lock, which it makes where there is none.
func OpenLock(name string, mode os.FileMode) (*os.File, error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file, and Slipway keeps a lock there\n  next: mv %s %s", name, Quote(name), Quote(name+".old"))
	}
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, mode)
}

// MkdirAll is os.MkdirAll that says what to do with a file in a folder's place.
func MkdirAll(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	var at *os.PathError
	if errors.As(err, &at) && (errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EEXIST)) {
		return fmt.Errorf("%s is no folder, and Slipway needs one there\n  next: mv %s %s", at.Path, Quote(at.Path), Quote(at.Path+".old"))
	}
	return err
}
