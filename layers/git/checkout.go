package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// CheckOut checks out r's commit in the tree, without patches, and records it. It creates a missing
// checkout, and refuses to lose the user's work. It sets origin's URL to r's. It fetches through
// a mirror in the folder mirrors, or from the server if that is "". Before it changes the tree's
// files, so not for a tree that is at the commit already, it calls moving.
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

// createTree calls moving, fetches and checks out a new repository beside its folder, then renames
// it, so that a folder with the final name is always complete. It refuses to replace a file, or a
// folder that is not empty. If the mirror is damaged, it deletes the mirror and tries again.
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

// ensureCommit returns r's commit, fetched if the tree lacks it or does not have r's tag at it. It
// does not fetch a branch or tag again that it fetched before.
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

// A checkout loses no work of the user, even if it is killed and run again. Slipway writes a marker
// before git begins, in a tree without edits, without the user's commits at HEAD, and with no file
// in the commit's way. If a later run finds a marker, the files beside it are half-written by git,
// or newer files of the user. Slipway puts them aside before git writes over them.

// moveTo checks out a commit and records it in a ref. It refuses that if the user's edits, commits
// or files would be lost. In a tree with the marker of a killed checkout, it first puts files
// aside. The marker stays if git fails in the middle.
func (t Tree) moveTo(ctx context.Context, r Remote, commit string) error {
	repeat := !t.IsComplete()
	ready := t.refuseLoss
	if repeat {
		ready = t.prepareRepeat
	}
	if err := ready(ctx, r, commit); err != nil {
		return err
	}
	before, _ := t.Resolve(ctx, "HEAD") // none in a new tree
	if err := renameio.WriteFile(t.markerPath(), []byte(commit), 0o644); err != nil {
		return err
	}
	if err := t.switchTo(ctx, commit, repeat); err != nil {
		if t.isUntouched(ctx, before, commit) {
			return errors.Join(err, os.Remove(t.markerPath()))
		}
		return err
	}
	if err := t.confirmCheckout(ctx, r, commit); err != nil {
		return err
	}
	return os.Remove(t.markerPath())
}

// confirmCheckout checks that HEAD is at the commit, and records the commit in a ref.
func (t Tree) confirmCheckout(ctx context.Context, r Remote, commit string) error {
	if t.headCommit() != commit && !t.isAt(ctx, commit) {
		return r.otherCommitError(commit)
	}
	_, err := t.Run(ctx, "update-ref", checkedOut, commit)
	return err
}

func (r Remote) otherCommitError(commit string) error {
	return r.At.Errorf("repos.%s: git checked out another commit than %s", r.ID, commit)
}

func (t Tree) isAt(ctx context.Context, commit string) bool {
	head, err := t.Resolve(ctx, "HEAD")
	return err == nil && head == commit
}

// markerPath returns the path of the file that has the commit while a checkout is in progress.
func (t Tree) markerPath() string { return filepath.Join(t.gitDir, "slipway-moving") }

// IsComplete reports whether the last checkout in this tree was not killed.
func (t Tree) IsComplete() bool { return !localfile.Exists(t.markerPath()) }

// switchTo runs git checkout with a detached HEAD. force overwrites changed files. switchTo also
// fails if git prints errors: git exits with status 0 when it cannot write a file.
func (t Tree) switchTo(ctx context.Context, commit string, force bool) error {
	c := t.command("checkout", "-q", "--detach", "--no-recurse-submodules", "--no-overwrite-ignore")
	if force {
		c.Argv = append(c.Argv, "--force")
	}
	c.Argv = append(c.Argv, commit)
	var failed []string
	c.Line = func(line string) {
		if strings.HasPrefix(line, "error: ") {
			failed = append(failed, line)
		}
	}
	if err := run.Run(ctx, c); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s: git could not write all files:\n%s", t.Dir, firstLines(failed, 5))
	}
	return nil
}

// isUntouched reports whether HEAD is still at before, with no file edited or in the commit's way.
func (t Tree) isUntouched(ctx context.Context, before, commit string) bool {
	if head, _ := t.Resolve(ctx, "HEAD"); head != before {
		return false
	}
	edited, err := t.EditedFiles(ctx)
	if err != nil || len(edited) > 0 {
		return false
	}
	files, err := t.overwrittenFiles(ctx, commit)
	return err == nil && len(files) == 0
}

const shownFiles = 5

// refuseLoss returns an error if a checkout of commit would lose commits, edits or files of a user.
func (t Tree) refuseLoss(ctx context.Context, r Remote, commit string) error {
	if err := t.refuseLeavingCommits(ctx, r, commit, ""); err != nil {
		return err
	}
	edited, err := t.EditedFiles(ctx)
	if err != nil {
		return err
	}
	if len(edited) > 0 {
		return fmt.Errorf("%s: has local changes, which stay as they are:\n%s\n%s\nnext: git -C %s stash && repeat the line  # to build without them; git stash pop brings them back", t.Dir, firstLines(edited, shownFiles), t.localStep(r), plaintext.Quote(t.Dir))
	}
	files, err := t.overwrittenFiles(ctx, commit)
	if err != nil {
		return err
	}
	if len(files) > 0 {
		names, paths := make([]string, len(files)), ""
		for i, b := range files {
			names[i] = plaintext.ShortLine(b.path)
			if i < shownFiles && !plaintext.HasControls(b.path) {
				paths += " " + plaintext.Quote(b.path)
			}
		}
		if paths == "" { // without paths git would stash everything
			return fmt.Errorf("%s: files that git does not know would be overwritten:\n%s\nnext: git -C %s status --short --ignored  # move these files away", t.Dir, firstLines(names, shownFiles), plaintext.Quote(t.Dir))
		}
		return fmt.Errorf("%s: files that git does not know would be overwritten:\n%s\nnext: git -C %s --literal-pathspecs stash push --all --%s && repeat the line  # they stay in git stash; git -C %[3]s show 'stash@{0}^3:PATH' prints one", t.Dir, firstLines(names, shownFiles), plaintext.Quote(t.Dir), paths)
	}
	return nil
}

// EditedFiles returns lines of git status: tracked files, no submodules, that differ from HEAD.
func (t Tree) EditedFiles(ctx context.Context) ([]string, error) {
	out, err := run.Output(ctx, t.command("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"))
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), err
}

// prepareRepeat prepares the tree to repeat a checkout that was killed. It refuses to leave commits
// of the user. It removes git's locks, then does and prints what saveEdits and moveUntracked do.
func (t Tree) prepareRepeat(ctx context.Context, r Remote, commit string) error {
	marker, err := os.ReadFile(t.markerPath())
	if err != nil {
		return err
	}
	killed := string(marker)
	if err := t.refuseLeavingCommits(ctx, r, commit, killed); err != nil {
		return err
	}
	if err := localfile.Remove(filepath.Join(t.gitDir, "index.lock"), filepath.Join(t.gitDir, "HEAD.lock")); err != nil {
		return err
	}
	var kept []string
	if kept, err = t.saveEdits(ctx); err != nil {
		return err
	}
	files, err := t.moveUntracked(ctx, killed, commit)
	if err != nil {
		return err
	}
	if kept = append(kept, files...); len(kept) > 0 {
		progress.Start(ctx, "rescued", 0, "").End("beside a checkout that was stopped: "+strings.Join(kept, "; "), nil)
	}
	return nil
}

// saveEdits copies the edits of tracked files to a commit under a ref of its own. The files stay
// edited. It returns one text for the user, nil without edits.
func (t Tree) saveEdits(ctx context.Context) ([]string, error) {
	if _, err := t.Resolve(ctx, "HEAD"); err != nil {
		return nil, ctx.Err()
	}
	stash, err := t.Run(ctx, "-c", "user.name=slipway", "-c", "user.email="+slipwayEmail, "stash", "create")
	if err != nil || stash == "" {
		return nil, err
	}
	if _, err := t.Run(ctx, "update-ref", "refs/slipway/rescued/"+stash, stash); err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("edited files (git -C %s show %.12s)", t.Dir, stash)}, nil
}

// moveUntracked moves files that are in the way of the commits to a folder in .git, and deletes
// those that git wrote for one of the commits. It returns a text that names the folder, or nil.
func (t Tree) moveUntracked(ctx context.Context, commits ...string) ([]string, error) {
	aside, moved := "", 0
	for _, commit := range commits {
		if !IsCommit(commit) || !t.HasCommit(ctx, commit) {
			continue // the marker is of an older slipway, or its commit is gone
		}
		files, err := t.overwrittenFiles(ctx, commit)
		if err != nil {
			return nil, err
		}
		for _, b := range files {
			if b.matchesCommit(t.Dir) {
				if err := os.Remove(filepath.Join(t.Dir, b.path)); err != nil {
					return nil, err
				}
				continue
			}
			if aside == "" {
				if aside, err = t.newAside(); err != nil {
					return nil, err
				}
			}
			if err := moveInto(aside, t.Dir, b.path); err != nil {
				return nil, err
			}
			moved++
		}
	}
	if moved == 0 {
		return nil, ctx.Err()
	}
	return []string{fmt.Sprintf("%d files that were in the way (%s)", moved, aside)}, nil
}

// newAside makes a new folder in .git/slipway-rescued, named after the time.
func (t Tree) newAside() (string, error) {
	all := filepath.Join(t.gitDir, "slipway-rescued")
	if err := os.MkdirAll(all, 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(all, time.Now().Format("2006-01-02-150405-*"))
}

// moveInto moves the file path of dir to the same path below aside.
func moveInto(aside, dir, path string) error {
	to := filepath.Join(aside, path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, path), to)
}

// firstLines returns the first n lines, each after "  | ", and the number of the others.
func firstLines(lines []string, n int) string {
	return "  | " + strings.Join(firstOf(lines, n), "\n  | ")
}

// firstOf returns the first n texts, and the number of the others as one more.
func firstOf(texts []string, n int) []string {
	if len(texts) > n {
		return append(texts[:n:n], fmt.Sprintf("... and %d more", len(texts)-n))
	}
	return texts
}
