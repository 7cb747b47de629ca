package inject

import (
	"path"

	"golang.org/x/sys/unix"
)

// A blank is an empty file that the hook made as a mount point. It stays in the container's
// writable layer when the mount is gone. ld.so reports "file too short" for a blank, and does not
// look further.

// HadBlanks reports whether the hook has found an empty file at a mount point, which an earlier
// hook may have left.
func (r *Root) HadBlanks() bool { return r.blanks }

// RemoveBlank reports whether the container has an empty file at p, with all links followed. It
// also removes that file if p is no link and the container's root is an overlay, so that no other
// container can have a mount on it.
func (r *Root) RemoveBlank(p string) bool {
	f, err := r.openResolved(p)
	if err != nil {
		return false
	}
	defer f.Close()
	var stat unix.Stat_t
	if unix.Fstat(int(f.Fd()), &stat) != nil || !isBlank(&stat) {
		return false
	}
	if r.onOverlay() {
		// If it cannot be removed, it harms only programs that know its path.
		_ = r.unlinkBlank(p)
	}
	return true
}

func isBlank(stat *unix.Stat_t) bool {
	return stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Size == 0
}

// onOverlay reports whether the container's root is an overlay, which engines make for one
// container only. Elsewhere, an unlink would make the kernel remove mounts of other containers.
func (r *Root) onOverlay() bool {
	var stat unix.Statfs_t
	err := unix.Fstatfs(int(r.dir.Fd()), &stat)
	return err == nil && uint32(stat.Type) == unix.OVERLAYFS_SUPER_MAGIC
}

// unlinkBlank removes p if it is an empty file and not in a volume.
func (r *Root) unlinkBlank(p string) error {
	f, err := r.openResolved(path.Dir(p))
	if err != nil {
		return err
	}
	defer f.Close()
	dir, err := r.checkFolder(f, path.Dir(p))
	if err != nil {
		return err
	}
	base := path.Base(p)
	return r.changeName(dir, func() error {
		var stat unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), base, &stat, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || dir.volume || !isBlank(&stat) {
			return err
		}
		return unix.Unlinkat(int(dir.Fd()), base, 0)
	})
}
