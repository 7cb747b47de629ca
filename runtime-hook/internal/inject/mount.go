package inject

import (
	"errors"
	"fmt"
	"os"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// flags are those of every file and folder that is given. Devices are given
// without NODEV, as they would not open.
const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV

func (r *Root) mount(m plan.Mount) error {
	if m.Folder {
		at, err := r.folder(m.Path)
		if err != nil {
			return err
		}
		// What was resolved below it before now names what the mount hides.
		defer delete(r.dirs, m.Path)
		defer at.Close()
		err = r.bind(m.Source, m.Path, at, flags)
		// No user namespace may see what a mount of the board hides.
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("%w; a container with a user namespace gets no folder in which the board has a mount: list what is wanted of it", err)
		}
		return err
	}
	return r.cover(m.Source, m.Path, unix.S_IFREG, flags)
}

// cover mounts source, which is of the kind, over the file p of the container,
// made where it is missing.
func (r *Root) cover(source, p string, kind uint32, flags uintptr) error {
	at, err := r.mountPoint(p, kind)
	if err != nil {
		return err
	}
	defer at.Close()
	return r.bind(source, p, at, flags)
}

// mountPoint opens the file p in the container for something of the kind. A link
// of the image that leads to a file in the container stands for that file; any
// other link is replaced.
func (r *Root) mountPoint(p string, kind uint32) (*os.File, error) {
	dir, base, err := r.parent(p)
	if err != nil {
		return nil, err
	}
	made, err := r.create(dir, base)
	if !errors.Is(err, unix.EEXIST) {
		return made, err
	}
	isLink := readlink(dir, base) != ""
	if isLink {
		// Nodes that a link leads to are others' devices: /dev/null is one.
		kind = unix.S_IFREG
	}
	old, err := r.coverable(p, kind)
	if err == nil {
		return old, nil
	}
	if !isLink {
		return nil, err
	}
	if err := r.removeLink(dir, base); err != nil {
		return nil, err
	}
	return r.create(dir, base)
}

// coverable opens what the container has at p: a regular file, or a node where one
// is to go.
func (r *Root) coverable(p string, kind uint32) (*os.File, error) {
	f, err := pathrs.OpenatInRoot(r.dir, p)
	if err != nil {
		return nil, err
	}
	have, err := mode(f)
	if err == nil && have != unix.S_IFREG && have != kind {
		err = inTheWay("%s is there and is no file", p)
	}
	if err == nil {
		err = notKernel(f, p)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (r *Root) create(dir *os.File, base string) (*os.File, error) {
	var made *os.File
	err := r.add(dir, base, func() (err error) {
		made, err = openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		return err
	})
	return made, err
}

// bind mounts source, of the board, on at, which is p of the container: alone,
// without what is mounted below it, and so that no later mount spreads.
func (r *Root) bind(source, p string, at *os.File, flags uintptr) error {
	if r.oldAPI {
		return r.bindOld(source, p, at, flags)
	}
	err := bindNew(source, at, flags)
	// Linux before 5.12, or a seccomp filter that does not know these calls.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		r.oldAPI = true
		return r.bindOld(source, p, at, flags)
	}
	return err
}

// bindNew moves the mount into place when it has all its flags already: there is
// no moment at which it could be written to.
func bindNew(source string, at *os.File, flags uintptr) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open %s: %w", source, err)
	}
	defer unix.Close(fd)
	// The three flags have the same values here as with mount(2).
	attr := unix.MountAttr{Attr_set: uint64(flags), Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mount flags: %w", err)
	}
	if err := unix.MoveMount(fd, "", int(at.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

// bindOld does the same with mount(2), which takes names only: those of
// descriptors. Flags need a second call on the new mount, which is found by
// resolving p again and used only if it is what was just mounted.
func (r *Root) bindOld(source, p string, at *os.File, flags uintptr) error {
	src, err := os.OpenFile(source, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := unix.Mount(fdPath(src), fdPath(at), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	top, err := pathrs.OpenatInRoot(r.dir, p)
	if err != nil {
		return err
	}
	defer top.Close()
	if same, err := sameFile(int(top.Fd()), fdPath(src)); err != nil || !same {
		return errors.Join(err, fmt.Errorf("%s changed while it was mounted", p))
	}
	kept, err := lockedFlags(src)
	if err != nil {
		return err
	}
	if err := unix.Mount("", fdPath(top), "", unix.MS_BIND|unix.MS_REMOUNT|flags|kept, ""); err != nil {
		return fmt.Errorf("mount flags: %w", err)
	}
	return unix.Mount("", fdPath(top), "", unix.MS_PRIVATE, "")
}

// lockedFlags are those of the mount that f is on. In a user namespace none of
// them may be dropped.
func lockedFlags(f *os.File) (uintptr, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return 0, err
	}
	const all = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME
	return uintptr(stat.Flags) & all, nil
}
