package layers

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
)

// State is how one repository's checkout compares with the project.
type State struct {
	Repo    Repo
	Dir     string
	Head    string // "" where there is no checkout
	Wanted  string // with the patches; "" where it is not known before a checkout
	Branch  string // that HEAD is on; "" for none, as slipway leaves it
	Edited  bool
	Stopped bool // a checkout was killed here
	Patched int  // patches that HEAD has
	Stale   bool // the project's patches are not those that were applied
	Ahead   int  // commits of HEAD that Wanted lacks
	Behind  int  // the other way round
}

// Status looks at the checkouts in a workspace, without asking any server.
func Status(ctx context.Context, p Project, ws Workspace) ([]State, error) {
	ws, err := ws.absolute()
	if err != nil {
		return nil, err
	}
	c := &checkout{p: p, ws: ws}
	states := make([]State, len(p.Repos))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, r := range p.Repos {
		states[i] = State{Repo: r, Dir: p.Dir(ws, r), Wanted: r.Commit}
		if r.Local {
			group.Go(func() error { return states[i].describeLocal(ctx) })
			continue
		}
		if t := treeIn(states[i].Dir, nil); t.there() {
			group.Go(func() error { return t.damaged(c.describe(ctx, t, &states[i])) })
		}
	}
	return states, group.Wait()
}

func (c *checkout) describe(ctx context.Context, t tree, s *State) error {
	s.Head, _ = t.commitOf(ctx, "HEAD") // a repository without a commit has none
	if s.Repo.URL == "" {
		edited, err := t.edited(ctx)
		s.Edited = len(edited) > 0
		return err
	}
	modified, err := t.modified(ctx, t.dir)
	if err != nil {
		return err
	}
	s.Edited = len(modified) > 0
	s.Stopped = !t.settled()
	if branch, err := t.git(ctx, "symbolic-ref", "-q", "HEAD"); err == nil {
		s.Branch = strings.TrimPrefix(branch, "refs/heads/")
	}
	if err := c.compare(ctx, t, s); err != nil || s.Head == s.Wanted || !wholeCommit().MatchString(s.Wanted) || !t.has(ctx, s.Wanted) {
		return err
	}
	count, err := t.git(ctx, "rev-list", "--left-right", "--count", s.Wanted+"..."+s.Head)
	if err != nil {
		return err
	}
	_, err = fmt.Sscan(count, &s.Behind, &s.Ahead)
	return err
}

// compare finds the commit that the tree should be at, and its patches.
func (c *checkout) compare(ctx context.Context, t tree, s *State) error {
	now := t.record()
	if now.fits(s.Repo) {
		s.Wanted = now.Head
	} else {
		if want, err := t.wanted(ctx, s.Repo); err == nil {
			s.Wanted = want
		}
		now = record{}
	}
	files, err := c.patchFiles(s.Repo)
	if err != nil {
		s.Stale = true // checkout says why they cannot be read
		return ctx.Err()
	}
	s.Stale = digestOf(files) != now.Patches
	if s.Head == now.Head {
		s.Patched = now.Count
	}
	return nil
}

// Word says in a word or two how the checkout stands.
func (s State) Word() string {
	switch {
	case s.Head == "" && s.Repo.URL != "":
		return "missing"
	case s.Stopped:
		return "stopped"
	case s.Repo.Local && s.Edited:
		return "local, modified"
	case s.Repo.Local:
		return "local"
	case s.Edited:
		return "edited"
	case s.Repo.URL == "":
		return "local"
	case s.Head != s.Wanted && s.Ahead > 0 && s.Behind == 0:
		return fmt.Sprintf("ahead %d", s.Ahead)
	case s.Head != s.Wanted:
		return "differs"
	case s.Stale:
		return "unpatched"
	case s.Branch != "" && s.Repo.Branch != "" && s.Branch != s.Repo.Branch:
		return "wrong branch"
	case s.Patched > 0:
		return "patched"
	}
	return "ok"
}
