package plan

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Whole is a folder of the board with only files that the lists name. If a container
// has no such folder, one mount gives all of it.
type Whole struct {
	Source  string // on the board
	Path    string // in the container
	Entries int    // number of files and links of the plan in it
}

// minWholeEntries is the least number of entries in a folder that is mounted whole. A
// small one may be shared with what a container installs later, and saves little.
const minWholeEntries = 16

// maxWholes limits how often nested folders are read.
const maxWholes = 32

// findWholes returns the folders of p that can be mounted whole, an outer one before
// those in it: if the image has files in the outer one, the inner ones still can be
// mounted.
func (c *compiler) findWholes(p Plan) (out []Whole) {
	given := planPaths{}
	dirs := map[string]string{} // in the container: on the board
	for _, m := range p.Mounts {
		if !m.Folder {
			given[m.Path] = m.Source
			dirs[path.Dir(m.Path)] = path.Dir(m.Source)
		}
	}
	for _, l := range p.Links {
		given[l.Path] = linkMark + l.Target
	}
	paths := make([]string, 0, len(dirs))
	for dir := range dirs {
		paths = append(paths, dir)
	}
	slices.Sort(paths)
	below := given.countBelow()
	for _, dir := range paths {
		if len(out) == maxWholes {
			break
		}
		w := Whole{dirs[dir], dir, below[dir]}
		if w.Entries < minWholeEntries || strings.Count(dir, "/") < 2 || wideFolders[dir] || p.overlapsFolder(dir) || !given.coversFolder(w) {
			continue
		}
		c.watchTree(w.Source)
		if given.coversFolder(w) { // still, and from now on the watch breaks otherwise
			out = append(out, w)
		}
	}
	return out
}

// overlapsFolder reports whether p has more in dir than files and links, which could
// not be made there, or dir is in a folder of p.
func (p Plan) overlapsFolder(dir string) bool {
	within := func(inner, outer string) bool { return strings.HasPrefix(inner+"/", outer+"/") }
	for _, m := range p.Mounts {
		if m.Folder && (within(m.Path, dir) || within(dir, m.Path)) {
			return true
		}
	}
	return slices.ContainsFunc(p.Devices, func(d Device) bool { return within(d.Path, dir) })
}

// planPaths holds what a plan adds, by path in the container: a file's source, or a
// link's text.
type planPaths map[string]string

// linkMark begins a link's text; no source begins so.
const linkMark = "-> "

// countBelow counts the entries below each folder.
func (g planPaths) countBelow() map[string]int {
	n := map[string]int{}
	for p := range g {
		for p != "/" {
			p = path.Dir(p)
			n[p]++
		}
	}
	return n
}

// coversFolder reports whether all files in the folder on the board are given, under
// the same names, readable by everybody and writable by root alone.
func (g planPaths) coversFolder(w Whole) bool {
	n, ok := g.countOwned(w.Source, w.Path)
	return ok && n == w.Entries
}

func (g planPaths) countOwned(source, dir string) (n int, ok bool) {
	info, err := os.Lstat(source)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0o055 {
		return 0, false
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != 0 {
		return 0, false
	}
	list, err := os.ReadDir(source)
	if err != nil {
		return 0, false
	}
	for _, f := range list {
		from, to := source+"/"+f.Name(), dir+"/"+f.Name()
		switch f.Type() {
		case fs.ModeDir:
			below, ok := g.countOwned(from, to)
			if !ok {
				return 0, false
			}
			n += below
			continue
		case fs.ModeSymlink:
			text, err := os.Readlink(from)
			if err != nil || g[to] != linkMark+text {
				return 0, false
			}
		case 0:
			if g[to] != from {
				return 0, false
			}
		default:
			return 0, false
		}
		n++
	}
	return n, true
}

// watchTree records the folder, and those in it, with their names.
func (c *compiler) watchTree(dir string) {
	c.watchFolder(dir)
	list, _ := os.ReadDir(dir)
	for _, f := range list {
		if f.IsDir() {
			c.watchTree(dir + "/" + f.Name())
		}
	}
}
