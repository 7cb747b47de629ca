package flash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pieceBytes is how much is read, hashed and written at once. Larger pieces gain
// nothing on disks that were measured; smaller ones cost more calls.
const pieceBytes = 1 << 20

// alignment is what direct I/O asks of addresses, offsets and lengths on every
// disk that is sold today.
const alignment = 4096

// disk is what an image is written to: a file or a block device. It passes by
// the page cache where it can: that is several times faster for large writes, and
// what is read back then comes from the device.
type disk struct {
	plain  *os.File
	direct *os.File // nil where the file system or the device cannot
}

// openDisk takes over f, which is open for reading and writing.
func openDisk(f *os.File) *disk {
	d := &disk{plain: f}
	// Opened through the first descriptor, so that it is the same file whatever
	// its name stands for by now.
	same := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if direct, err := os.OpenFile(same, os.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0); err == nil {
		d.direct = direct
	}
	return d
}

// close closes what openDisk opened; the file that it was given stays open.
func (d *disk) close() {
	if d.direct != nil {
		d.direct.Close()
	}
}

func (d *disk) WriteAt(p []byte, off int64) (int, error) {
	if d.suits(p, off) {
		n, err := d.direct.WriteAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	return d.plain.WriteAt(p, off)
}

func (d *disk) ReadAt(p []byte, off int64) (int, error) {
	if d.suits(p, off) {
		n, err := d.direct.ReadAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	return d.plain.ReadAt(p, off)
}

func (d *disk) suits(p []byte, off int64) bool {
	return d.direct != nil && off%alignment == 0 && len(p)%alignment == 0
}

// sync waits until the device has all that was written, and drops what the page
// cache keeps of it, so that it is read from the device next.
func (d *disk) sync() error {
	if err := d.plain.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(d.plain.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// zero makes a part of the disk read as zeros.
func (d *disk) zero(ctx context.Context, off, length int64) error {
	const most = 64 << 20 // at once, so that a slow device can be interrupted
	for length > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(length, most)
		if err := d.zeroPart(off, n); err != nil {
			return fmt.Errorf("zero %d bytes at %d: %w", n, off, err)
		}
		off, length = off+n, length-n
	}
	return nil
}

// zeroPart prefers the call that also frees the space (the kernel guarantees
// zeros), then the device's own zeroing, then writes.
func (d *disk) zeroPart(off, length int64) error {
	fd := int(d.plain.Fd())
	if unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length) == nil {
		return nil
	}
	if zeroOut(fd, off, length) == nil {
		return nil
	}
	zeros := alignedBuffer(pieceBytes)
	for length > 0 {
		n, err := d.WriteAt(zeros[:min(length, pieceBytes)], off)
		if err != nil {
			return err
		}
		off, length = off+int64(n), length-int64(n)
	}
	return nil
}

func zeroOut(fd int, off, length int64) error {
	span := [2]uint64{uint64(off), uint64(length)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span))); errno != 0 {
		return errno
	}
	return nil
}

// isZero reads a block and says whether it is zero.
func (d *disk) isZero(off, length int64) (bool, error) {
	p := alignedBuffer(alignment)[:min(length, alignment)]
	if _, err := io.ReadFull(io.NewSectionReader(d, off, int64(len(p))), p); err != nil {
		return false, err
	}
	return len(bytes.TrimLeft(p, "\x00")) == 0, nil
}

func alignedBuffer(size int) []byte {
	p := make([]byte, size+alignment)
	skip := alignment - int(uintptr(unsafe.Pointer(&p[0]))%alignment)
	return p[skip : skip+size : skip+size]
}
