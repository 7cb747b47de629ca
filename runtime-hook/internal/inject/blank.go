package inject

import "golang.org/x/sys/unix"

// A blank is an empty file that the hook made as a mount point. It stays in the container's
// writable layer when the mount is gone. ld.so then says "file too short" and stops looking.

// HadBlanks reports whether there was an empty file at a mount point, maybe of an earlier hook.
func (r *Root) HadBlanks() bool { return r.blanks }

// IsBlank reports whether the container has an empty file at p, with all links followed.
func (r *Root) IsBlank(p string) bool {
	f, err := r.openResolved(p)
	if err != nil {
		return false
	}
	defer f.Close()
	var stat unix.Stat_t
	return unix.Fstat(int(f.Fd()), &stat) == nil && isBlank(&stat)
}

func isBlank(stat *unix.Stat_t) bool {
	return stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Size == 0
}
