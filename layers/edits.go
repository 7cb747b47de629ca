package layers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"slipway/layers/run"
)

// namedEdits is how many edited files a warning names.
const namedEdits = 3

// warnOfOwn names the user's edits and commits that a build takes instead of the
// project's, and those that it leaves out. Only git can tell: an edit of a file changes
// none of git's own files.
func (c *checkout) warnOfOwn(ctx context.Context) error {
	warnings := make([][]string, len(c.p.Repos))
	group, at := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for i, r := range c.p.Repos {
		if r.URL == "" && !r.Local {
			continue // the user's own
		}
		group.Go(func() (err error) {
			if r.Local {
				said, err := localWarning(at, r)
				warnings[i] = []string{said}
				return err
			}
			t := c.repoTree(r)
			warnings[i], err = t.ownWarnings(at, r, c.moved[r.ID])
			return t.explainDamage(err)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, said := range slices.Concat(warnings...) {
		if said != "" {
			showWarning(ctx, said)
		}
	}
	return nil
}

// ownWarnings returns the warnings of a tree. A tree that just moved has no edits.
func (t tree) ownWarnings(ctx context.Context, r Repo, moved bool) ([]string, error) {
	said := t.readRecord().Unfetched.missingWarnings(r, t.dir)
	left, err := t.leftOutWarning(ctx, r)
	if err != nil || moved {
		return append(said, left), err
	}
	edits, err := t.editsWarning(ctx, r)
	return append(said, edits, left), err
}

// modifiedFiles lists what a build takes from a folder of the tree instead of from
// HEAD. It includes untracked files, except Python's compiled files and other
// repositories.
func (t tree) modifiedFiles(ctx context.Context, folder string) ([]string, error) {
	out, err := run.Output(ctx, t.command("status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none", "--", folder, ":(top,exclude,glob)**/__pycache__/**"))
	return slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "?? ") && strings.HasSuffix(line, "/")
	}), err
}

// editsWarning returns the warning of a tree with edits, "" without edits.
func (t tree) editsWarning(ctx context.Context, r Repo) (string, error) {
	edited, err := t.modifiedFiles(ctx, t.dir)
	if err != nil || len(edited) == 0 {
		return "", err
	}
	for i, line := range edited {
		edited[i] = printableLine(line[min(3, len(line)):]) // after two letters and a space
	}
	return fmt.Sprintf("repository %s has local changes, which a build uses: %s (in %s)", r.ID, firstNames(edited), t.dir), nil
}
