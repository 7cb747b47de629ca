package layers

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/renameio/v2"
	"go.yaml.in/yaml/v4"
	"golang.org/x/sync/errgroup"

	"slipway/layers/engine"
)

// A lock file has the oldest version of kas's format that knows locks.
const lockVersion = 14

// Lock asks the servers where the project's branches and tags stand and pins
// them in its lock file, which kas reads too. Commits that the project file
// itself pins stay its own.
func Lock(ctx context.Context, p Project, ws Workspace) error {
	commits := make([]string, len(p.Repos))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, r := range p.Repos {
		if r.URL == "" || (r.Commit != "" && !r.Locked) || (r.Branch == "" && r.Tag == "") {
			continue
		}
		group.Go(func() (err error) {
			commits[i], err = tip(ctx, r)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	content, err := lockContent(p, commits)
	if err != nil {
		return err
	}
	return renameio.WriteFile(LockFile(p.File), content, 0o644)
}

// tip is the commit of r's branch or tag at its server.
func tip(ctx context.Context, r Repo) (string, error) {
	ref := remoteRef(r)
	out, err := engine.Output(ctx, gitCommand("", []string{"git", "-c", "protocol.ext.allow=never", "ls-remote", "--", r.URL, ref, ref + "^{}"}))
	if err != nil {
		return "", err
	}
	commit := ""
	for line := range strings.Lines(string(out)) { // a signed tag has a second line, for the commit that it holds
		if sha, name, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok && strings.TrimSuffix(name, "^{}") == ref {
			commit = sha
		}
	}
	if !wholeCommit.MatchString(commit) {
		return "", r.at.errorf("repos.%s: %s has no %s", r.ID, r.URL, ref)
	}
	return commit, nil
}

func lockContent(p Project, commits []string) ([]byte, error) {
	type pin struct {
		Commit string `yaml:"commit"`
	}
	pins := map[string]pin{}
	for i, r := range p.Repos {
		if commits[i] != "" {
			pins[r.ID] = pin{commits[i]}
		}
	}
	if len(pins) == 0 {
		return nil, fmt.Errorf("%s: every repository is pinned already; there is nothing to lock", p.File)
	}
	if p.setup != nil {
		return p.setupLockContent(commits)
	}
	return yaml.Dump(map[string]any{
		"header":    map[string]int{"version": lockVersion},
		"overrides": map[string]any{"repos": pins},
	})
}
