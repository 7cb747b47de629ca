package layers

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/layers/progress"
)

// Fetches wait for servers and checkouts for disks: a few at once use both, more
// only make a server slow.
const parallel = 4

// Checkout brings every repository of the project to its commit in the workspace.
// What is there already is left alone, and a repository that was changed by hand
// is never moved. A branch or tag without a commit is looked up once and then
// kept; Lock moves it. It can be killed at any time and run again.
func Checkout(ctx context.Context, p Project, ws Workspace) error {
	ws, err := ws.absolute()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(ws.Dir, 0o755); err != nil {
		return err
	}
	unlock, err := lockFolder(ws.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	step := progress.Start(ctx, "layers", int64(len(p.Repos)), progress.Tasks)
	moved, err := checkoutAll(ctx, p, ws, step)
	if err == nil && moved == 0 {
		step.Reuse(fmt.Sprintf("%d repositories are in place", len(p.Repos)))
		return nil
	}
	step.End(fmt.Sprintf("%d of %d repositories checked out", moved, len(p.Repos)), err)
	return err
}

func checkoutAll(ctx context.Context, p Project, ws Workspace, step *progress.Step) (int64, error) {
	var moved atomic.Int64
	for _, wave := range waves(p.Repos) {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(parallel)
		for _, r := range wave {
			group.Go(func() error {
				changed, err := checkout(ctx, r, p.Dir(ws, r), step)
				if changed {
					moved.Add(1)
				}
				step.Add(1)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return moved.Load(), err
		}
	}
	return moved.Load(), nil
}

// waves are repositories that can be checked out at once: one whose folder lies
// inside another's comes after it. Nearly all projects have a single wave.
func waves(repos []Repo) [][]Repo {
	byDepth := map[int][]Repo{}
	for _, r := range repos {
		depth := strings.Count(filepath.Clean(r.folder()), "/")
		byDepth[depth] = append(byDepth[depth], r)
	}
	var all [][]Repo
	for _, depth := range slices.Sorted(maps.Keys(byDepth)) {
		all = append(all, byDepth[depth])
	}
	return all
}

// absolute is the workspace for git, which runs in the checkouts.
func (ws Workspace) absolute() (Workspace, error) {
	dir, err := filepath.Abs(ws.Dir)
	if err != nil || ws.Mirrors == "" {
		return Workspace{Dir: dir}, err
	}
	mirrors, err := filepath.Abs(ws.Mirrors)
	return Workspace{Dir: dir, Mirrors: mirrors}, err
}

// Two runs at once in one folder would fight over git's own locks.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".slipway.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: another slipway is checking out here; wait for it", dir)
	}
	return func() { f.Close() }, nil
}

// checkout brings one repository to its commit and says whether it had to.
func checkout(ctx context.Context, r Repo, dir string, step *progress.Step) (bool, error) {
	if r.URL == "" {
		return false, mustExist(r, dir)
	}
	t := tree{dir: dir}
	if !t.there() {
		step.Detail(r.ID)
		return true, create(ctx, r, dir)
	}
	if err := t.useURL(ctx, r.URL); err != nil {
		return false, err
	}
	if want, err := t.wanted(ctx, r); err == nil && t.settled() && t.isAt(ctx, want) {
		return false, nil
	}
	step.Detail(r.ID)
	return true, t.bringTo(ctx, r, t.shallow())
}

func mustExist(r Repo, dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return r.at.errorf("repos.%s has no url, so its folder must be there: %w", r.ID, err)
	}
	return nil
}

// create checks out into a folder beside the final one, so that a folder with
// the final name is always whole.
func create(ctx context.Context, r Repo, dir string) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s: is in the way of repository %s and is not a git checkout; move it away", dir, r.ID)
	}
	partial := filepath.Join(filepath.Dir(dir), ".partial-"+filepath.Base(dir))
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	defer os.RemoveAll(partial)
	t := tree{dir: partial}
	if err := t.begin(ctx, r); err != nil {
		return err
	}
	if err := t.bringTo(ctx, r, true); err != nil {
		return err
	}
	return os.Rename(partial, dir)
}
