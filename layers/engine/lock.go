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
