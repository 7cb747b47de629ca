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

// warnOfOwn names what of the user's a build takes instead of the commits, and what
// it leaves out. Only git can tell: a file may be edited without any of git's own files
// being newer for it.
func (c *checkout) warnOfOwn(ctx context.Context) error {
	warnings := make([][]string, len(c.p.Repos))
	group, at := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, r := range c.p.Repos {
		if r.URL == "" && !r.Local {
			continue // the user's own
		}
		group.Go(func() (err error) {
			if r.Local {
				said, err := localSaid(at, r)
				warnings[i] = []string{said}
				return err
			}
			t := c.tree(r)
			warnings[i], err = t.ownSaid(at, r, c.moved[r.ID])
			return t.damaged(err)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, said := range slices.Concat(warnings...) {
		if said != "" {
			warn(ctx, said)
		}
	}
	return nil
}

// ownSaid are the warnings of a tree. One that was moved had no edits a moment ago.
func (t tree) ownSaid(ctx context.Context, r Repo, moved bool) ([]string, error) {
	said := t.record().Unfetched.said(r, t.dir)
	left, err := t.leftOut(ctx, r)
	if err != nil || moved {
		return append(said, left), err
	}
	edits, err := t.editsSaid(ctx, r)
	return append(said, edits, left), err
}

// modified lists what a build takes from a folder of the tree instead of from HEAD:
// also files that git does not know, but for what Python compiles and for other
// repositories.
func (t tree) modified(ctx context.Context, folder string) ([]string, error) {
	out, err := run.Output(ctx, t.command("status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none", "--", folder, ":(top,exclude,glob)**/__pycache__/**"))
	return slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "?? ") && strings.HasSuffix(line, "/")
	}), err
}

// editsSaid is what a warning says of a tree; "" where it is as its commit.
func (t tree) editsSaid(ctx context.Context, r Repo) (string, error) {
	edited, err := t.modified(ctx, t.dir)
	if err != nil || len(edited) == 0 {
		return "", err
	}
	for i, line := range edited {
		edited[i] = printable(line[min(3, len(line)):]) // after two letters and a space
	}
	return fmt.Sprintf("repository %s has local changes, which a build uses: %s (in %s)", r.ID, someOf(edited), t.dir), nil
}
