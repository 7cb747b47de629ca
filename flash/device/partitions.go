package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Each partition is a device of its own for the kernel, with a page cache of its own. Unsynced data
// in that cache reaches the disk later, over an image that Slipway has already verified. So the
// kernel has no partitions while Slipway writes a disk. Afterwards it reads the new table: with the
// old one, the next mount would use the old offsets.

// dropPartitions has the kernel write out and forget the partitions of a disk. It
// changes nothing on the disk, and fails where somebody has one of them open.
func dropPartitions(ctx context.Context, f *os.File, d Device) error {
	dir, err := here.sysfsDirOf(d.Number)
	if err != nil {
		return err
	}
	err = retryWhileBusy(ctx, func() error { return rereadOnce(f) })
	if err == nil || errors.Is(err, unix.EACCES) {
		err = retryWhileBusy(ctx, func() error { return dropOnce(f, dir) })
	}
	if err == nil {
		err = flushCache(f)
	}
	if err != nil {
		_ = rereadOnce(f) // as it was, as far as that is possible; the first error counts
		return fmt.Errorf("%w; nothing was written", here.partitionsHeld(dir, err))
	}
	return nil
}

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

func dropPartition(f *os.File, n int) error {
	part := unix.BlkpgPartition{Pno: int32(n)}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_DEL_PARTITION, Datalen: int32(unsafe.Sizeof(part)), Data: (*byte)(unsafe.Pointer(&part))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 && errno != unix.ENXIO { // that one has gone by itself
		return errno
	}
	return nil
}

// flushCache writes out and drops what the page cache has of the disk itself.
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

// rereadOnce has the kernel read the table. Devices that cannot have partitions (a loop
// device without them) say EINVAL.
func rereadOnce(f *os.File) error {
	err := unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// RereadTable has the kernel read the table that was written.
func (c *Claimed) RereadTable(ctx context.Context) error {
	c.reread = true
	err := retryWhileBusy(ctx, func() error { return rereadOnce(c.File) })
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
	return fmt.Errorf("the image is written and proved, but the kernel has not read its partition table: %w\nnext: blockdev --rereadpt %s  # or unplug it and plug it in", here.partitionsHeld(dir, err), c.device.Path)
}

// retryWhileBusy tries again while udev, or another program that looks at each disk, has a
// partition open.
func retryWhileBusy(ctx context.Context, try func() error) error {
	for began := time.Now(); ; {
		err := try()
		if !errors.Is(err, unix.EBUSY) || time.Since(began) > LockPatience {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(LockPatience / 100):
		}
	}
}

// partitionsHeld says what holds a disk's partitions.
func (m machine) partitionsHeld(dir string, err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("it has partitions, and only root can have the kernel drop them: %w; run this as root", err)
	case !errors.Is(err, unix.EBUSY):
		return err
	}
	var held []string
	u, _ := m.findUses() // the programs say enough
	for _, p := range partitionDirs(dir) {
		found := m.findClaims(p, u)
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
