package layers

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"slipway/layers/engine"
)

// checkedOut is the ref under which slipway keeps the commit that it checked out
// last: it tells that commit from a user's own, and gc keeps it.
const checkedOut = "refs/slipway/checkout"

// allHistory is the depth that git takes for no limit.
const allHistory = 1<<31 - 1

// tree is one git checkout. Branches and tags are named by their whole refs
// throughout, so that none can pose as a commit or an option.
type tree struct{ dir string }

func (t tree) there() bool { return exists(filepath.Join(t.dir, ".git")) }

func (t tree) shallow() bool { return exists(filepath.Join(t.dir, ".git", "shallow")) }

// git runs git in the tree and nowhere else: without the explicit folders, a
// damaged .git would send it to the repository around it. A user's hooks are for
// a user's commits, and a question about a password would never be seen. A pack
// appears whole, where the objects of a fetch that was killed would be a commit
// without its files.
func (t tree) git(ctx context.Context, args ...string) (string, error) {
	out, err := engine.Output(ctx, t.command(args...))
	return strings.TrimSpace(string(out)), err
}

// list runs git where its answer is a list whose items end with a NUL.
func (t tree) list(ctx context.Context, args ...string) ([]string, error) {
	out, err := engine.Output(ctx, t.command(args...))
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), nil
}

func (t tree) command(args ...string) engine.Command {
	argv := []string{
		"git", "--git-dir=" + filepath.Join(t.dir, ".git"), "--work-tree=" + t.dir,
		"-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
		"-c", "fetch.unpackLimit=1",
	}
	return gitCommand(t.dir, append(argv, args...))
}

func gitCommand(dir string, argv []string) engine.Command {
	return engine.Command{Argv: argv, Dir: dir, Env: []string{"GIT_TERMINAL_PROMPT=0", "LC_ALL=C"}}
}

// begin makes an empty repository.
func (t tree) begin(ctx context.Context, r Repo) error {
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return err
	}
	init := []string{"-c", "init.defaultBranch=slipway", "init", "-q", "--template="}
	if len(r.Commit) == 64 {
		init = append(init, "--object-format=sha256")
	}
	if _, err := t.git(ctx, init...); err != nil {
		return err
	}
	_, err := t.git(ctx, "remote", "add", "--", "origin", r.URL)
	return err
}

// useURL follows a project whose url changed. Branches and tags that were looked
// up at the old one are forgotten.
func (t tree) useURL(ctx context.Context, url string) error {
	if now, err := t.git(ctx, "config", "--get", "remote.origin.url"); err == nil && now == url {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	refs, err := t.git(ctx, "for-each-ref", "--format=%(refname)", "refs/slipway/at/")
	if err != nil {
		return err
	}
	for _, ref := range strings.Fields(refs) {
		if _, err := t.git(ctx, "update-ref", "-d", ref); err != nil {
			return err
		}
	}
	_, err = t.git(ctx, "config", "remote.origin.url", url)
	return err
}

// remoteRef is the branch or tag of a repository at its server, and hereRef
// where its commit is kept here: apart from a user's own branches and tags.
func remoteRef(r Repo) string {
	if r.Tag != "" {
		return "refs/tags/" + r.Tag
	}
	return "refs/heads/" + r.Branch
}

func hereRef(r Repo) string {
	return "refs/slipway/at/" + strings.TrimPrefix(remoteRef(r), "refs/")
}

// wanted is the commit that r asks for, where it is known here.
func (t tree) wanted(ctx context.Context, r Repo) (string, error) {
	if r.Commit != "" {
		return r.Commit, nil
	}
	return t.commitOf(ctx, hereRef(r))
}

func (t tree) commitOf(ctx context.Context, ref string) (string, error) {
	return t.git(ctx, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
}

func (t tree) isAt(ctx context.Context, commit string) bool {
	head, err := t.commitOf(ctx, "HEAD")
	return err == nil && head == commit
}

// bringTo fetches what r asks for, where it is not here, and checks it out.
func (t tree) bringTo(ctx context.Context, r Repo, shallow bool) error {
	want, err := t.wanted(ctx, r)
	if err != nil || !t.has(ctx, want) {
		if err := t.fetch(ctx, r, shallow); err != nil {
			return err
		}
		if want, err = t.wanted(ctx, r); err != nil {
			return err
		}
	}
	if r.Tag != "" && r.Commit != "" {
		if err := t.checkTag(ctx, r, shallow); err != nil {
			return err
		}
	}
	return t.moveTo(ctx, r, want)
}

func (t tree) has(ctx context.Context, commit string) bool {
	_, err := t.git(ctx, "cat-file", "-e", commit+"^{commit}")
	return err == nil
}

// fetch gets r's commit, alone where the server gives it so. A whole clone stays
// whole: a shallow fetch into it would cut its history.
func (t tree) fetch(ctx context.Context, r Repo, shallow bool) error {
	if r.Commit == "" {
		return t.fetchRefs(ctx, shallow, remoteRef(r)+":"+hereRef(r))
	}
	if err := t.fetchRefs(ctx, shallow, r.Commit); err == nil && t.has(ctx, r.Commit) {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// An old server hands out branches and tags only.
	if err := t.fetchRefs(ctx, false, "+refs/heads/*:refs/slipway/all/heads/*", "+refs/tags/*:refs/slipway/all/tags/*"); err != nil {
		return err
	}
	if !t.has(ctx, r.Commit) {
		return r.at.errorf("repos.%s: commit %s is not in %s; is the url or the commit mistyped?", r.ID, r.Commit, r.URL)
	}
	return nil
}

func (t tree) fetchRefs(ctx context.Context, shallow bool, refspecs ...string) error {
	args := []string{"fetch", "-q", "--no-tags", "--force", "--no-recurse-submodules", "--no-write-fetch-head"}
	switch {
	case shallow:
		args = append(args, "--depth=1")
	case t.shallow():
		args = append(args, "--depth="+strconv.Itoa(allHistory))
	}
	_, err := t.git(ctx, append(append(args, "--", "origin"), refspecs...)...)
	return err
}

// checkTag makes sure that a tag is where the pinned commit says that it is.
func (t tree) checkTag(ctx context.Context, r Repo, shallow bool) error {
	if err := t.fetchRefs(ctx, shallow, remoteRef(r)+":"+hereRef(r)); err != nil {
		return err
	}
	at, err := t.commitOf(ctx, hereRef(r))
	if err != nil {
		return err
	}
	if at != r.Commit {
		return r.at.errorf("repos.%s: tag %s is commit %s, not the pinned %s; the tag was moved or the pin is wrong", r.ID, r.Tag, at, r.Commit)
	}
	return nil
}
