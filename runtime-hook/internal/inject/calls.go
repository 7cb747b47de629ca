package inject

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The hook makes the calls of this file for each mount, and each takes long. They go to the kernel
// directly, because Go's scheduler watches calls of package unix, and moves goroutines to another
// thread if a call takes too long. With package unix, the hook takes 4 % longer.

// errnoErr returns e as an error, nil for 0.
func errnoErr(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// cloneMount returns a descriptor of a new mount of the board's path source, without the mounts
// below it. It does not follow a link at source. The mount is not attached yet.
func cloneMount(source string) (int, error) {
	name, err := unix.BytePtrFromString(source)
	if err != nil {
		return -1, err
	}
	at, how := unix.AT_FDCWD, uintptr(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	fd, _, e := unix.RawSyscall(unix.SYS_OPEN_TREE, uintptr(at), uintptr(unsafe.Pointer(name)), how)
	return int(fd), errnoErr(e)
}

// setMount sets attributes of the mount with the descriptor mount.
func setMount(mount int, attr *unix.MountAttr) error {
	var empty byte
	_, _, e := unix.RawSyscall6(unix.SYS_MOUNT_SETATTR, uintptr(mount), uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr), 0)
	return errnoErr(e)
}

// attachMount attaches the mount to base in dir, without following base, or to dir if base is "".
func attachMount(mount int, dir *os.File, base string) error {
	name, err := unix.BytePtrFromString(base)
	if err != nil {
		return err
	}
	flags := uintptr(unix.MOVE_MOUNT_F_EMPTY_PATH)
	if base == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	var empty byte
	_, _, e := unix.RawSyscall6(unix.SYS_MOVE_MOUNT, uintptr(mount), uintptr(unsafe.Pointer(&empty)), dir.Fd(), uintptr(unsafe.Pointer(name)), flags, 0)
	return errnoErr(e)
}
