package inject

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// makeDevice makes the device node d in the container, with its owner and mode on the board. If the
// same node exists and opens, it does nothing. If one cannot be made or would not open (user
// namespace, nodev file system), it mounts the board's node.
func (r *Root) makeDevice(d plan.Device) error {
	dir, base, err := r.openParent(d.Path)
	if err != nil {
		return err
	}
	if opens, err := hasNode(dir.File, base, d); err != nil || opens {
		return err
	}
	// The kernel opens no node on a user namespace's file system, and no flag shows that.
	if r.owner != nil || dir.noDev {
		return r.coverDevice(d)
	}
	err = r.addName(dir, base, func() error { return unix.Mknodat(int(dir.Fd()), base, unix.S_IFCHR|d.Mode, int(deviceNumber(d))) })
	switch {
	case err == nil:
		return setOwner(dir.File, base, d)
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EEXIST):
		return r.coverDevice(d)
	}
	return fmt.Errorf("make the device: %w", err)
}

// hasNode reports whether the container has the device node, on a file system that can open it.
func hasNode(dir *os.File, base string, d plan.Device) (bool, error) {
	node, err := openat(dir, base, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer node.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(node.Fd()), &stat); err != nil {
		return false, err
	}
	var fsStat unix.Statfs_t
	if err := unix.Fstatfs(int(node.Fd()), &fsStat); err != nil {
		return false, err
	}
	return isNode(stat, d) && fsStat.Flags&unix.ST_NODEV == 0, nil
}

func isNode(stat unix.Stat_t, d plan.Device) bool {
	return stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == deviceNumber(d)
}

func (r *Root) coverDevice(d plan.Device) error {
	return r.coverFile(d.Source, d.Path, unix.S_IFCHR, unix.MS_NOSUID|unix.MS_NOEXEC)
}

// setOwner sets a new node's owner, and its mode without the umask, which mknod cannot.
func setOwner(dir *os.File, base string, d plan.Device) error {
	node, err := openat(dir, base, unix.O_PATH)
	if err != nil {
		return err
	}
	defer node.Close()
	// Change only the node that was just made.
	var stat unix.Stat_t
	if err := unix.Fstat(int(node.Fd()), &stat); err != nil {
		return err
	}
	if !isNode(stat, d) {
		return fmt.Errorf("%s changed while it was made", d.Path)
	}
	if stat.Uid != d.UID || stat.Gid != d.GID {
		if err := unix.Fchownat(int(node.Fd()), "", int(d.UID), int(d.GID), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if stat.Mode&0o7777 == d.Mode {
		return nil
	}
	return os.Chmod(fdPath(node), os.FileMode(d.Mode))
}

// deviceNumber returns the device's number as Mknod and stat use it.
func deviceNumber(d plan.Device) uint64 { return unix.Mkdev(d.Major, d.Minor) }
