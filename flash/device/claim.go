package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRefused is for a device that must not be written, or that nobody confirmed:
// nothing was written to it.
var ErrRefused = errors.New("the device is refused")

// refusal is an ErrRefused with a text of its own.
type refusal struct{ error }

func (r refusal) Unwrap() []error { return []error{ErrRefused, r.error} }

// Claimed is a block device that only this program has open. The kernel has dropped its partitions.
type Claimed struct {
	*os.File
	device Device
	reread bool
}

// Claim opens a device, proves that it still is the one that was shown, and that nobody
// has a partition of it open. The error is an ErrRefused unless the device is broken or gone.
func Claim(ctx context.Context, d Device) (*Claimed, error) {
	f, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, refusal{here.explainBusy(d, err)}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, refusal{fmt.Errorf("%w; run this as root or in the group of %s", err, d.Path)}
	}
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, *os.File, Device) error{lockAndCompare, dropPartitions} {
		if err := step(ctx, f, d); err != nil {
			f.Close()
			if errors.Is(err, unix.EIO) { // its first sector cannot be read
				return nil, err
			}
			return nil, refusal{err}
		}
	}
	return &Claimed{File: f, device: d}, nil
}

// Close has the kernel know the partitions again that it finds, where RereadTable did
// not.
func (c *Claimed) Close() error {
	if !c.reread {
		_ = rereadOnce(c.File) // of a flash that failed, which says more
	}
	return c.File.Close()
}

// explainBusy names what keeps this program from opening a device exclusively.
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

func lockAndCompare(ctx context.Context, f *os.File, want Device) error {
	// udev keeps off a device that is locked, and so do partitioning programs.
	if err := lockDevice(ctx, f); err != nil {
		return fmt.Errorf("another program has locked it: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	got, err := here.blockDevice(st.Rdev)
	if err != nil {
		return err
	}
	return want.checkUnchanged(got)
}

// LockPatience is how long somebody else may have a device's lock: udev has it while it
// looks what is on a card that has just been plugged in or written. Tests wait less.
var LockPatience = 3 * time.Second

func lockDevice(ctx context.Context, f *os.File) error {
	for began := time.Now(); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(began) > LockPatience {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(LockPatience / 100):
		}
	}
}
