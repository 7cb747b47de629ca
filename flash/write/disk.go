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

// alignment is what direct I/O asks of addresses, offsets and lengths on every disk
// that is sold today.
const alignment = 4096

// Disk is a file or a block device that is written to. It passes by the page cache
// where it can: that is several times faster for large writes, what is read back then
// comes from the device, and a write that has returned has reached it.
type Disk struct {
	plain     *os.File
	direct    *os.File // nil where the file system or the device cannot
	sizeBytes int64
	block     bool
	unsynced  atomic.Int64 // bytes that went through the page cache
}

// OpenDisk takes over f, which is open for reading and, unless it is only to be looked
// at, for writing. A file has its final size already.
func OpenDisk(f *os.File) (*Disk, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	d := &Disk{plain: f, sizeBytes: info.Size(), block: info.Mode()&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice}
	if d.block {
		if d.sizeBytes, err = blockSize(f); err != nil {
			return nil, fmt.Errorf("%s: find out its size: %w", f.Name(), err)
		}
	}
	access, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	// Opened through the first descriptor, so that it is the same file whatever
	// its name stands for by now.
	same := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if direct, err := unix.Open(same, access&unix.O_ACCMODE|unix.O_DIRECT|unix.O_CLOEXEC, 0); err == nil {
		d.direct = os.NewFile(uintptr(direct), f.Name()) // errors name the device
	}
	return d, nil
}

func blockSize(f *os.File) (int64, error) {
	var n uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0, errno
	}
	return int64(n), nil
}

// Close closes what OpenDisk opened; the file that it was given stays open.
func (d *Disk) Close() {
	if d.direct != nil {
		d.direct.Close()
	}
}

// stepBytes is what a device may owe us of buffered writes, so that a bar does not
// run ahead of a slow one.
const stepBytes = 8 << 20

func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if d.suits(p, off) {
		n, err := d.direct.WriteAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	n, err := d.plain.WriteAt(p, off)
	if err == nil && d.unsynced.Add(int64(n)) >= stepBytes {
		d.unsynced.Store(0)
		err = unix.Fdatasync(int(d.plain.Fd()))
	}
	return n, err
}

func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if d.suits(p, off) {
		n, err := d.direct.ReadAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	return d.plain.ReadAt(p, off)
}

func (d *Disk) suits(p []byte, off int64) bool {
	return d.direct != nil && off%alignment == 0 && len(p)%alignment == 0 && aligned(p)
}

func aligned(p []byte) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(&p[0]))%alignment == 0
}

// Sync waits until the device has all that was written, and drops what the page
// cache keeps of it, so that it is read from the device next.
func (d *Disk) Sync() error {
	if err := d.plain.Sync(); err != nil {
		return d.explain("have the device keep what was written", err)
	}
	d.unsynced.Store(0)
	return unix.Fadvise(int(d.plain.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// punch makes whole blocks read as zeros and frees them, where the device or the file
// system can do that without being sent zeros. The kernel guarantees the zeros.
func (d *Disk) punch(off, length int64) error {
	return unix.Fallocate(int(d.plain.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
}

// discard tells the device that nobody needs a part of it. What is read there
// afterwards is the device's choice.
func (d *Disk) discard(off, length int64) error {
	if !d.block {
		return d.punch(off, length)
	}
	span := [2]uint64{uint64(off), uint64(length)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.plain.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&span))); errno != 0 {
		return errno
	}
	return nil
}

// explain says what a fault means for whoever holds the device.
func (d *Disk) explain(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w; %s", what, err, d.meaning(err))
}

func (d *Disk) meaning(err error) string {
	switch {
	case d.gone(err) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOMEDIUM):
		return "the device was removed; connect it and flash it again, which goes on where this ended"
	case errors.Is(err, unix.ENOSPC) && d.block:
		return "the device is full before its end: it holds less than it says, or what it is made of is full"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "its file system is full; free some space and flash again"
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "it can be read only: look for a write-protect switch; cards turn read-only at their lives' end"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, io.ErrShortWrite):
		return "it ends there, and holds less than it says"
	}
	return "the device is faulty, or its reader or cable; dmesg tells more; try another"
}

// goneWithin is how long the kernel may take to notice that a device whose writes fail
// was pulled out.
const goneWithin = time.Second

// gone asks the kernel whether the device still is there.
func (d *Disk) gone(err error) bool {
	if !d.block {
		return false
	}
	for began := time.Now(); ; time.Sleep(goneWithin / 20) {
		n, sizeErr := blockSize(d.plain)
		if sizeErr != nil || n == 0 {
			return true
		}
		if !errors.Is(err, unix.EIO) || time.Since(began) > goneWithin {
			return false
		}
	}
}
