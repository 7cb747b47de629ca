package flash

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/diskend"
	"slipway/flash/write"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Growing (Options.Grow) happens before a device is whole: its first and last MiB are still zero
// while resize2fs works on it. Then Complete writes the larger partition table.

// checkGrow makes the table that each device will have, of the beginning of the image, and puts what
// will grow into the receipts. It does nothing without Options.Grow.
func (j *imageJob) checkGrow(ctx context.Context) error {
	for _, w := range j.writers {
		if !j.options.Grow {
			return nil
		}
		image := io.ReaderAt(j.file)
		if j.source.Form() != "raw" {
			image = j.openHead(ctx)
		}
		e, _ := diskend.NewEnds(image, w.device.SizeBytes, w.device.SectorBytes) // a shorter image has no partition that Fit takes
		was, grown, err := e.Fit(false)
		if err == nil {
			_, err = run.LookPath("resize2fs")
		}
		if err != nil {
			return fmt.Errorf("the image cannot grow to the size of %s: %w\nnext: repeat the line without --grow", w.device.Path, err)
		}
		w.receipt.Grown = fmt.Sprintf("partition %d from %s to %s, and an ext4 in it", was.Number, plaintext.SizeText(was.SizeBytes), plaintext.SizeText(grown))
	}
	return nil
}

// grow changes the table that Complete will write. If the last partition has ext4, grow closes the
// device for resize2fs, and claims it again.
func (w *deviceWriter) grow(ctx context.Context) error {
	e := diskend.Ends{SizeBytes: w.device.SizeBytes, SectorBytes: w.device.SectorBytes}
	e.First, e.Last = w.copy.Ends()
	was, grown, err := e.Fit(false)
	magic := make([]byte, 2)
	if err == nil {
		_, err = w.disk.ReadAt(magic, was.OffsetBytes+1024+56)
	}
	if err != nil || grown == was.SizeBytes || string(magic) != "\x53\xef" {
		return err
	}
	w.step.Phase("growing the file system", 0)
	return w.copy.Reopen(func() (*write.Disk, error) {
		w.close()
		f, err := os.OpenFile(w.device.Path, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		_, err = diskend.Ext4(ctx, f, was.OffsetBytes, grown)
		f.Close()
		if err != nil {
			return nil, withKind(ctx, ErrImage, fmt.Errorf("grow the ext4 of partition %d: %w; flash it without --grow", was.Number, err))
		}
		d := w.device
		d.Guarded = "" // that was for what was on it
		claimed, err := device.Claim(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("claim it again after resize2fs: %w", err)
		}
		w.claimed = claimed
		w.disk, err = write.OpenDisk(claimed.File)
		return w.disk, err
	})
}
