package layers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// Parts lists the files and folders in its own repository that a project uses, relative to Root.
type Parts struct {
	Files    []string // project files and lock files
	Layers   []string // folders of layers, and of bitbake, that are no checkouts
	Patches  []string // files, or folders with a series
	Outside  []string // such folders that are elsewhere
	Floating []string // repositories of which no pin says the commit
}

// Parts returns the files and folders of its own repository that the project uses, the folders
// elsewhere, and its repositories without a commit.
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

// ownDir returns the folder of a repository without a url. It looks below the project's root first:
// kas looks in the current folder, which for a copy of a project is another one.
func (p Project) ownDir(ws Workspace, r Repo) string {
	if dir := filepath.Join(p.Root, r.Path); !filepath.IsAbs(r.Path) && localfile.Exists(dir) {
		return dir
	}
	return p.Dir(ws, r)
}

// addLayers adds a local repository's folder and layers to parts, and the targets of links. Of the
// project's own repository it adds bitbake and scripts, if it has bitbake, in place of the folder.
func (p Project) addLayers(parts *Parts, r Repo, dir string) {
	var folders []string
	if r.Path != "" {
		folders = append(folders, dir) // with bitbake, or what its layers share
	} else if localfile.Exists(filepath.Join(dir, "bitbake/bin/bitbake")) {
		folders = append(folders, filepath.Join(dir, "bitbake"), filepath.Join(dir, "scripts"))
	}
	for _, layer := range r.Layers {
		folders = append(folders, filepath.Join(dir, layer.Name))
	}
	for _, path := range folders {
		for _, end := range slices.Compact([]string{path, localfile.ResolveLinks(path)}) {
			if rel, ok := p.below(end); ok {
				parts.Layers = append(parts.Layers, rel)
			} else {
				parts.Outside = append(parts.Outside, end)
			}
		}
	}
}

// below returns a path relative to the project's repository, and false if it is outside.
func (p Project) below(path string) (string, bool) {
	for _, root := range []string{p.Root, localfile.ResolveLinks(p.Root)} {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return rel, true
		}
	}
	return "", false
}

// FolderHead returns the commit of the git work tree around dir, or "", and whether files differ.
func FolderHead(ctx context.Context, dir string) (commit string, edited bool, err error) {
	s := State{Dir: dir}
	err = s.describeLocal(ctx)
	return s.Head, s.Edited, err
}

// ParseLocal parses a build's local folders, such as "oe=/src/oe,meta-x=~/meta-x", into absolute
// paths by repository. A repository may occur once. It accepts a folder that is missing.
func ParseLocal(text string) (map[string]string, error) {
	folders := map[string]string{}
	for entry := range strings.SplitSeq(text, ",") {
		id, dir, found := strings.Cut(strings.TrimSpace(entry), "=")
		if strings.TrimSpace(entry) == "" {
			continue
		}
		if !found || id == "" || dir == "" {
			return nil, fmt.Errorf("%q is not REPOSITORY=FOLDER", entry)
		}
		if folders[id] != "" {
			return nil, fmt.Errorf("names repository %s twice", id)
		}
		abs, err := filepath.Abs(expandHome(dir))
		if err != nil {
			return nil, err
		}
		folders[id] = abs
	}
	return folders, nil
}

// useLocal makes r a local folder without a url and patches, if the user named one for it. It keeps
// r's commit, which status shows. It refuses a path that is no folder, or that bitbake cannot read.
func (p *Project) useLocal(r *Repo) error {
	dir, ok := p.local[r.ID]
	if !ok {
		return nil
	}
	switch info, err := os.Stat(dir); {
	case err != nil:
		return fmt.Errorf("local folder of repository %s: %w", r.ID, localfile.ExplainUnreadable(dir, err))
	case !info.IsDir():
		return fmt.Errorf("local folder of repository %s: %s is not a folder", r.ID, dir)
	case strings.ContainsAny(dir, " \"\\$") || strings.ContainsFunc(dir, yaml.IsControl):
		return fmt.Errorf("local folder of repository %s: bitbake cannot read %q; use a path without blanks, quotes and $", r.ID, dir)
	}
	r.URL, r.Path, r.Patches, r.Local = "", dir, nil, true
	return nil
}

// UnknownLocal is the error of a local folder for a repository that the project does not have.
type UnknownLocal struct{ ID, text string }

func (e *UnknownLocal) Error() string { return e.text }

// checkLocal returns an error for a local folder whose repository the project does not have.
func (p *Project) checkLocal() error {
	for _, id := range slices.Sorted(maps.Keys(p.local)) {
		if !slices.ContainsFunc(p.Repos, func(r Repo) bool { return r.ID == id }) {
			return &UnknownLocal{id, fmt.Sprintf("local folder %s: the project has no repository %q%s (have %s)", p.local[id], id, plaintext.DidYouMean(id, p.repoIDs()), strings.Join(p.repoIDs(), ", "))}
		}
	}
	return nil
}

func (p Project) repoIDs() []string {
	ids := make([]string, len(p.Repos))
	for i, r := range p.Repos {
		ids[i] = r.ID
	}
	return ids
}

// localWarning returns the warning that a repository is a local folder, with its commit.
func localWarning(ctx context.Context, r Repo) (string, error) {
	s := State{Repo: r, Dir: r.Path}
	if err := s.describeLocal(ctx); err != nil {
		return "", err
	}
	at := "without git"
	switch {
	case s.Head != "":
		at = "at commit " + s.Head[:12]
	case workTree(r.Path) != "":
		at = "in git without a commit"
	}
	if s.Edited {
		at += ", modified"
	}
	return fmt.Sprintf("repository %s is the local folder %s, %s: this build is not of the project's commit", r.ID, r.Path, at), nil
}

// describeLocal sets Head, Branch and Edited from the git work tree of s.Dir, nothing without git.
func (s *State) describeLocal(ctx context.Context) error {
	t := git.TreeIn(cmp.Or(workTree(s.Dir), s.Dir), nil) // the folder may be a part of a work tree
	if !t.IsCheckout() {
		return nil
	}
	s.Head, _ = t.Resolve(ctx, "HEAD") // a repository without a commit has none
	s.Branch, _ = t.Run(ctx, "symbolic-ref", "-q", "--short", "HEAD")
	modified, err := t.ModifiedFiles(ctx, s.Dir)
	s.Edited = len(modified) > 0
	return t.ExplainDamage(err)
}
