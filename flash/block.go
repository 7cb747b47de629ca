package flash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// headBytes is what is written last of a block device. It holds the partition
// table and a boot loader's first stage: without it, nothing boots or mounts.
const headBytes = 1 << 20

func (c *imageCopy) toBlock(ctx context.Context) error {
	f, err := claim(c.device)
	if err != nil {
		return err
	}
	defer f.Close()
	d := openDisk(f)
	defer d.close()
	if err := d.place(alignedBuffer(int(min(headBytes, c.device.SizeBytes))), 0); err != nil {
		return fmt.Errorf("erase the partition table: %w", err)
	}
	if err := c.overwrite(ctx, d); err != nil {
		return fmt.Errorf("%w\n  %s is not whole: its first MiB, with the partition table, is zeroed; flash it again", err, c.device.Path)
	}
	// Without udev nobody else tells the kernel. Where it cannot (a loop device
	// without partitions), the next open finds the new table.
	_ = unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
	return nil
}

// claim opens a device for this program alone, and proves that it still is the
// one that was shown.
func claim(d Device) (*os.File, error) {
	f, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("in use: %w", err)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w; run this as root or in the group of %s", err, d.Path)
	}
	if err != nil {
		return nil, err
	}
	if err := settle(f, d); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func settle(f *os.File, want Device) error {
	// udev keeps off a device that is locked, and so do partitioning programs.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another program has locked it: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	got, err := here.block(st.Rdev)
	if err != nil {
		return err
	}
	if got.Refused != "" {
		return fmt.Errorf("refused: %s", got.Refused)
	}
	if got.Number != want.Number || got.Serial != want.Serial || got.SizeBytes != want.SizeBytes || got.sequence != want.sequence {
		return errors.New("it is not the device any more that was shown and confirmed; nothing was written")
	}
	return nil
}

// overwrite leaves the device whole, or with zeros at its beginning.
func (c *imageCopy) overwrite(ctx context.Context, d *disk) error {
	t := c.transfer(d, min(headBytes, c.blocks.ImageSize))
	c.step.Detail("erasing")
	if err := c.eraseEnd(ctx, d); err != nil {
		return err
	}
	if err := t.zeroHoles(ctx); err != nil {
		return err
	}
	if err := c.fill(ctx, t); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	err := d.place(t.head, 0)
	if err != nil {
		err = errors.Join(err, d.place(alignedBuffer(len(t.head)), 0))
	}
	return err
}

// eraseEnd removes a former partition table's second copy, which lies at the end
// of a device that is larger than the image.
func (c *imageCopy) eraseEnd(ctx context.Context, d *disk) error {
	from := max(c.blocks.ImageSize, c.device.SizeBytes-headBytes)
	return d.zero(ctx, from, c.device.SizeBytes-from)
}

// place writes p and makes sure that the device has it.
func (d *disk) place(p []byte, off int64) error {
	if _, err := d.WriteAt(p, off); err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return err
	}
	got := alignedBuffer(len(p))
	if _, err := io.ReadFull(io.NewSectionReader(d, off, int64(len(p))), got); err != nil {
		return err
	}
	if !bytes.Equal(got, p) {
		return fmt.Errorf("read back: the %d bytes at %d are not what was written; the device is faulty", len(p), off)
	}
	return nil
}
