package layers

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
)

// Parts says what of its own repository a project is made of. Paths are relative to Root.
type Parts struct {
	Files    []string // project files and lock files
	Layers   []string // folders of layers, and of bitbake, that are no checkouts
	Patches  []string // files, or folders with a series
	Outside  []string // such folders that are elsewhere
	Floating []string // repositories of which no pin says the commit
}

// Parts returns what the project is made of.
func (p Project) Parts(ws Workspace) Parts {
	var parts Parts
	for _, file := range p.read {
		if rel, ok := p.below(file); ok {
			parts.Files = append(parts.Files, rel)
		}
	}
	local := map[string]string{}
	for _, r := range p.Repos {
		switch {
		case r.URL == "":
			local[r.ID] = p.ownDir(ws, r)
			p.addLayers(&parts, r, local[r.ID])
		case r.isFloating():
			parts.Floating = append(parts.Floating, r.ID)
		}
	}
	for _, r := range p.Repos {
		for _, patch := range r.Patches {
			dir, known := local[patch.Repo]
			if rel, ok := p.below(filepath.Join(dir, patch.Path)); known && ok {
				parts.Patches = append(parts.Patches, rel)
			}
		}
	}
	return parts
}

// ownDir is Dir for a project that may be a copy: kas looks for a relative path in the
// current folder, which the copy's root stands for.
func (p Project) ownDir(ws Workspace, r Repo) string {
	if dir := filepath.Join(p.Root, r.Path); !filepath.IsAbs(r.Path) && exists(dir) {
		return dir
	}
	return p.Dir(ws, r)
}

// addLayers adds the layers of a repository that is a folder here. Where a link leads to a
// layer, both ends count.
func (p Project) addLayers(parts *Parts, r Repo, dir string) {
	var folders []string
	if r.Path != "" {
		folders = append(folders, dir) // with bitbake, or what its layers share
	} else if exists(filepath.Join(dir, "bitbake/bin/bitbake")) {
		folders = append(folders, filepath.Join(dir, "bitbake"), filepath.Join(dir, "scripts"))
	}
	for _, layer := range r.Layers {
		folders = append(folders, filepath.Join(dir, layer.Name))
	}
	for _, path := range folders {
		for _, end := range slices.Compact([]string{path, withoutLinks(path)}) {
			if rel, ok := p.below(end); ok {
				parts.Layers = append(parts.Layers, rel)
			} else {
				parts.Outside = append(parts.Outside, end)
			}
		}
	}
}

// below returns a path relative to the project's repository, if it is in there.
func (p Project) below(path string) (string, bool) {
	for _, root := range []string{p.Root, withoutLinks(p.Root)} {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return rel, true
		}
	}
	return "", false
}

// withoutLinks follows the links of a path, also to what is not there: a submodule that is
// not checked out is an empty folder.
func withoutLinks(path string) string { return followLinks(path, maxLinks) }

const maxLinks = 40 // as Linux

func followLinks(path string, most int) string {
	if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) || most == 0 {
		return cmp.Or(real, path)
	}
	folder := followLinks(filepath.Dir(path), most-1)
	path = filepath.Join(folder, filepath.Base(path))
	link, err := os.Readlink(path)
	switch {
	case err != nil:
		return path
	case filepath.IsAbs(link):
		return followLinks(link, most-1)
	}
	return followLinks(filepath.Join(folder, link), most-1)
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
