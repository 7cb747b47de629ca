package layers

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/layers/git"
	"slipway/layers/localfile"
)

// State is the state of one repository's checkout, compared with the project.
type State struct {
	Repo    Repo
	Dir     string
	Head    string // "" if there is no checkout, or no commit in it
	Wanted  string // with the patches; "" if it is not known before a checkout
	Branch  string // that HEAD is on; "" for none, as slipway leaves it
	Edited  bool
	Stopped bool // a checkout of it was killed
	Patched int  // patches that HEAD has
	Stale   bool // the project's patches are not those that were applied
	Ahead   int  // commits of HEAD that Wanted lacks
	Behind  int  // commits of Wanted that HEAD lacks
}

// Status compares the checkouts in a workspace with the project. It contacts no server.
func Status(ctx context.Context, p Project, ws Workspace) ([]State, error) {
	ws, err := ws.absolutePaths()
	if err != nil {
		return nil, err
	}
	c := &checkout{p: p, ws: ws}
	states := make([]State, len(p.Repos))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for i, r := range p.Repos {
		states[i] = State{Repo: r, Dir: p.Dir(ws, r), Wanted: r.Commit}
		if r.Local {
			group.Go(func() error { return states[i].describeLocal(ctx) })
			continue
		}
		if t := git.TreeIn(states[i].Dir, nil); t.IsCheckout() {
			group.Go(func() error { return t.ExplainDamage(c.describeTree(ctx, t, &states[i])) })
		}
	}
	return states, group.Wait()
}

// describeTree sets the fields of s from the checkout in t, and counts the commits between HEAD and
// the wanted commit. Without a url it sets only Head and Edited.
func (c *checkout) describeTree(ctx context.Context, t git.Tree, s *State) error {
	s.Head, _ = t.Resolve(ctx, "HEAD") // a repository without a commit has none
	if s.Repo.URL == "" {
		edited, err := t.EditedFiles(ctx)
		s.Edited = len(edited) > 0
		return err
	}
	modified, err := t.ModifiedFiles(ctx, s.Dir)
	if err != nil {
		return err
	}
	s.Edited = len(modified) > 0
	s.Stopped = !t.IsComplete()
	if branch, err := t.Run(ctx, "symbolic-ref", "-q", "HEAD"); err == nil {
		s.Branch = strings.TrimPrefix(branch, "refs/heads/")
	}
	if err := c.findWanted(ctx, t, s); err != nil || s.Head == "" || s.Head == s.Wanted || !git.IsCommit(s.Wanted) || !t.HasCommit(ctx, s.Wanted) {
		return err
	}
	count, err := t.Run(ctx, "rev-list", "--left-right", "--count", s.Wanted+"..."+s.Head)
	if err != nil {
		return err
	}
	_, err = fmt.Sscan(count, &s.Behind, &s.Ahead)
	return err
}

// findWanted sets s.Wanted, s.Stale and s.Patched. Wanted has the patches only if Slipway applied
// some for these settings of the repository. Patches that cannot be read set Stale.
func (c *checkout) findWanted(ctx context.Context, t git.Tree, s *State) error {
	now := t.Record()
	if now.Matches(s.Repo.Remote) {
		s.Wanted = now.Head
	} else {
		if want, err := t.LocalCommit(ctx, s.Repo.Remote); err == nil {
			s.Wanted = want
		}
		now = git.Record{}
	}
	files, err := c.patchFiles(s.Repo)
	if err != nil {
		s.Stale = true // checkout says why they cannot be read
		return ctx.Err()
	}
	s.Stale = digestOfPatches(files) != now.Patches
	if s.Head == now.Head {
		s.Patched = now.Count
	}
	return nil
}

// Word returns the state of the checkout in a word or two, such as "ok" or "edited".
func (s State) Word() string {
	switch {
	case s.Head == "" && s.Repo.URL != "" && !s.Edited:
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

// MissingLayers returns a text about each layer that its repository, if that is in place, lacks.
func (p Project) MissingLayers(ws Workspace) (all []string) {
	for _, r := range p.Repos {
		dir := p.Dir(ws, r)
		for _, layer := range r.Layers {
			if localfile.Exists(dir) && !localfile.Exists(filepath.Join(dir, layer.Name)) {
				all = append(all, fmt.Sprintf("%s: repository %s has no layer %q, at which bitbake stops: %s is missing", r.At, r.ID, layer.Name, filepath.Join(dir, layer.Name)))
			}
		}
	}
	return all
}

// Reached is the answer of a repository's server.
type Reached struct {
	Repo Repo
	Here bool // the commit is in the checkout or the mirror: a build needs no server
	Err  error
}

// Reach asks the server of each repository with a url for HEAD by git ls-remote, and sets Here by
// hasLocally. Err is the error of a server, also for a timeout or an ended ctx.
func Reach(ctx context.Context, p Project, ws Workspace, timeout time.Duration) ([]Reached, error) {
	ws, err := ws.absolutePaths()
	if err != nil {
		return nil, err
	}
	var all []Reached
	for _, r := range p.Repos {
		if r.URL != "" {
			all = append(all, Reached{Repo: r})
		}
	}
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i := range all {
		g.Go(func() error {
			r := all[i].Repo
			all[i].Here = hasLocally(ctx, p, ws, r)
			all[i].Err = r.Query(ctx, timeout)
			return nil
		})
	}
	_ = g.Wait() // one server's silence is no reason to leave the others out
	return all, nil
}

// hasLocally reports whether r pins a whole commit id that the checkout or the mirror has.
func hasLocally(ctx context.Context, p Project, ws Workspace, r Repo) bool {
	if !git.IsCommit(r.Commit) {
		return false
	}
	if t := git.TreeIn(p.Dir(ws, r), nil); t.IsCheckout() && t.HasCommit(ctx, r.Commit) {
		return true
	}
	if ws.Mirrors == "" {
		return false
	}
	m := git.MirrorFor(ws.Mirrors, r.Remote)
	return localfile.Exists(m.Dir) && m.HasCommit(ctx, r.Commit)
}
