package git

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// A user's commits never drop out of a build silently. If HEAD has some that neither the server has
// nor Slipway made, a checkout stops. A warning names those of other branches and the stash.

const (
	shownCommits  = 5
	listedCommits = 1000
)

// ownCommit is one of the user's commits, with a ref that contains it.
type ownCommit struct{ ref, id, subject string }

// ownCommits returns the user's commits in the histories of tips (commits, or git log's options for
// them), the newest first, from at most listedCommits. It leaves out commits of r's server, commits
// that Slipway made, and the histories of without. The ends of a shallow history are the server's.
func (t Tree) ownCommits(ctx context.Context, r Remote, tips []string, without ...string) ([]ownCommit, error) {
	ends, err := shallowCommits(t.commonDir())
	if err != nil {
		return nil, err
	}
	args := []string{"log", "-z", "--ignore-missing", "--format=%S%x09%h%x09%ce%x09%s", fmt.Sprintf("--max-count=%d", listedCommits), "--stdin"}
	args = append(append(args, tips...), "--not", "--glob=refs/slipway/*")
	c := t.command(append(args, t.remotesOf(ctx, r)...)...)
	var not strings.Builder
	for _, commit := range slices.Concat(ends, without) {
		if IsCommit(commit) {
			not.WriteString("^" + commit + "\n")
		}
	}
	c.Stdin = strings.NewReader(not.String())
	out, err := run.Output(ctx, c)
	if err != nil {
		return nil, err
	}
	var own []ownCommit
	for line := range strings.SplitSeq(string(out), "\x00") {
		if fields := strings.SplitN(line, "\t", 4); len(fields) == 4 && fields[2] != slipwayEmail {
			own = append(own, ownCommit{fields[0], fields[1], plaintext.ShortLine(fields[3])})
		}
	}
	return own, nil
}

// remotesOf returns git log's options for the branches of origin and other remotes with r's url.
func (t Tree) remotesOf(ctx context.Context, r Remote) []string {
	options := []string{"--remotes=origin"}
	remotes, err := t.list(ctx, "config", "-z", "--get-regexp", `^remote\..*\.url$`)
	if err != nil {
		return options
	}
	for _, remote := range remotes {
		name, url, _ := strings.Cut(remote, "\n")
		if name = strings.TrimSuffix(strings.TrimPrefix(name, "remote."), ".url"); url == r.storedURL() && !strings.ContainsAny(name, `*?[\`) {
			options = append(options, "--remotes="+name)
		}
	}
	return options
}

// commonDir returns git's main folder of the repository, which a linked work tree only names.
func (g repository) commonDir() string {
	common := strings.TrimSpace(string(readSmall(filepath.Join(g.gitDir, "commondir"))))
	if common == "" || filepath.IsAbs(common) {
		return cmp.Or(common, g.gitDir)
	}
	return filepath.Join(g.gitDir, common)
}

// refuseLeavingCommits returns an error if HEAD has commits of the user that the commit want lacks.
// If only HEAD was moved, it warns. It accepts HEAD at the last commit that Slipway checked out, or
// at killed, the commit of a checkout that was killed.
func (t Tree) refuseLeavingCommits(ctx context.Context, r Remote, want, killed string) error {
	head, err := t.Resolve(ctx, "HEAD")
	if err != nil || head == killed {
		return ctx.Err() // nothing was checked out yet
	}
	if last, err := t.Resolve(ctx, checkedOut); err == nil && last == head {
		return nil
	}
	own, err := t.ownCommits(ctx, r, []string{"HEAD"}, want, killed)
	if err != nil {
		return err
	}
	branch, _ := t.Run(ctx, "symbolic-ref", "-q", "--short", "HEAD") // fails if HEAD is detached
	if len(own) == 0 && (head == want || head == t.Record().Commit) {
		return nil // as leftCommitsError tells the user to type
	}
	if len(own) == 0 {
		progress.Warn(ctx, fmt.Sprintf("repository %s: HEAD was moved by hand%s to %.12s; Slipway checks out the project's %.12s (in %s)", r.ID, onBranch(branch), head, want, t.Dir))
		return nil
	}
	return t.leftCommitsError(ctx, r, own, branch, want)
}

// onBranch returns ", to branch NAME" for a message, or "" for a detached HEAD.
func onBranch(branch string) string {
	if branch == "" {
		return ""
	}
	return ", to branch " + branch
}

// leftCommitsError returns the error that lists own, which a build of the commit want would leave
// out, with next steps. branch is "" for a detached HEAD.
func (t Tree) leftCommitsError(ctx context.Context, r Remote, own []ownCommit, branch, want string) error {
	lines := make([]string, len(own))
	for i, c := range own {
		lines[i] = c.id + " " + c.subject
	}
	dir, where, keep := plaintext.Quote(t.Dir), "branch "+branch+" holds", ""
	if branch == "" {
		where = "HEAD, on no branch, holds"
		if kept, err := t.Run(ctx, "for-each-ref", "--count=1", "--contains=HEAD", "refs/heads/"); err != nil || kept == "" {
			keep = fmt.Sprintf("git -C %s branch mine-%s && ", dir, own[0].id)
		}
	}
	return fmt.Errorf("%s: %s commits of yours that the project's commit %.12s of repository %s lacks, so a build would leave them out:\n%s\n%s\nnext: %sgit -C %s checkout --detach %.12s  # to build without them",
		t.Dir, where, want, r.ID, firstLines(lines, shownCommits), t.localStep(r), keep, dir, want)
}

// localStep returns the next step that builds a repository with the user's work in its folder. It
// keeps the folders that SLIPWAY_LOCAL names already.
func (t Tree) localStep(r Remote) string {
	named := ""
	if now := os.Getenv("SLIPWAY_LOCAL"); now != "" && now != "off" {
		named = plaintext.Quote(now) + ","
	}
	return fmt.Sprintf("next: SLIPWAY_LOCAL=%s%s=%s repeat the line  # to build with them", named, plaintext.Quote(r.ID), plaintext.Quote(t.Dir))
}

// unfinishedFiles are files in .git that exist while an operation of the user is not finished.
var unfinishedFiles = []struct{ file, command string }{
	{"rebase-merge", "rebase"},
	{"rebase-apply/applying", "am"},
	{"rebase-apply", "rebase"},
	{"MERGE_HEAD", "merge"},
	{"CHERRY_PICK_HEAD", "cherry-pick"},
	{"REVERT_HEAD", "revert"},
	{"sequencer", "cherry-pick"},
	{"BISECT_START", "bisect"},
}

// CheckFinished returns an error if a rebase, merge or the like is not finished in the tree: its
// files are neither the user's work nor the project's commit.
func (t Tree) CheckFinished(r Remote) error {
	for _, u := range unfinishedFiles {
		if !localfile.Exists(filepath.Join(t.gitDir, u.file)) {
			continue
		}
		next := fmt.Sprintf("git -C %s %s --continue, or --abort", plaintext.Quote(t.Dir), u.command)
		if u.command == "bisect" {
			next = fmt.Sprintf("git -C %s bisect reset", plaintext.Quote(t.Dir))
		}
		return fmt.Errorf("%s: a git %s is not finished in repository %s, so a build would leave its commits out\nnext: %s", t.Dir, u.command, r.ID, next)
	}
	return nil
}

// leftOutWarning returns a warning about the user's commits on other branches and in the stash,
// which no build uses, or "". Slipway makes no branches, so most trees need no git for this.
func (t Tree) leftOutWarning(ctx context.Context, r Remote) (string, error) {
	if !t.hasBranches() {
		return "", nil
	}
	head, _ := t.Resolve(ctx, "HEAD") // a repository without a commit has none
	own, err := t.ownCommits(ctx, r, []string{"--branches"}, head)
	if err != nil {
		return "", err
	}
	count, newest := map[string]int{}, map[string]ownCommit{}
	for _, c := range slices.Backward(own) {
		count[c.ref]++
		newest[c.ref] = c
	}
	var said []string
	for _, ref := range slices.Sorted(maps.Keys(count)) {
		said = append(said, fmt.Sprintf("branch %s has %d (%s %s)", strings.TrimPrefix(ref, "refs/heads/"), count[ref], newest[ref].id, newest[ref].subject))
	}
	if _, err := t.Resolve(ctx, "refs/stash"); err == nil {
		said = append(said, "the stash has some")
	}
	if len(said) == 0 {
		return "", ctx.Err()
	}
	return fmt.Sprintf("repository %s has commits of yours, which a build leaves out: %s (in %s)", r.ID, strings.Join(said, ", "), t.Dir), nil
}

// hasBranches reports whether the repository may have branches or a stash, without running git.
func (t Tree) hasBranches() bool {
	common := t.commonDir()
	if localfile.Exists(filepath.Join(common, "packed-refs")) || localfile.Exists(filepath.Join(common, "reftable")) || localfile.Exists(filepath.Join(common, "refs/stash")) {
		return true
	}
	found := false
	err := filepath.WalkDir(filepath.Join(common, "refs/heads"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = true
			return fs.SkipAll
		}
		return err
	})
	return found || err != nil && !os.IsNotExist(err)
}

// namedEdits is how many edited files a warning lists.
const namedEdits = 3

// Warnings returns the warnings about missing submodules and LFS files, edits, and commits that a
// build leaves out. Some may be "". A tree that was just moved has no edits.
func (t Tree) Warnings(ctx context.Context, r Remote, moved bool) ([]string, error) {
	said := t.Record().Unfetched.missingWarnings(r, t.Dir)
	left, err := t.leftOutWarning(ctx, r)
	if err != nil || moved {
		return append(said, left), err
	}
	edits, err := t.editsWarning(ctx, r)
	return append(said, edits, left), err
}

// ModifiedFiles returns lines of git status: the files in a folder that a build takes instead of
// HEAD's. It includes untracked files, but not __pycache__ and nested repositories.
func (t Tree) ModifiedFiles(ctx context.Context, folder string) ([]string, error) {
	out, err := run.Output(ctx, t.command("status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none", "--", folder, ":(top,exclude,glob)**/__pycache__/**"))
	return slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "?? ") && strings.HasSuffix(line, "/")
	}), err
}

// editsWarning returns the warning of a tree with edits, "" without edits.
func (t Tree) editsWarning(ctx context.Context, r Remote) (string, error) {
	edited, err := t.ModifiedFiles(ctx, t.Dir)
	if err != nil || len(edited) == 0 {
		return "", err
	}
	for i, line := range edited {
		edited[i] = plaintext.ShortLine(line[min(3, len(line)):]) // after two letters and a space
	}
	return fmt.Sprintf("repository %s has local changes, which a build uses: %s (in %s)", r.ID, firstNames(edited), t.Dir), nil
}
