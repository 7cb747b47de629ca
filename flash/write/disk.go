package write

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pieceBytes is how much is read and written at once. Larger pieces gain nothing on
// disks that were measured; smaller ones cost more calls.
const pieceBytes = 1 << 20

// alignment is what direct I/O needs on every current disk, for addresses, offsets and lengths.
const alignment = 4096

// Disk is a file or block device to write, without the page cache if the kernel allows that: large
// writes are several times faster, reads come from the device, and a finished write is on it.
type Disk struct {
	plain     *os.File
	direct    *os.File // nil if the file system or the device cannot
	sizeBytes int64
	block     bool
	unsynced  atomic.Int64 // bytes that went through the page cache
}

// OpenDisk opens f a second time for direct I/O, if the kernel allows that. f is open for reading
// and writing. A file must have its final size.
func OpenDisk(f *os.File) (*Disk, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	d := &Disk{plain: f, sizeBytes: info.Size(), block: info.Mode()&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice}
	if d.block {
		if d.sizeBytes, err = deviceSize(f); err != nil {
			return nil, fmt.Errorf("%s: find out its size: %w", f.Name(), err)
		}
	}
	access, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	// The first descriptor's path is the same file even if its name changed.
	same := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if direct, err := unix.Open(same, access&unix.O_ACCMODE|unix.O_DIRECT|unix.O_CLOEXEC, 0); err == nil {
		d.direct = os.NewFile(uintptr(direct), f.Name()) // errors name the device
	}
	return d, nil
}

// deviceSize returns a block device's size in bytes.
func deviceSize(f *os.File) (int64, error) {
	var n uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0, errno
	}
	return int64(n), nil
}

// Close closes the descriptor for direct I/O that OpenDisk opened. f stays open.
func (d *Disk) Close() {
	if d.direct != nil {
		d.direct.Close()
	}
}

// syncBytes may wait in the page cache, so that progress does not run ahead of a slow device.
const syncBytes = 8 << 20

// WriteAt writes by direct I/O, else through the page cache, which it syncs each syncBytes.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if d.suitsDirect(p, off) {
		n, err := d.direct.WriteAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	n, err := d.plain.WriteAt(p, off)
	if err == nil && d.unsynced.Add(int64(n)) >= syncBytes {
		d.unsynced.Store(0)
		err = unix.Fdatasync(int(d.plain.Fd()))
	}
	return n, err
}

// ReadAt reads by direct I/O if it can, else through the page cache.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if d.suitsDirect(p, off) {
		n, err := d.direct.ReadAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	return d.plain.ReadAt(p, off)
}

// suitsDirect reports whether direct I/O can transfer p at off.
func (d *Disk) suitsDirect(p []byte, off int64) bool {
	return d.direct != nil && off%alignment == 0 && len(p)%alignment == 0 &&
		(len(p) == 0 || uintptr(unsafe.Pointer(&p[0]))%alignment == 0)
}

// Sync waits until the device has all data. It drops the page cache: reads come from the device.
func (d *Disk) Sync() error {
	if err := d.plain.Sync(); err != nil {
		return d.explainError("have the device keep what was written", err)
	}
	d.unsynced.Store(0)
	return unix.Fadvise(int(d.plain.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// punchHole frees whole blocks, which by the kernel's guarantee then read as zeros.
func (d *Disk) punchHole(off, length int64) error {
	return unix.Fallocate(int(d.plain.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
}

// explainError adds what failed and the user's next step to a device's error, unless Canceled.
func (d *Disk) explainError(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w; %w", what, err, d.errorAdvice(err))
}

// ErrRemoved is of a device that is gone.
var ErrRemoved = errors.New("the device was removed; connect it and flash it again; Slipway resumes")

// errorAdvice returns the likely cause of a device's error and a remedy, as an error. It may wait in
// wasRemoved.
func (d *Disk) errorAdvice(err error) error {
	switch {
	case d.wasRemoved(err) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOMEDIUM):
		return ErrRemoved
	case errors.Is(err, unix.ENOSPC) && d.block:
		return errors.New("the device is full before its end: it holds less than it says, or what it is made of is full")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errors.New("its file system is full; free some space and flash again")
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return errors.New("it can be read only: look for a write-protect switch; cards turn read-only at their lives' end")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, io.ErrShortWrite):
		return errors.New("it ends there, and holds less than it says")
	}
	return errors.New("the device is faulty, or its reader or cable; dmesg tells more; try another")
}

// removalWait is how long the kernel may need to notice that a device was removed. It looks at some
// slots for cards once a second. Tests wait less.
var removalWait = 3 * time.Second

// wasRemoved reports whether a block device is gone: then it has no size. If err is EIO, it waits
// for that up to removalWait.
func (d *Disk) wasRemoved(err error) bool {
	if !d.block {
		return false
	}
	for began := time.Now(); ; time.Sleep(removalWait / 20) {
		n, sizeErr := deviceSize(d.plain)
		if sizeErr != nil || n == 0 {
			return true
		}
		if !errors.Is(err, unix.EIO) || time.Since(began) > removalWait {
			return false
		}
	}
}
