package inject

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
	"slipway/runtime-hook/internal/regular"
)

// ErrNoFile means that a path in the container is no regular file.
var ErrNoFile = errors.New("it is no file")

// Has reports whether the path p exists in the container, with all links followed.
func (r *Root) Has(p string) bool {
	f, err := r.openResolved(p)
	if err == nil {
		f.Close()
	}
	return err == nil
}

// ReadFile reads the regular file p of at most max bytes, with the rights of the container's root.
func (r *Root) ReadFile(p string, max int) ([]byte, error) {
	f, err := r.OpenFile(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return regular.Limited(f, max)
}

// OpenFile opens the regular file p of the container for reading, with the rights of its root.
// Another kind of file is ErrNoFile. It refuses files not for all to read, and links into volumes.
func (r *Root) OpenFile(p string) (*os.File, error) {
	at, err := r.openResolved(p)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, ErrNoFile
	}
	if err != nil {
		return nil, err
	}
	defer at.Close()
	if kind, err := fileKind(at); err != nil || kind != unix.S_IFREG {
		return nil, errors.Join(err, ErrNoFile)
	}
	if _, err := refuseKernelFiles(at, p); err != nil {
		return nil, ErrNoFile
	}
	if err := r.refuseCopy(at, p); err != nil {
		return nil, err
	}
	var f *os.File
	err = r.owner.runIn(at, func() (err error) {
		// O_NONBLOCK: a program with a lease on the file could delay the open by 45 s.
		f, err = os.OpenFile(fdPath(at), os.O_RDONLY|unix.O_NONBLOCK, 0)
		return err
	})
	return f, err
}

// WriteFile sets the content of the file p for this container only. Readers find the old file or
// the new one, complete. It does not change a link's target. If it cannot replace the file, or the
// folder is in a volume, it mounts the new file over the old one.
func (r *Root) WriteFile(p string, data []byte) error {
	dir, base, err := r.openParent(p)
	if err != nil {
		return err
	}
	if dir.volume {
		return r.coverWith(p, data)
	}
	err = r.replaceFile(dir, base, data)
	if err == nil || r.coverWith(p, data) == nil {
		return nil
	}
	return err
}

// replaceFile writes data to a new file and renames it to base. The new file has a random name,
// because several hooks may work in a folder that containers share.
func (r *Root) replaceFile(dir *folder, base string, data []byte) error {
	var random [8]byte
	if _, err := unix.Getrandom(random[:], 0); err != nil {
		return err
	}
	temp := fmt.Sprintf(".%s-slipway-%x", base, random)
	return r.changeName(dir, func() error {
		f, err := openat(dir.File, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
		if err == nil {
			err = unix.Renameat(int(dir.Fd()), temp, int(dir.Fd()), base)
		}
		if err != nil {
			unix.Unlinkat(int(dir.Fd()), temp, 0)
		}
		return err
	})
}

// coverWith writes data to a temporary file of the board, in memory, and mounts that file over p in
// the container. The content stays until the last container with the mount ends.
func (r *Root) coverWith(p string, data []byte) error {
	f, err := plan.CreateTemp(plan.CacheDir)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return r.coverFile(f.Name(), p, unix.S_IFREG, mountFlags)
}

// maxNames limits the files of a folder for Names.
const maxNames = 256

// Name is a regular file or a link in a folder of the container.
type Name struct {
	Name string
	Link string // text of the link; "" for a file
}

// Names returns the files and links in the container's folder dir, sorted, with the rights of its
// root. It returns none if dir is no ordinary folder, or has maxNames files.
func (r *Root) Names(dir string) (names []Name) {
	at, err := r.openResolved(dir)
	if err != nil {
		return nil
	}
	defer at.Close()
	if _, err := r.checkFolder(at, dir); err != nil {
		return nil
	}
	var list *os.File
	err = r.owner.runIn(at, func() (err error) {
		list, err = openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY)
		return err
	})
	if err != nil {
		return nil
	}
	defer list.Close()
	found, _ := list.Readdirnames(maxNames)
	if len(found) == maxNames {
		return nil
	}
	slices.Sort(found)
	for _, name := range found {
		if n, ok := readName(list, name); ok {
			names = append(names, n)
		}
	}
	return names
}

// readName returns the file or link name in dir; false for anything else.
func readName(dir *os.File, name string) (Name, bool) {
	var stat unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return Name{}, false
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return Name{Name: name}, true
	case unix.S_IFLNK:
		text := readlink(dir, name)
		return Name{name, text}, text != ""
	}
	return Name{}, false
}
