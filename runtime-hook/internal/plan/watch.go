package plan

import (
	"os"
	"syscall"
)

// Watch lists the paths that a plan depends on: the plan is valid while the board is
// the same at all of them.
type Watch []Seen

// Seen is what the board has at one path. If the path does not exist, all other fields are zero.
type Seen struct {
	Path    string
	Mode    uint32
	Link    string // a link's text
	Dev     uint64
	Inode   uint64
	Number  uint64 // a device's
	Size    int64
	UID     uint32
	GID     uint32
	Changed int64 // in ns; of a folder only where its names count
	Written int64
	Names   bool // the names in the folder count
}

// Holds reports whether the board is still as it was.
func (w Watch) Holds() bool {
	for _, s := range w {
		if statPath(s.Path, s.Names) != s {
			return false
		}
	}
	return true
}

// OldEnough reports whether any change from now on, in ns, will show. A change within
// one tick of the file system's clock does not.
func (w Watch) OldEnough(now int64) bool {
	const second = 1_000_000_000
	for _, s := range w {
		for _, t := range []int64{s.Changed, s.Written} {
			tick := int64(second / 20)
			if t%second == 0 {
				tick = 2 * second
			}
			if t != 0 && now-t < tick && t-now < second {
				return false
			}
		}
	}
	return true
}

// watcher collects a Watch.
type watcher struct {
	list Watch
	seen map[string]int
}

// watchPath records what is at p. It must run before p is used, so that a change while
// the plan is compiled shows.
func (w *watcher) watchPath(p string) {
	if _, ok := w.seen[p]; !ok {
		w.seen[p] = len(w.list)
		w.list = append(w.list, statPath(p, false))
	}
}

// watchFolder records the folder p with the names in it.
func (w *watcher) watchFolder(p string) {
	w.watchPath(p)
	if at := &w.list[w.seen[p]]; !at.Names {
		*at = statPath(p, true)
	}
}

// statPath ignores what changes by mere use: for a folder only its type counts, and its
// times if its names count; for a device not its times.
func statPath(p string, names bool) Seen {
	out := Seen{Path: p, Names: names}
	var stat syscall.Stat_t
	if err := syscall.Lstat(p, &stat); err != nil {
		return out
	}
	kind := stat.Mode & syscall.S_IFMT
	if kind == syscall.S_IFDIR && !names {
		out.Mode = kind
		return out
	}
	out.Mode, out.Dev, out.Inode, out.UID, out.GID = stat.Mode, uint64(stat.Dev), stat.Ino, stat.Uid, stat.Gid
	switch kind {
	case syscall.S_IFCHR, syscall.S_IFBLK:
		out.Number = uint64(stat.Rdev)
		return out
	case syscall.S_IFLNK:
		out.Link, _ = os.Readlink(p)
	}
	out.Size, out.Written, out.Changed = stat.Size, stat.Mtim.Nano(), stat.Ctim.Nano()
	return out
}
