package layers

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/layers/run"
)

// Reached is the answer of a repository's server.
type Reached struct {
	Repo Repo
	Here bool // the commit is in the checkout or the mirror: a build needs no server
	Err  error
}

const maxServers = 8 // servers at a time

// Reach asks the servers of a project's repositories for an answer, with the user's own
// insteadOf and proxies. Each server has that much time. It changes nothing.
func Reach(ctx context.Context, p Project, ws Workspace, each time.Duration) ([]Reached, error) {
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
	g.SetLimit(maxServers)
	for i := range all {
		g.Go(func() error {
			r := all[i].Repo
			all[i].Here = hasLocally(ctx, p, ws, r)
			all[i].Err = askServer(ctx, r, each)
			return nil
		})
	}
	_ = g.Wait() // one server's silence is no reason to leave the others out
	return all, nil
}

func askServer(ctx context.Context, r Repo, each time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, each, fmt.Errorf("no answer within %v", each))
	defer cancel()
	_, err := run.Output(ctx, gitCommand(".", []string{"git", "-c", "protocol.ext.allow=never", "ls-remote", "-q", "--", r.URL, "HEAD"}))
	return err
}

func hasLocally(ctx context.Context, p Project, ws Workspace, r Repo) bool {
	if !wholeCommit().MatchString(r.Commit) {
		return false
	}
	if t := treeIn(p.Dir(ws, r), nil); t.isCheckout() && t.hasCommit(ctx, r.Commit) {
		return true
	}
	if ws.Mirrors == "" {
		return false
	}
	m := ws.mirrorFor(r)
	return exists(m.dir) && m.hasCommit(ctx, r.Commit)
}
