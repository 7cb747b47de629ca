package rshim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// files is the driver's folder on this machine.
type files struct{ dir string }

func (f files) path(name string) string { return filepath.Join(f.dir, name) }

func (f files) read(ctx context.Context) ([]byte, error) {
	var text []byte
	err := interruptible(ctx, func(ctx context.Context) error {
		fd, err := open(ctx, f.path("misc"), unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		buf := make([]byte, maxMiscBytes+1)
		for n := 0; n < len(buf); {
			more, err := again(ctx, func() (int, error) { return unix.Read(fd, buf[n:]) })
			if err != nil || more == 0 {
				text = buf[:n]
				return err
			}
			n += more
		}
		return fmt.Errorf("more than %d bytes, which is no misc file of an rshim", maxMiscBytes)
	})
	if err != nil {
		return nil, err
	}
	return text, nil
}

func (f files) set(ctx context.Context, key, value string) error {
	return interruptible(ctx, func(ctx context.Context) error {
		fd, err := open(ctx, f.path("misc"), unix.O_WRONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = again(ctx, func() (int, error) { return unix.Write(fd, []byte(key+" "+value+"\n")) })
		return err
	})
}

func (f files) push(ctx context.Context, s *stream) error {
	return interruptible(ctx, func(ctx context.Context) error {
		fd, err := open(ctx, f.path("boot"), unix.O_WRONLY)
		if err != nil {
			return err
		}
		s.opened()
		err = pour(ctx, fd, s)
		return errors.Join(err, named(unix.Close(fd)))
	})
}

// The driver hands 16 KiB at a time to the DPU; more in one write only makes the bar
// coarser and a Ctrl-C slower.
const pushBytes = 64 << 10

// pour writes all of the stream. The driver may take less of a write than it is given.
func pour(ctx context.Context, fd int, s *stream) error {
	buf := make([]byte, pushBytes)
	for {
		n, err := io.ReadFull(s, buf)
		for rest := buf[:n]; len(rest) > 0; {
			taken, err := again(ctx, func() (int, error) { return unix.Write(fd, rest) })
			if err != nil {
				return err
			}
			if taken == 0 {
				return fmt.Errorf("%w: the driver takes nothing more", errTimeout)
			}
			rest = rest[taken:]
			s.took(int64(taken))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return s.whole()
		}
		if err != nil {
			return err
		}
	}
}

func open(ctx context.Context, path string, flags int) (int, error) {
	return again(ctx, func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0) })
}

// again repeats a call that a signal broke off, unless the context has ended.
func again(ctx context.Context, call func() (int, error)) (int, error) {
	for {
		if err := context.Cause(ctx); err != nil {
			return -1, err
		}
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, named(err)
		}
	}
}

// named gives the driver's errors the names that both ways have for them.
func named(err error) error {
	for number, name := range map[unix.Errno]error{
		unix.ENOENT: errMissing, unix.ENXIO: errGone, unix.ENODEV: errGone, unix.ENOTCONN: errGone, unix.EBUSY: errBusy,
		unix.EPERM: errLocked, unix.EACCES: errDenied, unix.EINVAL: errInvalid, unix.ETIMEDOUT: errTimeout,
	} {
		if errors.Is(err, number) {
			return name
		}
	}
	return err
}

// Where the driver does not react to an interruption either, it is left to itself.
const deaf = 10 * time.Second

// interruptible does work that waits in the driver, possibly for minutes. Its calls
// know no context, but a signal to their thread breaks them off, as a Ctrl-C does that
// of cat.
func interruptible(ctx context.Context, work func(context.Context) error) error {
	thread, done := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // a thread that ended would take the programs with it that it had started
		thread <- unix.Gettid()
		done <- work(ctx)
	}()
	tid := <-thread
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < deaf; {
		_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // which Go's runtime uses for the same, and nobody else minds
		select {
		case <-done:
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return fmt.Errorf("%w; %w", context.Cause(ctx), errDeaf)
}
