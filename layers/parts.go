package layers

import (
	"context"
	"path/filepath"
	"slices"
)

// Parts says what of its own repository a project is made of. Paths are relative to Root.
type Parts struct {
	Files    []string // project files and lock files
	Layers   []string // folders of layers that are no checkouts
	Patches  []string // files, or folders with a series
	Outside  []string // such layers that are elsewhere
	Floating []string // repositories of which no pin says the commit
}

// Parts returns what the project is made of. here is a folder that stands for Root: kas
// looks for folders in the current one, and Root may be a copy of it.
func (p Project) Parts(ws Workspace, here string) Parts {
	var parts Parts
	for _, file := range p.read {
		if rel, ok := p.below(file, here); ok {
			parts.Files = append(parts.Files, rel)
		}
	}
	local := map[string]string{}
	for _, r := range p.Repos {
		switch {
		case r.URL == "":
			local[r.ID] = p.Dir(ws, r)
			p.addLayers(&parts, r, local[r.ID], here)
		case r.isFloating():
			parts.Floating = append(parts.Floating, r.ID)
		}
	}
	for _, r := range p.Repos {
		for _, patch := range r.Patches {
			dir, known := local[patch.Repo]
			if rel, ok := p.below(filepath.Join(dir, patch.Path), here); known && ok {
				parts.Patches = append(parts.Patches, rel)
			}
		}
	}
	return parts
}

// addLayers adds the layers of a repository that is a folder here. Where a link leads to a
// layer, both ends count.
func (p Project) addLayers(parts *Parts, r Repo, dir, here string) {
	for _, layer := range r.Layers {
		path := filepath.Join(dir, layer.Name)
		for _, end := range slices.Compact([]string{path, withoutLinks(path)}) {
			if rel, ok := p.below(end, here); ok {
				parts.Layers = append(parts.Layers, rel)
			} else {
				parts.Outside = append(parts.Outside, end)
			}
		}
	}
}

// below returns a path relative to the project's repository, if it is in there.
func (p Project) below(path, here string) (string, bool) {
	for _, root := range []string{p.Root, withoutLinks(p.Root), here} {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return rel, true
		}
	}
	return "", false
}

// withoutLinks follows the links of a path, where it is there.
func withoutLinks(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// Moves says which repositories are at another commit in a project than in an older state
// of it. It asks no server.
func Moves(older, newer Project) []Move { return movesBetween(older, newer) }

// Head returns the commit of the work tree around a folder, and whether files differ from
// it. The commit is "" without git.
func Head(ctx context.Context, dir string) (commit string, edited bool, err error) {
	s := State{Dir: dir}
	err = s.describeLocal(ctx)
	return s.Head, s.Edited, err
}
