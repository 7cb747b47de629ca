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

	"slipway/layers/localfile"
)

// localFolder is the driver's folder on this machine.
type localFolder struct{ dir string }

func (f localFolder) filePath(name string) string { return filepath.Join(f.dir, name) }

// readMisc reads the misc file. More than maxMiscBytes is an error.
func (f localFolder) readMisc(ctx context.Context) ([]byte, error) {
	var text []byte
	err := runInterruptible(ctx, func(ctx context.Context) error {
		fd, err := openRetrying(ctx, f.filePath("misc"), unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		buf := make([]byte, maxMiscBytes+1)
		for n := 0; n < len(buf); {
			more, err := retryInterrupted(ctx, func() (int, error) { return unix.Read(fd, buf[n:]) })
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

// writeSetting writes a line "key value" to the misc file.
func (f localFolder) writeSetting(ctx context.Context, key, value string) error {
	return runInterruptible(ctx, func(ctx context.Context) error {
		fd, err := openRetrying(ctx, f.filePath("misc"), unix.O_WRONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = retryInterrupted(ctx, func() (int, error) { return unix.Write(fd, []byte(key+" "+value+"\n")) })
		return err
	})
}

// pushStream opens boot, which resets the DPU, and writes the whole stream to it.
func (f localFolder) pushStream(ctx context.Context, s *stream) error {
	return runInterruptible(ctx, func(ctx context.Context) error {
		fd, err := openRetrying(ctx, f.filePath("boot"), unix.O_WRONLY)
		if err != nil {
			return err
		}
		s.open()
		err = writeStream(ctx, fd, s)
		return errors.Join(err, driverError(unix.Close(fd)))
	})
}

// pushBytes is the size of a write. The driver passes 16 KiB at a time to the DPU; larger writes
// only make the progress coarser and Ctrl-C slower.
const pushBytes = 64 << 10

// writeStream writes the whole stream to fd, in parts if need be. A write of nothing is an error.
func writeStream(ctx context.Context, fd int, s *stream) error {
	buf := make([]byte, pushBytes)
	for {
		n, err := io.ReadFull(s, buf)
		for rest := buf[:n]; len(rest) > 0; {
			taken, err := retryInterrupted(ctx, func() (int, error) { return unix.Write(fd, rest) })
			if err != nil {
				return err
			}
			if taken == 0 {
				return fmt.Errorf("%w: the driver takes nothing more", errTimeout)
			}
			rest = rest[taken:]
			s.count(int64(taken))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return s.checkComplete()
		}
		if err != nil {
			return err
		}
	}
}

func openRetrying(ctx context.Context, path string, flags int) (int, error) {
	return retryInterrupted(ctx, func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0) })
}

// retryInterrupted repeats call while a signal interrupts it, until ctx ends; see driverError.
func retryInterrupted(ctx context.Context, call func() (int, error)) (int, error) {
	for {
		if err := context.Cause(ctx); err != nil {
			return -1, err
		}
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, driverError(err)
		}
	}
}

// driverErrors are the package's errors for the driver's. Local and remote access share them.
var driverErrors = map[unix.Errno]error{
	unix.ENOENT: errMissing, unix.ENXIO: errGone, unix.ENODEV: errGone, unix.ENOTCONN: errGone, unix.EBUSY: errBusy,
	unix.EPERM: errLocked, unix.EACCES: errDenied, unix.EINVAL: errInvalid, unix.ETIMEDOUT: errTimeout,
}

// driverError returns the package's error for an errno in driverErrors, else err.
func driverError(err error) error {
	for number, name := range driverErrors {
		if errors.Is(err, number) {
			return name
		}
	}
	return err
}

// interruptLimit is how long Slipway waits for a driver that ignores signals.
const interruptLimit = 10 * time.Second

// runInterruptible runs work, whose system calls may wait in the driver for minutes. If ctx ends,
// it interrupts them by signals to their thread. After interruptLimit it returns before work does.
func runInterruptible(ctx context.Context, work func(context.Context) error) error {
	thread, done := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // a thread that ends kills the programs that it started
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
	for began := time.Now(); time.Since(began) < interruptLimit; {
		_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // Go's runtime uses it for preemption, so it is harmless
		select {
		case <-done:
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return fmt.Errorf("%w; %w", context.Cause(ctx), errDeaf)
}

// Part is a piece of the pushed stream: the boot stream, a bf.cfg, a root file system.
type Part struct {
	Name      string
	Data      io.ReaderAt
	SizeBytes int64
}

// stream joins the parts for one push.
type stream struct {
	io.Reader

	sizeBytes int64
	readBytes int64
	open      func()            // called once boot is open and the DPU resets
	count     func(bytes int64) // called with the bytes that the driver took
}

// newStream joins the parts. Its Read fails once ctx ends, or if a part became shorter.
func newStream(ctx context.Context, parts []Part) *stream {
	s := &stream{open: func() {}, count: func(int64) {}}
	var readers []io.Reader
	for _, p := range parts {
		readers = append(readers, &partReader{part: p, in: io.NewSectionReader(p.Data, 0, p.SizeBytes)})
		s.sizeBytes += p.SizeBytes
	}
	s.Reader = localfile.WithContext(ctx, io.MultiReader(readers...), nil)
	return s
}

// Read reads from the parts in order, and counts the bytes in s.readBytes.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.readBytes += int64(n)
	return n, err
}

// checkComplete returns an error unless all bytes of the parts were read.
func (s *stream) checkComplete() error {
	if s.readBytes != s.sizeBytes {
		return fmt.Errorf("%d of %d bytes were pushed", s.readBytes, s.sizeBytes)
	}
	return nil
}

// partReader returns an error if a file became shorter, because the DPU would wait for the rest.
type partReader struct {
	part Part
	in   io.Reader
	read int64
}

// Read reads from the part. A part that ends before its size is an error.
func (w *partReader) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	w.read += int64(n)
	if err == io.EOF && w.read < w.part.SizeBytes {
		err = fmt.Errorf("%s became shorter while it was pushed: %d bytes of %d", w.part.Name, w.read, w.part.SizeBytes)
	}
	return n, err
}
