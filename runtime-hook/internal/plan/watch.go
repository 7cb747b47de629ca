package plan

import (
	"os"
	"slices"
	"syscall"
)

// Watch lists states of all paths that a plan depends on. Any change there makes the plan invalid.
type Watch []Seen

// Seen is the state of a path on the board. If it does not exist, all but Path and Names are zero.
type Seen struct {
	Path    string
	Mode    uint32
	Link    string // a link's text
	Dev     uint64
	Inode   uint64
	Number  uint64 // device number
	Size    int64
	UID     uint32
	GID     uint32
	Changed int64 // ctime in ns; for a folder only if Names is set
	Written int64
	Names   bool // the plan depends on the names in this folder
}

// Holds reports whether all paths still have the same state.
func (w Watch) Holds() bool {
	return !slices.ContainsFunc(w, func(s Seen) bool { return statPath(s.Path, s.Names) != s })
}

// OldEnough reports whether all recorded times are so far from now, in ns, that any later change
// gives a new time. A change within one tick of the file system's clock would not.
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

// watchPath records the state of p, once. Call it before p is used, so that a later change shows.
func (w *watcher) watchPath(p string) {
	if _, ok := w.seen[p]; !ok {
		w.seen[p] = len(w.list)
		w.list = append(w.list, statPath(p, false))
	}
}

// watchFolder records the state of the folder p with its times, which change with the names in it.
func (w *watcher) watchFolder(p string) {
	w.watchPath(p)
	if at := &w.list[w.seen[p]]; !at.Names {
		*at = statPath(p, true)
	}
}

// statPath returns the state of p, without what changes by mere use: for a folder it has only the
// type, unless names is set, and for a device no times.
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
