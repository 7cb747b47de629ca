package flash

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
)

// newDisk makes a virtual disk that is as large as the image.
func newDisk(j *imageJob, d device.Device) (_ *device.Pending, err error) {
	f, err := device.NewPending(d)
	if err != nil {
		return nil, err
	}
	if err := j.checkSpace(filepath.Dir(d.Path)); err != nil { // what a killed flash left is gone by now
		f.Close()
		return nil, err
	}
	if err := f.Truncate(j.size); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkSpace finds a full file system before it is filled.
func (j *imageJob) checkSpace(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("find out how much room %s has: %w", dir, err)
	}
	need := j.size // at most, without a map
	if j.blocks != nil {
		need = j.blocks.Mapped()
	}
	if j.seed != nil {
		need += j.seed.blocks.Mapped()
	}
	if free := int64(st.Bavail) * int64(st.Frsize); free < need {
		return fmt.Errorf("%s has room for %s, the image needs %s\nnext: df -h %[1]s  # make room there, or name a file in another folder", dir, device.ExactSize(free), device.ExactSize(need))
	}
	return nil
}
