package inject

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// maxNames bounds the files of one folder that are looked at.
const maxNames = 256

// Name is a regular file or a link in a folder of the container.
type Name struct {
	Name string
	Link string // what a link says
}

// Names returns the files and links in the folder dir of the container, in order, as
// the container's root may list them. It returns none if dir is no ordinary folder, or
// has very many files.
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
