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
	"slipway/layers/progress"
)

// Fetches wait for servers and checkouts for disks: a few at once use both, more
// only make a server slow.
const parallel = 8

// Checkout brings every repository of the project to its commit in the workspace,
// and then its patches into it. What is there already is left alone, and a
// repository that was changed by hand is never moved. A branch or tag without a
// commit is looked up once and then kept; Lock moves it. Submodules are not
// fetched, as kas does not, and named. It can be killed at any time and run again.
func Checkout(ctx context.Context, p Project, ws Workspace) error {
	c, err := begin(ctx, p, ws, len(p.Repos))
	if err != nil {
		return err
	}
	defer c.lock.Close()
	err = c.bringAll(ctx, p.Repos)
	if err == nil {
		err = c.patchAll(ctx, p.Repos)
	}
	if err == nil {
		err = c.warnOfOwn(ctx)
	}
	err = c.explained(ctx, err)
	c.end(err)
	return err
}

// checkout is one run of Checkout.
type checkout struct {
	p     Project
	ws    Workspace
	lock  *os.File
	step  *progress.Step
	mu    sync.Mutex
	moved map[string]bool // repositories, by id
}

func begin(ctx context.Context, p Project, ws Workspace, repos int) (*checkout, error) {
	ws, err := ws.absolute()
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

// end leaves the error to the command, which ends with it: a step that says it too has it
// on the screen twice.
func (c *checkout) end(err error) {
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

// bringAll brings repositories to the commits that their servers have.
func (c *checkout) bringAll(ctx context.Context, repos []Repo) error {
	for _, wave := range waves(repos) {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(parallel)
		for _, r := range wave {
			group.Go(func() error { return c.tree(r).damaged(c.bring(ctx, r)) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
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

// lingering is how long git may take to end after slipway was killed.
const lingering = 5 * time.Second

// Two runs at once in one folder would fight over git's own locks.
func lockWorkspace(ctx context.Context, dir string) (*os.File, error) {
	soon, cancel := context.WithTimeout(ctx, lingering)
	defer cancel()
	f, err := waitLock(soon, filepath.Join(dir, ".slipway.lock"))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: another slipway is checking out here; wait for it", dir)
	}
	return f, err
}

func (c *checkout) tree(r Repo) tree { return treeIn(c.p.Dir(c.ws, r), c.lock) }

// bring brings one repository to its commit.
func (c *checkout) bring(ctx context.Context, r Repo) error {
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
	if t.stands(r) {
		return nil
	}
	if err := c.checkWay(r); err != nil {
		return err
	}
	if !t.there() {
		return c.create(ctx, r, dir)
	}
	if err := t.removeLocks(ctx); err != nil {
		return err
	}
	if err := t.useURL(ctx, r.URL); err != nil {
		if _, bad := t.git(ctx, "rev-parse", "--git-dir"); bad != nil && ctx.Err() == nil {
			return t.isDamaged(bad)
		}
		return err
	}
	if want, err := t.wanted(ctx, r); err == nil && t.settled() && t.isAt(ctx, want) {
		if _, err := t.obtain(ctx, r, c.ws); err != nil { // its tag may be new
			return err
		}
		return t.noteFor(ctx, r, want)
	}
	c.moves(r)
	return t.bringTo(ctx, r, c.ws)
}

func (c *checkout) moves(r Repo) {
	c.step.Detail(r.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved[r.ID] = true
}

func mustExist(r Repo, dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return r.at.errorf("repos.%s has no url, so its folder must be there: %w", r.ID, err)
	}
	return nil
}

// checkWay refuses a folder inside another repository's where a link of that one
// would lead out of it.
func (c *checkout) checkWay(r Repo) error {
	dir := c.p.Dir(c.ws, r)
	for _, outer := range c.p.Repos {
		top := c.p.Dir(c.ws, outer)
		below, err := filepath.Rel(top, dir)
		if err != nil || outer.URL == "" || below == "." || !filepath.IsLocal(below) {
			continue
		}
		for at := dir; at != top; at = filepath.Dir(at) {
			if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				return r.at.errorf("repos.%s: its folder lies in that of repos.%s, where %s is a link; give it another path", r.ID, outer.ID, at)
			}
		}
	}
	return nil
}

// create checks out into a folder beside the final one, so that a folder with
// the final name is always whole.
func (c *checkout) create(ctx context.Context, r Repo, dir string) error {
	if !free(dir) {
		return fmt.Errorf("%s: is in the way of repository %s and is not a git checkout; move it away", dir, r.ID)
	}
	c.moves(r)
	partial := filepath.Join(filepath.Dir(dir), ".partial-"+filepath.Base(dir))
	defer os.RemoveAll(partial)
	t := treeIn(partial, c.lock)
	want, err := t.first(ctx, r, c.ws)
	if err != nil {
		return err
	}
	if err := t.fill(ctx, r, want); err != nil {
		if c.ws.Mirrors == "" || ctx.Err() != nil {
			return err
		}
		if dropped, bad := c.ws.mirror(r).dropDamaged(ctx); !dropped || bad != nil {
			return err
		}
		if want, err = t.first(ctx, r, c.ws); err != nil {
			return err
		}
		if err := t.fill(ctx, r, want); err != nil {
			return err
		}
	}
	// Rename of package os takes no empty folder's place.
	if err := unix.Rename(partial, dir); err != nil {
		return fmt.Errorf("%s: put repository %s there: %w", dir, r.ID, err)
	}
	return nil
}

// free says that nothing is at dir, or an empty folder.
func free(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		return true
	}
	entries, err := os.ReadDir(dir)
	return info.IsDir() && err == nil && len(entries) == 0
}

// first makes a new tree, without files yet, and returns the commit for it.
func (t tree) first(ctx context.Context, r Repo, ws Workspace) (string, error) {
	if err := t.awaitFetch(ctx); err != nil {
		return "", err
	}
	if err := os.RemoveAll(t.dir); err != nil {
		return "", err
	}
	if err := t.begin(ctx, r); err != nil {
		return "", err
	}
	return t.get(ctx, r, ws, true)
}

// fill makes a new tree's first checkout. Nothing can be lost in it, and nobody
// sees it before it is whole.
func (t tree) fill(ctx context.Context, r Repo, want string) error {
	if err := t.switchTo(ctx, want, false); err != nil {
		return err
	}
	if t.headHere() != want {
		return r.isElsewhere(want)
	}
	// git update-ref writes the same, but is a program to start.
	if err := replaceFile(filepath.Join(t.gitDir, checkedOut), []byte(want+"\n")); err != nil {
		return err
	}
	return t.noteFor(ctx, r, want)
}

// bringTo fetches what r asks for, where it is not here, and checks it out.
func (t tree) bringTo(ctx context.Context, r Repo, ws Workspace) error {
	want, err := t.obtain(ctx, r, ws)
	if err != nil {
		return err
	}
	if err := t.moveTo(ctx, r, want); err != nil {
		return err
	}
	return t.noteFor(ctx, r, want)
}

// noteFor notes that the tree is at a commit for r.
func (t tree) noteFor(ctx context.Context, r Repo, commit string) (err error) {
	made := record{URL: r.URL, Ref: remoteRef(r), Commit: commit, Head: commit}
	if r.Commit != commit {
		made.Pin = r.Commit
	}
	if made.Unfetched, err = t.stored(ctx); err != nil {
		return err
	}
	return t.note(made)
}

// obtain returns the commit that r asks for, which is here then. A tag beside a
// commit has to be seen at it once.
func (t tree) obtain(ctx context.Context, r Repo, ws Workspace) (string, error) {
	want, err := t.wanted(ctx, r)
	if err == nil && t.tagSeen(ctx, r, want) {
		return want, nil
	}
	return t.get(ctx, r, ws, t.shallow())
}

// get gets r's commit, from the mirror if that may be shallow; what a mirror that cannot
// be written lacks comes from the server. A clone that a user made whole asks the server
// itself, so that it stays whole.
func (t tree) get(ctx context.Context, r Repo, ws Workspace, shallow bool) (string, error) {
	if ws.Mirrors != "" && shallow {
		m := ws.mirror(r)
		if m.writable() {
			return m.fetchInto(ctx, r, t)
		}
		if commit, err := m.lend(ctx, r, t); commit != "" || err != nil {
			return commit, err
		}
	}
	commit, err := t.fetch(ctx, r, shallow, "")
	if err != nil || r.Tag == "" || r.Commit == "" {
		return commit, err
	}
	return commit, t.checkTag(ctx, r, shallow)
}

func (t tree) tagSeen(ctx context.Context, r Repo, commit string) bool {
	if r.Tag == "" || r.Commit == "" {
		return true
	}
	at, err := t.commitOf(ctx, hereRef(r))
	return err == nil && at == commit
}
