package plan

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Whole is a folder of the board that holds what the lists give in it and nothing
// else, so that where a container has no such folder one mount gives all of it.
type Whole struct {
	Source  string // on the board
	Path    string // in the container
	Entries int    // how many files and links of the plan it stands for
}

// leastWhole is from how many entries on a folder is given whole. One that is
// small may be shared with what a container installs later, and saves little.
const leastWhole = 16

// mostWholes bounds how often what lies deep is looked at.
const mostWholes = 32

// wholes are the folders of p that can be given whole, an outer one before those in
// it: where the image has something in that one, they still can.
func (c *compiler) wholes(p Plan) (out []Whole) {
	given := given{}
	dirs := map[string]string{} // in the container: on the board
	for _, m := range p.Mounts {
		if !m.Folder {
			given[m.Path] = m.Source
			dirs[path.Dir(m.Path)] = path.Dir(m.Source)
		}
	}
	for _, l := range p.Links {
		given[l.Path] = linkTo + l.Target
	}
	paths := make([]string, 0, len(dirs))
	for dir := range dirs {
		paths = append(paths, dir)
	}
	slices.Sort(paths)
	below := given.below()
	for _, dir := range paths {
		if len(out) == mostWholes {
			break
		}
		w := Whole{dirs[dir], dir, below[dir]}
		if w.Entries < leastWhole || strings.Count(dir, "/") < 2 || wide[dir] || p.entangles(dir) || !given.all(w) {
			continue
		}
		c.lookAll(w.Source)
		if given.all(w) { // still, and from now on the watch breaks otherwise
			out = append(out, w)
		}
	}
	return out
}

// entangles reports whether p gives more in dir than files and links, which could
// not be made there, or dir lies in a folder that p gives.
func (p Plan) entangles(dir string) bool {
	within := func(inner, outer string) bool { return strings.HasPrefix(inner+"/", outer+"/") }
	for _, m := range p.Mounts {
		if m.Folder && (within(m.Path, dir) || within(dir, m.Path)) {
			return true
		}
	}
	return slices.ContainsFunc(p.Devices, func(d Device) bool { return within(d.Path, dir) })
}

// given is what a plan gives, by path in the container: a file's source, or what a
// link says.
type given map[string]string

// linkTo begins what a link says; no source begins so.
const linkTo = "-> "

// below counts what lies in each folder, and in those in it.
func (g given) below() map[string]int {
	n := map[string]int{}
	for p := range g {
		for p != "/" {
			p = path.Dir(p)
			n[p]++
		}
	}
	return n
}

// all reports whether the folder on the board is all that is given in it, under the
// same names, for everybody to read and for root alone to write.
func (g given) all(w Whole) bool {
	n, ok := g.owned(w.Source, w.Path)
	return ok && n == w.Entries
}

func (g given) owned(source, dir string) (n int, ok bool) {
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
			below, ok := g.owned(from, to)
			if !ok {
				return 0, false
			}
			n += below
			continue
		case fs.ModeSymlink:
			text, err := os.Readlink(from)
			if err != nil || g[to] != linkTo+text {
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

// lookAll notes the folder and those in it with their names.
func (c *compiler) lookAll(dir string) {
	c.lookInto(dir)
	list, _ := os.ReadDir(dir)
	for _, f := range list {
		if f.IsDir() {
			c.lookAll(dir + "/" + f.Name())
		}
	}
}
