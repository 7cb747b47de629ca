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

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// ParseLocal reads the folders that a build uses in place of checkouts:
// "oe=/src/oe,meta-x=~/meta-x". A relative one is below the current folder.
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

// useLocal sets the user's folder for a repository, if there is one. status still
// needs what the project pins.
func (p *Project) useLocal(r *Repo) error {
	dir, ok := p.local[r.ID]
	if !ok {
		return nil
	}
	switch info, err := os.Stat(dir); {
	case err != nil:
		return fmt.Errorf("local folder of repository %s: %w", r.ID, localfile.NotHere(dir, err))
	case !info.IsDir():
		return fmt.Errorf("local folder of repository %s: %s is not a folder", r.ID, dir)
	case strings.ContainsAny(dir, " \"\\$") || strings.ContainsFunc(dir, isControl):
		return fmt.Errorf("local folder of repository %s: bitbake cannot read %q; use a path without blanks, quotes and $", r.ID, dir)
	}
	r.URL, r.Path, r.Patches, r.Local = "", dir, nil, true
	return nil
}

// checkLocal refuses a folder for a repository that the project does not have.
func (p *Project) checkLocal() error {
	for _, id := range slices.Sorted(maps.Keys(p.local)) {
		if !slices.ContainsFunc(p.Repos, func(r Repo) bool { return r.ID == id }) {
			return fmt.Errorf("local folder %s: the project has no repository %q%s (have %s)\nnext: unset SLIPWAY_LOCAL  # or name one of these in it, or in local of board.yml", p.local[id], id, plaintext.DidYouMean(id, p.repoIDs()), strings.Join(p.repoIDs(), ", "))
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

// localTree returns the work tree around a local folder, which may be a part of it.
func localTree(dir string) tree { return treeIn(cmp.Or(workTree(dir), dir), nil) }

// localWarning returns the warning of a local folder.
func localWarning(ctx context.Context, r Repo) (string, error) {
	s := State{Repo: r, Dir: r.Path}
	if err := s.describeLocal(ctx); err != nil {
		return "", err
	}
	at := "without git"
	if s.Head != "" {
		at = "at commit " + s.Head[:12]
	}
	if s.Edited {
		at += ", modified"
	}
	return fmt.Sprintf("repository %s is the local folder %s, %s: this build is not of the project's commit", r.ID, r.Path, at), nil
}

func (s *State) describeLocal(ctx context.Context) error {
	t := localTree(s.Dir)
	if !t.isCheckout() {
		return nil
	}
	s.Head, _ = t.resolveCommit(ctx, "HEAD") // a repository without a commit has none
	s.Branch, _ = t.git(ctx, "symbolic-ref", "-q", "--short", "HEAD")
	modified, err := t.modifiedFiles(ctx, s.Dir)
	s.Edited = len(modified) > 0
	return t.explainDamage(err)
}
