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
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// maxParallel limits fetches, which wait for servers, and checkouts, which wait for disks. A few at
// the same time use both. More only make a server slow.
const maxParallel = 8

// Checkout checks out every repository of the project at its commit in the workspace, applies its
// patches, and writes bitbake's configuration into ws.Build. A repository at its commit stays
// untouched, and one that the user changed never moves. A branch or tag without a commit is looked
// up once; Lock moves it. It fetches no submodules, but names them. It can be killed and run again.
func Checkout(ctx context.Context, p Project, ws Workspace) error {
	c, err := newCheckout(ctx, p, ws, len(p.Repos))
	if err != nil {
		return err
	}
	defer c.lock.Close()
	err = c.checkOutAll(ctx, p.Repos)
	if err == nil {
		err = c.patchAll(ctx, p.Repos)
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

// newCheckout creates and locks ws.Dir, and starts the progress of that many repositories.
func newCheckout(ctx context.Context, p Project, ws Workspace, repos int) (*checkout, error) {
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
	step := progress.Start(ctx, "layers", int64(repos), progress.Tasks)
	return &checkout{p: p, ws: ws, lock: lock, step: step, moved: map[string]bool{}}, nil
}

// endStep ends the progress step with the number of repositories that moved, or as failed. It
// leaves the text of err to the command.
func (c *checkout) endStep(err error) {
	if err != nil {
		c.step.End("", errors.New("not all repositories are in place"))
		return
	}
	if len(c.moved) == 0 {
		c.step.Reuse(fmt.Sprintf("%d repositories are in place", len(c.p.Repos)))
		return
	}
	c.step.End(fmt.Sprintf("%d of %d repositories checked out", len(c.moved), len(c.p.Repos)), nil)
}

// checkOutAll checks out repositories in parallel at their commits, without patches.
func (c *checkout) checkOutAll(ctx context.Context, repos []Repo) error {
	for _, wave := range groupByDepth(repos) {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(maxParallel)
		for _, r := range wave {
			group.Go(func() error { return c.repoTree(r).explainDamage(c.checkOutRepo(ctx, r)) })
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

// absolutePaths returns a workspace with only Dir and Mirrors, made absolute: git runs elsewhere.
func (ws Workspace) absolutePaths() (Workspace, error) {
	dir, err := filepath.Abs(ws.Dir)
	if err != nil || ws.Mirrors == "" {
		return Workspace{Dir: dir}, err
	}
	mirrors, err := filepath.Abs(ws.Mirrors)
	return Workspace{Dir: dir, Mirrors: mirrors}, err
}

// gitExitTime is how long git may take to end after slipway was killed.
const gitExitTime = 5 * time.Second

// lockWorkspace locks the workspace, as two runs in one folder would fight over git's own locks. It
// fails after gitExitTime if another slipway holds the lock.
func lockWorkspace(ctx context.Context, dir string) (*os.File, error) {
	soon, cancel := context.WithTimeout(ctx, gitExitTime)
	defer cancel()
	f, err := localfile.Lock(soon, filepath.Join(dir, ".slipway.lock"), 0o644)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: another slipway is checking out here; wait for it", dir)
	}
	return f, err
}

func (c *checkout) repoTree(r Repo) tree { return treeIn(c.p.Dir(c.ws, r), c.lock) }

// checkOutRepo checks out one repository at its commit, without patches, and records it. It creates
// a missing checkout, and leaves one alone that is at its commit. Without a url it only checks that
// the folder exists. It refuses an unfinished merge or the like, and the folders of refuseLinks.
func (c *checkout) checkOutRepo(ctx context.Context, r Repo) error {
	defer c.step.Add(1)
	dir := c.p.Dir(c.ws, r)
	if r.URL == "" {
		return mustExist(r, dir)
	}
	if err := r.checkCommit(); err != nil {
		return err
	}
	t := treeIn(dir, c.lock)
	if err := t.checkFinished(r); err != nil {
		return err
	}
	if t.isCurrent(r) {
		return nil
	}
	if err := c.refuseLinks(r); err != nil {
		return err
	}
	if !t.isCheckout() {
		return c.createTree(ctx, r, dir)
	}
	if err := t.removeLocks(ctx); err != nil {
		return err
	}
	if err := t.useURL(ctx, r.storedURL()); err != nil {
		if _, bad := t.git(ctx, "rev-parse", "--git-dir"); bad != nil && ctx.Err() == nil {
			return t.damagedError(bad)
		}
		return err
	}
	if want, err := t.localCommit(ctx, r); err == nil && t.isComplete() && t.isAt(ctx, want) {
		if _, err := t.ensureCommit(ctx, r, c.ws); err != nil { // its tag may be new
			return err
		}
		return t.recordCommit(ctx, r, want)
	}
	c.markMoved(r)
	return t.checkOutWanted(ctx, r, c.ws)
}

// markMoved counts r as moved, and shows its name as the progress.
func (c *checkout) markMoved(r Repo) {
	c.step.Detail(r.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved[r.ID] = true
}

// mustExist returns an error if the folder of a repository without a url does not exist.
func mustExist(r Repo, dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return r.at.Errorf("repos.%s has no url, so its folder must be there, or in the folder where you are: %w", r.ID, err)
	}
	return nil
}

// refuseLinks returns an error if r's folder is in one of git's own folders, or behind a link
// inside another repository, which could lead elsewhere.
func (c *checkout) refuseLinks(r Repo) error {
	dir := c.p.Dir(c.ws, r)
	if own := gitFolderAround(dir); own != "" {
		return r.at.Errorf("repos.%s: its folder %s lies in %s, where git runs files; give it another path", r.ID, dir, own)
	}
	for _, outer := range c.p.Repos {
		top := c.p.Dir(c.ws, outer)
		below, err := filepath.Rel(top, dir)
		if err != nil || outer.URL == "" || below == "." || !filepath.IsLocal(below) {
			continue
		}
		for at := dir; at != top; at = filepath.Dir(at) {
			if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				return r.at.Errorf("repos.%s: its folder lies in that of repos.%s, where %s is a link; give it another path", r.ID, outer.ID, at)
			}
		}
	}
	return nil
}

// createTree fetches and checks out a new repository beside its folder, then renames it, so that a
// folder with the final name is always complete. It refuses to replace a file, or a folder that is
// not empty. If a damaged mirror made the checkout fail, it deletes the mirror and tries again.
func (c *checkout) createTree(ctx context.Context, r Repo, dir string) error {
	if !isFree(dir) {
		return fmt.Errorf("%s: is in the way of repository %s and is not a git checkout\nnext: mv %s %s", dir, r.ID, plaintext.Quote(dir), plaintext.Quote(dir+".old"))
	}
	c.markMoved(r)
	partial := filepath.Join(filepath.Dir(dir), ".partial-"+filepath.Base(dir))
	defer os.RemoveAll(partial)
	t := treeIn(partial, c.lock)
	want, err := t.initAndFetch(ctx, r, c.ws)
	if err != nil {
		return err
	}
	if err := t.firstCheckout(ctx, r, want); err != nil {
		if c.ws.Mirrors == "" || ctx.Err() != nil {
			return err
		}
		if dropped, bad := c.ws.mirrorFor(r).dropDamaged(ctx); !dropped || bad != nil {
			return err
		}
		if want, err = t.initAndFetch(ctx, r, c.ws); err != nil {
			return err
		}
		if err := t.firstCheckout(ctx, r, want); err != nil {
			return err
		}
	}
	// Rename of package os takes no empty folder's place.
	if err := unix.Rename(partial, dir); err != nil {
		return fmt.Errorf("%s: put repository %s there: %w", dir, r.ID, err)
	}
	return nil
}

// isFree reports whether dir does not exist or is an empty folder.
func isFree(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		return true
	}
	entries, err := os.ReadDir(dir)
	return info.IsDir() && err == nil && len(entries) == 0
}

// initAndFetch replaces the tree's folder by an empty repository, and returns r's fetched commit.
func (t tree) initAndFetch(ctx context.Context, r Repo, ws Workspace) (string, error) {
	if err := t.awaitFetch(ctx); err != nil {
		return "", err
	}
	if err := os.RemoveAll(t.dir); err != nil {
		return "", err
	}
	if err := t.initRepository(r); err != nil {
		return "", err
	}
	return t.fetchCommit(ctx, r, ws, true)
}

// firstCheckout checks the commit out into a new tree and records it. It need not look for the
// user's changes: the tree does not have its final name yet.
func (t tree) firstCheckout(ctx context.Context, r Repo, want string) error {
	if err := t.switchTo(ctx, want, false); err != nil {
		return err
	}
	if t.headCommit() != want {
		return r.otherCommitError(want)
	}
	// git update-ref writes the same, but is a program to start.
	if err := replaceFile(filepath.Join(t.gitDir, checkedOut), []byte(want+"\n")); err != nil {
		return err
	}
	return t.recordCommit(ctx, r, want)
}

// checkOutWanted fetches r's commit if it is missing, checks it out and records it.
func (t tree) checkOutWanted(ctx context.Context, r Repo, ws Workspace) error {
	want, err := t.ensureCommit(ctx, r, ws)
	if err != nil {
		return err
	}
	if err := t.moveTo(ctx, r, want); err != nil {
		return err
	}
	return t.recordCommit(ctx, r, want)
}

// recordCommit writes into the tree's record that the tree is at a commit for r, without patches,
// and which submodules and LFS files it may lack.
func (t tree) recordCommit(ctx context.Context, r Repo, commit string) (err error) {
	made := record{URL: r.storedURL(), Ref: remoteRef(r), Commit: commit, Head: commit}
	if r.Commit != commit {
		made.Pin = r.Commit
	}
	if made.Unfetched, err = t.findUnfetched(ctx); err != nil {
		return err
	}
	return t.writeRecord(made)
}

// ensureCommit returns r's commit, fetched if the tree lacks it or does not have r's tag at it.
func (t tree) ensureCommit(ctx context.Context, r Repo, ws Workspace) (string, error) {
	want, err := t.localCommit(ctx, r)
	if err == nil && t.tagMatches(ctx, r, want) {
		return want, nil
	}
	return t.fetchCommit(ctx, r, ws, t.isShallow())
}

// fetchCommit fetches r's commit through the mirror, if there is one and the tree may be shallow,
// and returns it. Commits of a user's complete clone, which must stay complete, come from the
// server. It refuses a tag that is not at its pinned commit.
func (t tree) fetchCommit(ctx context.Context, r Repo, ws Workspace, shallow bool) (string, error) {
	if ws.Mirrors != "" && shallow {
		return ws.mirrorFor(r).fetchInto(ctx, r, t)
	}
	commit, err := t.fetchFromServer(ctx, r, shallow, "")
	if err != nil || r.Tag == "" || r.Commit == "" {
		return commit, err
	}
	return commit, t.checkTag(ctx, r, shallow)
}

// tagMatches reports whether r's tag is at the commit in this tree, or r lacks a tag or a pin.
func (t tree) tagMatches(ctx context.Context, r Repo, commit string) bool {
	if r.Tag == "" || r.Commit == "" {
		return true
	}
	at, err := t.resolveCommit(ctx, localRef(r))
	return err == nil && at == commit
}
