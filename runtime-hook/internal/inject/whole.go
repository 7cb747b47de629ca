package inject

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// mountWholes mounts the folders that can be mounted whole, if the container has
// nothing in their place. It returns the rest of p. A folder that cannot be mounted
// stays in the rest, whose mounts say why.
func (r *Root) mountWholes(p plan.Plan, res *Result) plan.Plan {
	for _, w := range p.Wholes {
		rest, files, links := withoutFolder(p, w.Path)
		// Some of it may be left out for this container, or be there already.
		if files+links != w.Entries || !r.lacksFolder(w.Path) || r.boardMountsIn(w.Source) {
			continue
		}
		if err := r.mountEntry(plan.Mount{Source: w.Source, Path: w.Path, Folder: true}); err != nil {
			continue
		}
		p = rest
		res.Files += files
		res.Links += links
	}
	return p
}

// withoutFolder returns p without the files and links in dir, with their numbers.
func withoutFolder(p plan.Plan, dir string) (rest plan.Plan, files, links int) {
	rest = p
	rest.Mounts, rest.Links = nil, nil
	for _, m := range p.Mounts {
		if !m.Folder && strings.HasPrefix(m.Path, dir+"/") {
			files++
		} else {
			rest.Mounts = append(rest.Mounts, m)
		}
	}
	for _, l := range p.Links {
		if strings.HasPrefix(l.Path, dir+"/") {
			links++
		} else {
			rest.Links = append(rest.Links, l)
		}
	}
	return rest, files, links
}

// lacksFolder reports whether the container has nothing at dir, or an empty folder that
// is no volume.
func (r *Root) lacksFolder(dir string) bool {
	f, err := r.openResolved(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	if id := mountID(f); id == 0 || id != r.id {
		return false
	}
	list, err := openat(f, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer list.Close()
	_, err = list.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// boardMountsIn reports whether something is mounted in the folder source of the board:
// a mount of the folder would show the files that it hides.
func (r *Root) boardMountsIn(source string) bool {
	if r.boardMounts == "" {
		text, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			return true
		}
		r.boardMounts = string(text)
	}
	// A path with such characters is written otherwise there.
	return strings.ContainsAny(source, " \t\n\\") || strings.Contains(r.boardMounts, " "+source+"/")
}
