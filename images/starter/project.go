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

// placeholder is where Slipway's layers come from until the user says it.
const placeholder = "https://git.example.com/slipway"

// projectFile is the project file of a board that Slipway brings, with everything that it includes,
// for another repository. It also reports whether each repository has a commit.
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

// loadElsewhere loads a project file of Sources in a folder that is no clone. A repository
// without an address is the clone, and gets one.
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

// revision is that of this program, so that boards are built with the layers that it knows. A
// program whose source was changed has none.
func revision(p images.Program) string {
	if len(p.Commit) == 40 && !p.Modified {
		return "commit: " + p.Commit
	}
	return "branch: main"
}
