package layers

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/layers/run"
)

// Reached is how a repository's server answered.
type Reached struct {
	Repo Repo
	Here bool // the commit is in the checkout or the mirror: a build needs no server
	Err  error
}

const asked = 8 // servers at a time

// Reach asks the servers of a project's repositories for an answer, through the user's
// own insteadOf and proxies, and gives each so long. It changes nothing.
func Reach(ctx context.Context, p Project, ws Workspace, each time.Duration) ([]Reached, error) {
	ws, err := ws.absolute()
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
	g.SetLimit(asked)
	for i := range all {
		g.Go(func() error {
			r := all[i].Repo
			all[i].Here = heldHere(ctx, p, ws, r)
			all[i].Err = answers(ctx, r, each)
			return nil
		})
	}
	_ = g.Wait() // one server's silence is no reason to leave the others out
	return all, nil
}

func answers(ctx context.Context, r Repo, each time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, each, fmt.Errorf("no answer within %v", each))
	defer cancel()
	_, err := run.Output(ctx, gitCommand(".", []string{"git", "-c", "protocol.ext.allow=never", "ls-remote", "-q", "--", r.URL, "HEAD"}))
	return err
}

func heldHere(ctx context.Context, p Project, ws Workspace, r Repo) bool {
	if !wholeCommit().MatchString(r.Commit) {
		return false
	}
	if t := treeIn(p.Dir(ws, r), nil); t.there() && t.has(ctx, r.Commit) {
		return true
	}
	if ws.Mirrors == "" {
		return false
	}
	m := ws.mirror(r)
	return exists(m.dir) && m.has(ctx, r.Commit)
}
