package localfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"slipway/layers/plaintext"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another process has the lock.
var ErrLocked = errors.New("another process has the lock")

// TryLock locks an open file, or returns ErrLocked. The lock ends when the file is closed in this
// process and in all that inherited it.
func TryLock(f *os.File) error {
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

// WaitLock locks an open file. It waits while another process has the lock, until ctx ends.
func WaitLock(ctx context.Context, f *os.File) error {
	for {
		err := TryLock(f)
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

// OpenLock opens or creates a lock file, and does not lock it. It refuses what is no regular file.
func OpenLock(name string, mode os.FileMode) (*os.File, error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file, and Slipway keeps a lock there\nnext: mv %s %s", name, plaintext.Quote(name), plaintext.Quote(name+".old"))
	}
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, mode)
}

// Lock opens and locks a file. It waits for the lock until ctx ends. Close the file to unlock it.
func Lock(ctx context.Context, name string, mode os.FileMode) (*os.File, error) {
	return openLocked(name, mode, func(f *os.File) error { return WaitLock(ctx, f) })
}

// LockNow is Lock that returns ErrLocked at once.
func LockNow(name string, mode os.FileMode) (*os.File, error) {
	return openLocked(name, mode, TryLock)
}

// openLocked opens a lock file and calls lock with it. It closes the file if lock fails.
func openLocked(name string, mode os.FileMode, lock func(*os.File) error) (*os.File, error) {
	f, err := OpenLock(name, mode)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
