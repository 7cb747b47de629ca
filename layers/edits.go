package layers

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
)

// namedEdits is how many edited files a warning names.
const namedEdits = 3

// warnOfEdits names what a build would take from the user instead of from the
// commits. Only git can tell: a file may be edited without any of git's own files
// being newer for it.
func (c *checkout) warnOfEdits(ctx context.Context) error {
	warnings := make([]string, len(c.p.Repos))
	group, at := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, r := range c.p.Repos {
		if r.URL == "" || c.moved[r.ID] {
			continue // the user's own, or without edits a moment ago
		}
		group.Go(func() (err error) {
			warnings[i], err = c.tree(r).editsSaid(at, r)
			return c.tree(r).damaged(err)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, said := range warnings {
		if said != "" {
			warn(ctx, said)
		}
	}
	return nil
}

// editsSaid is what a warning says of a tree; "" where it is as its commit.
func (t tree) editsSaid(ctx context.Context, r Repo) (string, error) {
	edited, err := t.edited(ctx)
	if err != nil || len(edited) == 0 {
		return "", err
	}
	more := ""
	if len(edited) > namedEdits {
		more = fmt.Sprintf(" and %d more", len(edited)-namedEdits)
		edited = edited[:namedEdits]
	}
	for i, line := range edited {
		edited[i] = printable(line[min(3, len(line)):]) // after two letters and a space
	}
	return fmt.Sprintf("repository %s has local changes, which a build uses: %s%s (in %s)", r.ID, strings.Join(edited, ", "), more, t.dir), nil
}
