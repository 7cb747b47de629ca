package layers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// maxParallel limits fetches, which wait for servers, and checkouts, which wait for disks. A few at
// the same time use both. More only make a server slow.
const maxParallel = 8

// Checkout checks out every repository of the project at its commit in the workspace, applies its
// patches, and writes bitbake's configuration into ws.Build, if set. A repository at its commit
// stays untouched. To move one that the user changed is an error. A branch or tag without a commit
// is looked up once; Lock moves it. It only warns of submodules. A killed run can be repeated.
func Checkout(ctx context.Context, p Project, ws Workspace) error {
	c, err := newCheckout(ctx, p, ws)
	if err != nil {
		return err
	}
	defer c.lock.Close()
	err = c.checkOutAll(ctx)
	if err == nil {
		err = c.patchAll(ctx)
	}
	if err == nil {
		err = p.checkLayers(c.ws, true)
	}
	if err == nil {
		err = c.warnOfOwn(ctx)
	}
	err = c.explainError(ctx, err)
	c.endStep(err)
	if err != nil || ws.Build == "" {
		return err
	}
	for _, missing := range p.MissingLayers(c.ws) {
		progress.Warn(ctx, missing)
	}
	return Configure(p, c.ws, ws.Build)
}

// checkout is the state of one run of Checkout.
type checkout struct {
	p     Project
	ws    Workspace
	lock  *os.File
	step  *progress.Step
	mu    sync.Mutex
	moved map[string]bool // repositories, by id
}

// newCheckout creates ws.Dir, locks it until the checkout's lock is closed, and starts a progress
// step. It shows no progress if ws.Build is "", as Load sets it, and no repository isBehind.
func newCheckout(ctx context.Context, p Project, ws Workspace) (*checkout, error) {
	shown, onlyLoads := ctx, ws.Build == ""
	ws, err := ws.absolutePaths()
	if err != nil {
		return nil, err
	}
	if err := localfile.MkdirAll(ws.Dir); err != nil {
		return nil, err
	}
	lock, err := lockWorkspace(ctx, ws.Dir)
	if err != nil {
		return nil, err
	}
	c := &checkout{p: p, ws: ws, lock: lock, moved: map[string]bool{}}
	if onlyLoads && !slices.ContainsFunc(p.Repos, c.isBehind) {
		shown = context.Background()
	}
	c.step = progress.Start(shown, "layers", int64(len(p.Repos)), progress.Tasks)
	return c, nil
}

// isBehind reports whether r has a url, and is not known to be at its commit with its patches.
func (c *checkout) isBehind(r Repo) bool {
	if r.URL == "" || !c.repoTree(r).IsCurrent(r.Remote) {
		return r.URL != ""
	}
	files, err := c.patchFiles(r)
	return err != nil || c.repoTree(r).Record().Patches != digestOfPatches(files)
}

// endStep ends the progress step: with the number that moved, as reused if that is 0, or as failed.
func (c *checkout) endStep(err error) {
	if err == nil && len(c.moved) == 0 {
		c.step.Reuse(plaintext.Either(len(c.p.Repos) == 0, "the project file names no repositories", fmt.Sprintf("all in place: %d", len(c.p.Repos))))
		return
	}
	c.step.End(fmt.Sprintf("%d of %d checked out", len(c.moved), len(c.p.Repos)), err)
}

// checkOutAll checks out all repositories in parallel at their commits, without patches.
func (c *checkout) checkOutAll(ctx context.Context) error {
	for _, wave := range groupByDepth(c.p.Repos) {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(maxParallel)
		for _, r := range wave {
			group.Go(func() error { return c.repoTree(r).ExplainDamage(c.checkOutRepo(ctx, r)) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// groupByDepth returns groups of repositories that can be checked out in parallel. A folder inside
// another repository's is in a later group. Nearly all projects have one group.
func groupByDepth(repos []Repo) [][]Repo {
	byDepth := map[int][]Repo{}
	for _, r := range repos {
		depth := strings.Count(filepath.Clean(r.checkoutFolder()), "/")
		byDepth[depth] = append(byDepth[depth], r)
	}
	var all [][]Repo
	for _, depth := range slices.Sorted(maps.Keys(byDepth)) {
		all = append(all, byDepth[depth])
	}
	return all
}

// absolutePaths returns ws's Dir and, unless empty, Mirrors as absolute paths. It drops the rest.
func (ws Workspace) absolutePaths() (Workspace, error) {
	dir, err := filepath.Abs(ws.Dir)
	if err != nil || ws.Mirrors == "" {
		return Workspace{Dir: dir}, err
	}
	mirrors, err := filepath.Abs(ws.Mirrors)
	return Workspace{Dir: dir, Mirrors: mirrors}, err
}

// lockWorkspace locks the workspace until the returned file is closed: two runs in one folder would
// fight over git's own locks. It fails after git.ExitTime if another slipway holds the lock.
func lockWorkspace(ctx context.Context, dir string) (*os.File, error) {
	soon, cancel := context.WithTimeout(ctx, git.ExitTime)
	defer cancel()
	f, err := localfile.Lock(soon, filepath.Join(dir, ".slipway.lock"), 0o644)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: another slipway is checking out here\nnext: repeat the line  # when the other one has ended", dir)
	}
	return f, err
}

func (c *checkout) repoTree(r Repo) git.Tree { return git.TreeIn(c.p.Dir(c.ws, r), c.lock) }

// checkOutRepo checks out one repository at its commit, without patches, and records it. It creates
// a missing checkout, and does nothing to one at its commit. Without a url it only checks that the
// folder exists. It refuses abbreviated commits, unfinished merges, and what checkFolder refuses.
func (c *checkout) checkOutRepo(ctx context.Context, r Repo) error {
	defer c.step.Add(1)
	dir := c.p.Dir(c.ws, r)
	if r.URL == "" {
		if _, err := os.Stat(dir); err != nil {
			return r.At.Errorf("repos.%s has no url, so its folder must be there, or in the folder where you are: %w", r.ID, err)
		}
		return nil
	}
	if err := r.CheckCommit(); err != nil {
		return err
	}
	t := git.TreeIn(dir, c.lock)
	if err := t.CheckFinished(r.Remote); err != nil {
		return err
	}
	if t.IsCurrent(r.Remote) {
		return nil
	}
	if err := c.checkFolder(r); err != nil {
		return err
	}
	return t.CheckOut(ctx, r.Remote, c.ws.Mirrors, func() { c.markMoved(r) })
}

// markMoved counts r as moved, and shows its name as the progress.
func (c *checkout) markMoved(r Repo) {
	c.step.Detail(r.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved[r.ID] = true
}

// checkFolder returns an error if r's folder is in one of git's own folders, or behind a link
// inside another checkout, which could lead elsewhere.
func (c *checkout) checkFolder(r Repo) error {
	dir := c.p.Dir(c.ws, r)
	if own := git.FolderAround(dir); own != "" {
		return r.At.Errorf("repos.%s: its folder %s lies in %s, where git runs files; give it another path", r.ID, dir, own)
	}
	for _, outer := range c.p.Repos {
		top := c.p.Dir(c.ws, outer)
		below, err := filepath.Rel(top, dir)
		if err != nil || outer.URL == "" || below == "." || !filepath.IsLocal(below) {
			continue
		}
		for at := dir; at != top; at = filepath.Dir(at) {
			if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				return r.At.Errorf("repos.%s: its folder lies in that of repos.%s, where %s is a link; give it another path", r.ID, outer.ID, at)
			}
		}
	}
	return nil
}

// warnOfOwn warns about folders of Workspace.Local and edits, which a build uses, and about commits
// of the user, which it leaves out. It runs git in each tree: an edit changes none of git's files.
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
			warnings[i], err = t.Warnings(at, r.Remote, c.moved[r.ID])
			return t.ExplainDamage(err)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, said := range slices.Concat(warnings...) {
		if said != "" {
			progress.Warn(ctx, said)
		}
	}
	return nil
}

// explainError adds a next step to a checkout's error if the disk is full. If ctx has ended, it
// returns the cause of that with a next step. Other errors stay as they are.
func (c *checkout) explainError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: the checkout was stopped: %w\nnext: repeat the line  # it continues", c.ws.Dir, context.Cause(ctx))
	case git.DiskFull(err) && !strings.Contains(err.Error(), "\nnext: "):
		return fmt.Errorf("%s: the disk is full: %w\nnext: df -h %s  # make room there, then repeat the line: it continues", c.failedFolder(err), err, plaintext.Quote(c.failedFolder(err)))
	}
	return err
}

// failedFolder returns the folder in which a failed git wrote: the mirrors, or else the checkouts.
func (c *checkout) failedFolder(err error) string {
	var failure *run.Failure
	inMirrors := func(arg string) bool { return strings.HasPrefix(arg, "--git-dir="+c.ws.Mirrors+"/") }
	if c.ws.Mirrors != "" && errors.As(err, &failure) && slices.ContainsFunc(failure.Argv, inMirrors) {
		return c.ws.Mirrors
	}
	return c.ws.Dir
}
