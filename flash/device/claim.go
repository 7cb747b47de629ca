package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// ErrRefused: the device must not be written, or nobody confirmed it. Nothing was written.
var ErrRefused = errors.New("the device is refused")

// refusal is an ErrRefused with the text of another error.
type refusal struct{ error }

func (r refusal) Unwrap() []error { return []error{ErrRefused, r.error} }

// Claimed is a block device that only this program has open, without partitions in the kernel.
type Claimed struct {
	*os.File
	device Device
	reread bool
}

// Claim opens a block device exclusively, locks it, checks that it is the one that was shown, and
// drops its partitions from the kernel. Unless it is broken or gone, the error is an ErrRefused.
func Claim(ctx context.Context, d Device) (*Claimed, error) {
	f, err := openExclusively(ctx, d, os.O_RDWR, here.lockAndCompare, dropPartitions)
	if err != nil {
		return nil, err
	}
	return &Claimed{File: f, device: d}, nil
}

// reading is this machine, with read-only devices that are not refused.
func reading() machine {
	m := here
	m.reading = true
	return m
}

// ExamineToRead is Examine for a device that is only read: it does not refuse a read-only one.
func ExamineToRead(path string) (Device, error) { return reading().examineName(path) }

// ClaimToRead opens d, of ExamineToRead, for reading. Nobody can mount a block device until the file
// is closed; a virtual disk is not locked. Unless the device is broken or gone, the error is an
// ErrRefused.
func ClaimToRead(ctx context.Context, d Device) (*os.File, error) {
	if d.Kind == File {
		return os.Open(d.Path)
	}
	return openExclusively(ctx, d, os.O_RDONLY, reading().lockAndCompare)
}

// openExclusively opens a block device with an access mode and runs steps, which check and lock it.
func openExclusively(ctx context.Context, d Device, access int, steps ...func(context.Context, *os.File, Device) error) (*os.File, error) {
	f, err := os.OpenFile(d.Path, access|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, refusal{here.explainBusy(d, err)}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, refusal{fmt.Errorf("%w; nothing was written to it\nnext: repeat the line as root", err)}
	}
	if err != nil {
		return nil, err
	}
	for _, step := range steps {
		if err := step(ctx, f, d); err != nil {
			f.Close()
			if errors.Is(err, unix.EIO) { // its first sector cannot be read
				return nil, err
			}
			return nil, refusal{err}
		}
	}
	return f, nil
}

// Close closes the device. If RereadTable did not run, the kernel now reads the partition table.
func (c *Claimed) Close() error {
	if !c.reread {
		_ = rereadOnce(c.File) // of a flash that failed, which says more
	}
	return c.File.Close()
}

// explainBusy returns the device's new Refused, or err with the programs that have the device open.
func (m machine) explainBusy(d Device, err error) error {
	dir, wrong := m.sysfsDirOf(d.Number)
	if wrong != nil {
		return errors.Join(err, wrong)
	}
	if now, wrong := m.blockAt(dir); wrong == nil && now.Refused != "" {
		return fmt.Errorf("refused: %s; nothing was written", now.Refused)
	}
	numbers := []string{d.Number}
	for _, p := range partitionDirs(dir) {
		numbers = append(numbers, readAttribute(p, "dev"))
	}
	return fmt.Errorf("in use%s: %w", byPrograms(m.findOpeners(numbers, false)), err)
}

// lockAndCompare locks an open device, for which it waits up to LockPatience, and returns an error
// if it is not the device want any more.
func (m machine) lockAndCompare(ctx context.Context, f *os.File, want Device) error {
	// udev keeps off a device that is locked, and so do partitioning programs.
	if err := retryWhile(ctx, unix.EWOULDBLOCK, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return fmt.Errorf("another program has locked it: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	got, err := m.blockDevice(st.Rdev)
	if err != nil {
		return err
	}
	return want.checkUnchanged(got)
}

// LockPatience is how long Slipway waits for another program's lock on a device. udev locks a card
// for a while after it is plugged in or written. Tests wait less.
var LockPatience = 3 * time.Second

// Each partition is a device of its own for the kernel, with a page cache of its own. Unsynced data
// in that cache reaches the disk later, over an image that Slipway has already verified. So the
// kernel has no partitions while Slipway writes a disk. Afterwards it reads the new table: with the
// old one, the next mount would use the old offsets.

// dropPartitions has the kernel flush and forget the partitions of a disk, whose table stays. If a
// program keeps one open for LockPatience, it fails, and the kernel reads the table again.
func dropPartitions(ctx context.Context, f *os.File, d Device) error {
	dir, err := here.sysfsDirOf(d.Number)
	if err != nil {
		return err
	}
	err = retryWhile(ctx, unix.EBUSY, func() error { return rereadOnce(f) })
	if err == nil || errors.Is(err, unix.EACCES) {
		err = retryWhile(ctx, unix.EBUSY, func() error { return dropOnce(f, dir) })
	}
	if err == nil {
		err = flushCache(f)
	}
	if err != nil {
		_ = rereadOnce(f) // as it was, as far as that is possible; the first error counts
		return fmt.Errorf("%w; nothing was written", here.explainHeld(dir, err))
	}
	return nil
}

// dropOnce has the kernel forget each partition of the disk with the sysfs folder dir.
func dropOnce(f *os.File, dir string) error {
	for _, p := range partitionDirs(dir) {
		n, err := strconv.Atoi(readAttribute(p, "partition"))
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := dropPartition(f, n); err != nil {
			return err
		}
	}
	return nil
}

// dropPartition has the kernel forget partition n. A partition that is gone is no error.
func dropPartition(f *os.File, n int) error {
	part := unix.BlkpgPartition{Pno: int32(n)}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_DEL_PARTITION, Datalen: int32(unsafe.Sizeof(part)), Data: (*byte)(unsafe.Pointer(&part))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 && errno != unix.ENXIO { // that one has gone by itself
		return errno
	}
	return nil
}

// flushCache writes out the page cache of the whole disk and, for root, drops it.
func flushCache(f *os.File) error {
	if err := f.Sync(); err != nil {
		return err
	}
	err := unix.IoctlSetInt(int(f.Fd()), unix.BLKFLSBUF, 0)
	if errors.Is(err, unix.EACCES) { // only root may; direct I/O passes it by in any case
		return nil
	}
	return err
}

// rereadOnce has the kernel read the partition table. It ignores EINVAL, the answer of devices that
// cannot have partitions, such as some loop devices.
func rereadOnce(f *os.File) error {
	err := unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// RereadTable has the kernel read the new partition table, and waits up to LockPatience while a
// partition is busy. Without root it fails only if the kernel has old partitions.
func (c *Claimed) RereadTable(ctx context.Context) error {
	c.reread = true
	err := retryWhile(ctx, unix.EBUSY, func() error { return rereadOnce(c.File) })
	if err == nil {
		return nil
	}
	dir, wrong := here.sysfsDirOf(c.device.Number)
	switch {
	case wrong != nil:
		return errors.Join(err, wrong)
	case errors.Is(err, unix.EACCES) && len(partitionDirs(dir)) == 0:
		return nil // whoever is not root had no old partitions in the kernel; udev reads the new ones
	}
	return fmt.Errorf("the image is written and proved, but the kernel has not read its partition table: %w\nnext: blockdev --rereadpt %s  # or unplug it and plug it in", here.explainHeld(dir, err), c.device.Path)
}

// retryWhile runs try again, for up to LockPatience, while it returns the error busy: udev or
// another program has the disk locked or a partition open.
func retryWhile(ctx context.Context, busy error, try func() error) error {
	for began := time.Now(); ; {
		err := try()
		if !errors.Is(err, busy) || time.Since(began) > LockPatience {
			return err
		}
		if err := run.Sleep(ctx, LockPatience/100); err != nil {
			return err
		}
	}
}

// explainHeld adds to an EBUSY which mounts and programs use the disk's partitions, and to a
// permission error that it takes root. It returns any other error as it is.
func (m machine) explainHeld(dir string, err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("it has partitions, and only root can have the kernel drop them: %w; nothing was written to it\nnext: repeat the line as root", err)
	case !errors.Is(err, unix.EBUSY):
		return err
	}
	var held []string
	u, _ := m.findUses() // the programs say enough
	for _, p := range partitionDirs(dir) {
		found := m.allUses(p, u)
		if open := m.findOpeners([]string{readAttribute(p, "dev")}, false); len(open) > 0 {
			found = append(found, "open"+byPrograms(open))
		}
		if len(found) > 0 {
			held = append(held, m.nodePath(filepath.Base(p))+": "+strings.Join(found, ", "))
		}
	}
	if len(held) == 0 {
		return fmt.Errorf("a partition of it is in use, by nothing that can be seen from here (another user's program, a container's host): %w", err)
	}
	return fmt.Errorf("in use: %s: %w", strings.Join(held, "; "), err)
}
