package inject

import (
	"path"
	"slices"

	"slipway/runtime-hook/internal/plan"
)

// Lacks returns p without the files, folders and links that the container already has
// from the board: a CDI spec and a hooks folder may both call the hook.
func (r *Root) Lacks(p plan.Plan) plan.Plan {
	// One look tells the common case, that this is the first hook.
	if len(p.Mounts) > 0 && !r.hasMount(p.Mounts[0]) {
		return p
	}
	p.Mounts = slices.DeleteFunc(slices.Clone(p.Mounts), r.hasMount)
	p.Links = slices.DeleteFunc(slices.Clone(p.Links), r.hasLink)
	return p
}

func (r *Root) hasMount(m plan.Mount) bool {
	return r.hasFile(m.Source, m.Path) && (m.Listed == "" || r.hasFile(m.Source, m.Listed))
}

// hasFile reports whether the container has at p the board's own file source, which no
// image can have.
func (r *Root) hasFile(source, p string) bool {
	f, err := r.openResolved(p)
	if err != nil {
		return false
	}
	defer f.Close()
	same, err := sameFile(int(f.Fd()), source)
	return err == nil && same
}

func (r *Root) hasLink(l plan.Link) bool {
	dir, err := r.openResolved(path.Dir(l.Path))
	if err != nil {
		return false
	}
	defer dir.Close()
	return readlink(dir, path.Base(l.Path)) == l.Target
}
