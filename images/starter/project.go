package starter

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/layers"
)

// placeholder is the address of Slipway's layers until the user edits it.
const placeholder = "https://git.example.com/slipway"

// projectFile returns the text of one of Slipway's project files, merged with its includes, for
// another repository. pinned reports whether each repository has a commit.
func (c choices) projectFile(ctx context.Context, like images.Spec) (text string, pinned bool, err error) {
	folder, err := os.MkdirTemp("", "slipway-init-")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(folder)
	p, err := loadElsewhere(ctx, folder, images.SourceProjectFile(like))
	if err != nil {
		return "", false, fmt.Errorf("the layers of %s: %w", c.Like, err)
	}
	flat, err := layers.Dump(p)
	if err != nil {
		return "", false, err
	}
	head, err := c.fill("kas.yml.head.tmpl")
	text = head + strings.ReplaceAll(string(flat), placeholder+"\n", placeholder+" # EDIT ME: where your team keeps Slipway's source\n")
	return text, !slices.ContainsFunc(p.Repos, func(r layers.Repo) bool { return r.URL != "" && r.Commit == "" }), err
}

// loadElsewhere loads one of Slipway's project files in a folder that is no clone, into which it
// copies Slipway's sources. A repository without an address is Slipway's clone, and gets the
// placeholder as its address.
func loadElsewhere(ctx context.Context, folder, file string) (layers.Project, error) {
	if err := os.CopyFS(filepath.Join(folder, "images"), images.Sources()); err != nil {
		return layers.Project{}, err
	}
	if err := os.Mkdir(filepath.Join(folder, ".git"), 0o755); err != nil { // includes begin there
		return layers.Project{}, err
	}
	top, ws := filepath.Join(folder, "kas.yml"), layers.Workspace{Dir: filepath.Join(folder, "layers"), Offline: true}
	text := "header:\n  version: 14\n  includes: [" + path.Join("images", file) + "]\n"
	if err := os.WriteFile(top, []byte(text), 0o600); err != nil {
		return layers.Project{}, err
	}
	p, err := layers.Load(ctx, top, ws)
	if err != nil {
		return p, err
	}
	given := ""
	for _, r := range p.Repos {
		if r.URL == "" && r.Path == "" {
			given += fmt.Sprintf("  %s: {url: %s, %s}\n", r.ID, placeholder, revision(images.ThisProgram()))
		}
	}
	if given == "" {
		return p, nil
	}
	if err := os.WriteFile(top, []byte(text+"repos:\n"+given), 0o600); err != nil {
		return layers.Project{}, err
	}
	return layers.Load(ctx, top, ws)
}

// revision returns the commit of this program as a line of a project file, so that boards are built
// with the layers that it knows. For a program with changed source it returns branch: main.
func revision(p images.Program) string {
	if len(p.Commit) == 40 && !p.Modified {
		return "commit: " + p.Commit
	}
	return "branch: main"
}
