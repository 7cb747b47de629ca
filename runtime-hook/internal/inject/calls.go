package inject

import (
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The hook makes the calls of this file some hundred times for one container. They go to the kernel
// directly, because Go's scheduler watches calls of package unix, and moves goroutines to another
// thread if a call takes too long.

func errnoErr(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// openInRoot opens p, as O_PATH, with all links followed and with root as "/" (openat2).
func openInRoot(root *os.File, p string) (*os.File, error) {
	name, err := unix.BytePtrFromString(p)
	if err != nil {
		return nil, err
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	var fd uintptr
	e := unix.EAGAIN
	// The kernel returns EAGAIN for a ".." if anything on the machine is renamed at that time.
	for try := 0; try < 128 && (e == unix.EAGAIN || e == unix.EINTR); try++ {
		fd, _, e = unix.RawSyscall6(unix.SYS_OPENAT2, root.Fd(), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
	}
	if e != 0 {
		return nil, &fs.PathError{Op: "open", Path: p, Err: e}
	}
	return os.NewFile(fd, p), nil
}

func closeFD(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// makeFile creates the empty file base in dir.
func makeFile(dir *os.File, base string) error {
	name, err := unix.BytePtrFromString(base)
	if err != nil {
		return err
	}
	_, _, e := unix.RawSyscall6(unix.SYS_MKNODAT, dir.Fd(), uintptr(unsafe.Pointer(name)), unix.S_IFREG|0o644, 0, 0, 0)
	return errnoErr(e)
}

// linkFile gives the file behind the descriptor old a second name, base in dir.
func linkFile(old int, dir *os.File, base string) error {
	name, err := unix.BytePtrFromString(base)
	if err != nil {
		return err
	}
	var empty byte
	_, _, e := unix.RawSyscall6(unix.SYS_LINKAT, uintptr(old), uintptr(unsafe.Pointer(&empty)), dir.Fd(), uintptr(unsafe.Pointer(name)), unix.AT_EMPTY_PATH, 0)
	return errnoErr(e)
}

func rawSymlink(target string, dir *os.File, base string) error {
	text, err := unix.BytePtrFromString(target)
	if err != nil {
		return err
	}
	name, err := unix.BytePtrFromString(base)
	if err != nil {
		return err
	}
	_, _, e := unix.RawSyscall(unix.SYS_SYMLINKAT, uintptr(unsafe.Pointer(text)), dir.Fd(), uintptr(unsafe.Pointer(name)))
	return errnoErr(e)
}

// cloneMount returns a descriptor of a new mount of source, a path of the board. It is not attached
// anywhere yet.
func cloneMount(source string) (int, error) {
	name, err := unix.BytePtrFromString(source)
	if err != nil {
		return -1, err
	}
	at, how := unix.AT_FDCWD, uintptr(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	fd, _, e := unix.RawSyscall(unix.SYS_OPEN_TREE, uintptr(at), uintptr(unsafe.Pointer(name)), how)
	return int(fd), errnoErr(e)
}

func setMount(mount int, attr *unix.MountAttr, flags uintptr) error {
	var empty byte
	_, _, e := unix.RawSyscall6(unix.SYS_MOUNT_SETATTR, uintptr(mount), uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH|flags, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr), 0)
	return errnoErr(e)
}

// attachMount attaches the mount to base in dir, without following base; to dir itself if base is
// "".
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
