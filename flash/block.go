package flash

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// claim opens a device for this program alone, and proves that it still is the
// one that was shown.
func claim(d Device) (*os.File, error) {
	f, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("in use%s: %w", by(here.programs(d.Number, false)), err)
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
	return want.changed(got)
}
