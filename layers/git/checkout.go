package git

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// CheckOut checks out r's commit in the tree, without patches, and records it. It creates a missing
// checkout. It fetches through a mirror in the folder mirrors, or from the server if that is "". It
// calls moving before it changes the tree.
func (t Tree) CheckOut(ctx context.Context, r Remote, mirrors string, moving func()) error {
	if !t.IsCheckout() {
		return t.createTree(ctx, r, mirrors, moving)
	}
	if err := t.removeLocks(ctx); err != nil {
		return err
	}
	if err := t.useURL(ctx, r.storedURL()); err != nil {
		if _, bad := t.Run(ctx, "rev-parse", "--git-dir"); bad != nil && ctx.Err() == nil {
			return t.damagedError(bad)
		}
		return err
	}
	if want, err := t.LocalCommit(ctx, r); err == nil && t.IsComplete() && t.isAt(ctx, want) {
		if _, err := t.ensureCommit(ctx, r, mirrors); err != nil { // its tag may be new
			return err
		}
		return t.recordCommit(ctx, r, want)
	}
	moving()
	return t.checkOutWanted(ctx, r, mirrors)
}

// ExitTime is how long git may take to end after slipway was killed.
const ExitTime = 5 * time.Second

// createTree fetches and checks out a new repository beside its folder, then renames it, so that a
// folder with the final name is always complete. It refuses to replace a file, or a folder that is
// not empty. If a damaged mirror made the checkout fail, it deletes the mirror and tries again.
func (t Tree) createTree(ctx context.Context, r Remote, mirrors string, moving func()) error {
	dir := t.Dir
	if !isFree(dir) {
		return fmt.Errorf("%s: is in the way of repository %s and is not a git checkout\nnext: mv %s %s", dir, r.ID, plaintext.Quote(dir), plaintext.Quote(dir+".old"))
	}
	moving()
	partial := filepath.Join(filepath.Dir(dir), ".partial-"+filepath.Base(dir))
	defer os.RemoveAll(partial)
	t = TreeIn(partial, t.hold)
	want, err := t.initAndFetch(ctx, r, mirrors)
	if err != nil {
		return err
	}
	if err := t.firstCheckout(ctx, r, want); err != nil {
		if mirrors == "" || ctx.Err() != nil {
			return err
		}
		if dropped, bad := MirrorFor(mirrors, r).dropDamaged(ctx); !dropped || bad != nil {
			return err
		}
		if want, err = t.initAndFetch(ctx, r, mirrors); err != nil {
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
func (t Tree) initAndFetch(ctx context.Context, r Remote, mirrors string) (string, error) {
	if err := t.awaitFetch(ctx); err != nil {
		return "", err
	}
	if err := os.RemoveAll(t.Dir); err != nil {
		return "", err
	}
	if err := t.initRepository(r); err != nil {
		return "", err
	}
	return t.fetchCommit(ctx, r, mirrors, true)
}

// firstCheckout checks the commit out into a new tree and records it. It need not look for the
// user's changes: the tree does not have its final name yet.
func (t Tree) firstCheckout(ctx context.Context, r Remote, want string) error {
	if err := t.switchTo(ctx, want, false); err != nil {
		return err
	}
	if t.headCommit() != want {
		return r.otherCommitError(want)
	}
	// git update-ref writes the same, but is a program to start.
	if err := localfile.Replace(filepath.Join(t.gitDir, checkedOut), []byte(want+"\n")); err != nil {
		return err
	}
	return t.recordCommit(ctx, r, want)
}

// checkOutWanted fetches r's commit if it is missing, checks it out and records it.
func (t Tree) checkOutWanted(ctx context.Context, r Remote, mirrors string) error {
	want, err := t.ensureCommit(ctx, r, mirrors)
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
func (t Tree) recordCommit(ctx context.Context, r Remote, commit string) (err error) {
	made := Record{URL: r.storedURL(), Ref: r.ref(), Commit: commit, Head: commit}
	if r.Commit != commit {
		made.Pin = r.Commit
	}
	if made.Unfetched, err = t.findUnfetched(ctx); err != nil {
		return err
	}
	return t.writeRecord(made)
}

// ensureCommit returns r's commit, fetched if the tree lacks it or does not have r's tag at it.
func (t Tree) ensureCommit(ctx context.Context, r Remote, mirrors string) (string, error) {
	want, err := t.LocalCommit(ctx, r)
	if err == nil && t.tagMatches(ctx, r, want) {
		return want, nil
	}
	return t.fetchCommit(ctx, r, mirrors, t.isShallow())
}

// fetchCommit fetches r's commit through the mirror, if there is one and the tree may be shallow,
// and returns it. Commits of a user's complete clone, which must stay complete, come from the
// server. It refuses a tag that is not at its pinned commit.
func (t Tree) fetchCommit(ctx context.Context, r Remote, mirrors string, shallow bool) (string, error) {
	if mirrors != "" && shallow {
		return MirrorFor(mirrors, r).fetchInto(ctx, r, t)
	}
	commit, err := t.fetchFromServer(ctx, r, shallow, "")
	if err != nil || r.Tag == "" || r.Commit == "" {
		return commit, err
	}
	return commit, t.checkTag(ctx, r, shallow)
}

// tagMatches reports whether r's tag is at the commit in this tree, or r lacks a tag or a pin.
func (t Tree) tagMatches(ctx context.Context, r Remote, commit string) bool {
	if r.Tag == "" || r.Commit == "" {
		return true
	}
	at, err := t.Resolve(ctx, r.localRef())
	return err == nil && at == commit
}
