// Package git drives git for a folder: it turns a Remote into a Tree at a commit, through a Mirror,
// and loses no work of a user on the way. It does not read project files; see layers.
package git

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// checkedOut is the ref under which Slipway keeps the commit that it checked out last: it tells
// that commit from a user's own, and gc keeps it.
const checkedOut = "refs/slipway/checkout"

// allHistory is the depth that git takes for no limit.
const allHistory = 1<<31 - 1

// repository is a git repository, with or without a work tree. Branches and tags are named by their
// whole refs, so that none can be mistaken for a commit or an option.
type repository struct {
	Dir    string   // its folder
	gitDir string   // git's own folder in it; Dir itself if there is no work tree
	hold   *os.File // a lock, which also git and its children hold
	url    string   // of its server, with a login that no file keeps
}

// Tree is one checkout.
type Tree struct{ repository }

// TreeIn returns the checkout in dir, which need not exist. Its git folder is dir/.git, or the
// folder that the .git file of a linked work tree names. hold is a lock file that its git commands
// inherit, nil for none.
func TreeIn(dir string, hold *os.File) Tree {
	gitDir := filepath.Join(dir, ".git")
	if named, ok := strings.CutPrefix(string(readSmall(gitDir)), "gitdir: "); ok {
		gitDir = strings.TrimSpace(named)
		if !filepath.IsAbs(gitDir) {
			gitDir = filepath.Join(dir, gitDir)
		}
	}
	return Tree{repository{Dir: dir, gitDir: gitDir, hold: hold}}
}

// IsCheckout reports whether the folder has a repository.
func (t Tree) IsCheckout() bool { return localfile.Exists(t.gitDir) }

// historyEndsAt reports whether the shallow history ends at an id: that is a commit's, no tag's.
func (g repository) historyEndsAt(id string) bool {
	ends, err := shallowCommits(g.gitDir)
	return err == nil && slices.Contains(ends, id)
}

func (g repository) isShallow() bool { return localfile.Exists(filepath.Join(g.gitDir, "shallow")) }

// Run runs git in the repository and returns its standard output without blanks at the ends.
func (g repository) Run(ctx context.Context, args ...string) (string, error) {
	out, err := run.Output(ctx, g.command(args...))
	return strings.TrimSpace(string(out)), err
}

// list runs git and returns the items of its output, which end with a NUL each, nil for none.
func (g repository) list(ctx context.Context, args ...string) ([]string, error) {
	out, err := run.Output(ctx, g.command(args...))
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), nil
}

// runWith runs git with more environment and stdin, and returns stdout without the last newline.
func (g repository) runWith(ctx context.Context, env []string, stdin []byte, args ...string) (string, error) {
	c := g.command(args...)
	c.Env, c.Stdin = append(c.Env, env...), bytes.NewReader(stdin)
	out, err := run.Output(ctx, c)
	return plaintext.TrimNewline(string(out)), err
}

// command returns a git command for this repository, with g.url's login and g.hold. It names the
// folders: git in a damaged repository would use the one around it. It runs no hooks of the user. A
// pack must appear whole: loose objects of a killed fetch would be a commit without its files.
// The output of a signature check would be mistaken for a commit's date. A file watcher would hold
// our locks for ever. A git status that may take a lock leaves index.lock when it is killed.
func (g repository) command(args ...string) run.Command {
	argv := []string{"--no-optional-locks", "--git-dir=" + g.gitDir}
	if g.gitDir != g.Dir {
		argv = append(argv, "--work-tree="+g.Dir)
	}
	argv = append(
		argv, "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
		"-c", "fetch.unpackLimit=1", "-c", "log.showSignature=false", "-c", "i18n.logOutputEncoding=UTF-8", "-c", "core.fsmonitor=false",
	)
	c := Command(g.Dir, append(argv, args...)...)
	c.Hold = g.hold
	return withLogin(c, g.url)
}

// withLogin returns c with the login of a URL, if it has one, in git's environment: other users can
// see a program's arguments and read its files.
func withLogin(c run.Command, url string) run.Command {
	if stored := plaintext.HideSecrets(url); stored != url {
		n, _ := strconv.Atoi(os.Getenv("GIT_CONFIG_COUNT")) // the user's own
		c.Env = append(c.Env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", n+1), fmt.Sprintf("GIT_CONFIG_KEY_%d=url.%s.insteadOf", n, url), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, stored))
	}
	return c
}

// repositoryVariables are the variables that a git which runs Slipway, in a hook or an alias, sets
// for its own repository. With GIT_INDEX_FILE, a checkout would write over that repository's index.
var repositoryVariables = []string{
	"GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE",
	"GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS", "GIT_IMPLICIT_WORK_TREE", "GIT_CONFIG",
}

// Command returns a command that runs git in a folder in English, without a terminal and without
// repositoryVariables: a program in the background cannot answer a question. ssh uses the user's
// SSH_ASKPASS, if set. git enters the folder itself: Go would wait for a child that enters a folder of a
// file server that does not answer, and could collect no garbage and run nothing else meanwhile.
func Command(dir string, args ...string) run.Command {
	askpass := cmp.Or(os.Getenv("SSH_ASKPASS"), "false")
	return run.Command{Argv: append([]string{"git", "-C", dir}, args...), Unset: repositoryVariables, Env: []string{"GIT_TERMINAL_PROMPT=0", "SSH_ASKPASS_REQUIRE=force", "SSH_ASKPASS=" + askpass, "LC_ALL=C"}}
}

// initRepository creates an empty repository for r's server, of sha256 if r's commit has 64 digits.
// It writes git's files itself, since git init and git remote add slow a first checkout down.
func (g repository) initRepository(r Remote) error {
	bare := g.gitDir == g.Dir
	for _, dir := range []string{g.Dir, filepath.Join(g.gitDir, "objects/pack"), filepath.Join(g.gitDir, filepath.Dir(checkedOut))} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	version, format := 0, ""
	if len(r.Commit) == 64 {
		version, format = 1, "[extensions]\n\tobjectFormat = sha256\n"
	}
	config := fmt.Sprintf("[core]\n\trepositoryFormatVersion = %d\n\tfilemode = true\n\tbare = %t\n\tlogAllRefUpdates = %t\n%s", version, bare, !bare, format) +
		fmt.Sprintf("[remote \"origin\"]\n\turl = \"%s\"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n", quoteConfig.Replace(r.storedURL()))
	if err := os.WriteFile(filepath.Join(g.gitDir, "config"), []byte(config), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(g.gitDir, "HEAD"), []byte("ref: refs/heads/slipway\n"), 0o644)
}

// quoteConfig escapes a text in quotes in git's configuration.
var quoteConfig = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`)

// useURL sets origin's URL if it differs, and deletes the refs that were looked up at the old URL.
func (g repository) useURL(ctx context.Context, url string) error {
	now, err := g.Run(ctx, "config", "--get", "remote.origin.url")
	if err == nil && now == url {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	refs, err := g.Run(ctx, "for-each-ref", "--format=%(refname)", "refs/slipway/at/")
	if err != nil {
		return err
	}
	for _, ref := range strings.Fields(refs) {
		if _, err := g.Run(ctx, "update-ref", "-d", ref); err != nil {
			return err
		}
	}
	_, err = g.Run(ctx, "config", "remote.origin.url", url)
	return err
}

// LocalCommit returns the commit of r's pin, branch or tag if the repository has it, otherwise an
// error. A pin may be the id of a tag. A pin that is no whole id is an error.
func (g repository) LocalCommit(ctx context.Context, r Remote) (string, error) {
	if err := r.CheckCommit(); err != nil {
		return "", err
	}
	return g.Resolve(ctx, cmp.Or(r.Commit, r.localRef()))
}

// Resolve returns the commit of a ref.
func (g repository) Resolve(ctx context.Context, ref string) (string, error) {
	return g.Run(ctx, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
}

// HasCommit reports whether the repository has a commit.
func (g repository) HasCommit(ctx context.Context, commit string) bool {
	_, err := g.Run(ctx, "cat-file", "-e", commit+"^{commit}")
	return err == nil
}

// fetchFromServer fetches r's commit and returns it. It keeps a pinned commit under the ref kept,
// if that is not "". From a server that refuses single commits, it fetches all branches and tags.
// shallow fetches no history; it must be false for a complete clone, whose history it would cut.
func (g repository) fetchFromServer(ctx context.Context, r Remote, shallow bool, kept string) (string, error) {
	g.url = r.URL
	if r.Commit == "" {
		if err := g.fetchTip(ctx, r, shallow); err != nil {
			return "", r.explainFetchError(err)
		}
		return g.LocalCommit(ctx, r)
	}
	err := g.fetchRefs(ctx, shallow, strings.TrimSuffix(r.Commit+":"+kept, ":"))
	if err == nil {
		if g.historyEndsAt(r.Commit) {
			return r.Commit, nil
		}
		if commit, err := g.LocalCommit(ctx, r); err == nil {
			return commit, nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case g.serverLacksCommit(ctx, err):
		return "", r.noCommitError()
	case err != nil && !serverRefused(err):
		return "", r.explainFetchError(err)
	}
	// An old server hands out branches and tags only.
	if err := g.fetchRefs(ctx, false, "+refs/heads/*:refs/slipway/all/heads/*", "+refs/tags/*:refs/slipway/all/tags/*"); err != nil {
		return "", r.explainFetchError(err)
	}
	commit, err := g.LocalCommit(ctx, r)
	if err != nil {
		return "", r.noCommitError()
	}
	return commit, nil
}

// fetchTip fetches r's branch or tag into localRef. It asks the server which one an OrTag name is.
func (g repository) fetchTip(ctx context.Context, r Remote, shallow bool) error {
	ref := r.ref()
	if r.OrTag {
		found, err := r.LookUp(ctx)
		if err != nil {
			return err
		}
		ref = found.Ref
	}
	return g.fetchRefs(ctx, shallow, ref+":"+r.localRef())
}

// fetchRefs fetches refspecs from origin: without history if shallow is set, else with all of it.
func (g repository) fetchRefs(ctx context.Context, shallow bool, refspecs ...string) error {
	args := []string{"--force"}
	switch {
	case shallow:
		args = append(args, "--depth=1")
	case g.isShallow():
		args = append(args, "--depth="+strconv.Itoa(allHistory))
	}
	return g.runFetch(ctx, append(append(args, "--", "origin"), refspecs...)...)
}

// runFetch runs git fetch, and ends it if it is silent. With --progress, a working server is not.
// First it waits for a fetch that a killed slipway left running. Git's children inherit only the
// lock file of fetches: a credential helper can run longer than the fetch, and would keep the lock
// of the workspace or mirror.
func (g repository) runFetch(ctx context.Context, args ...string) error {
	if err := g.awaitFetch(ctx); err != nil {
		return err
	}
	lock, err := localfile.Lock(ctx, g.fetchLock(), 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer os.Remove(lock.Name())
	g.hold = lock
	args = append([]string{"fetch", "-q", "--progress", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"}, args...)
	_, err = run.Output(ctx, limitSilence(g.command(args...)))
	return err
}

func (g repository) fetchLock() string { return filepath.Join(g.gitDir, "slipway-fetching") }

// removeLocks waits as awaitFetch does, and removes the locks that a killed git left beside files
// that only Slipway writes. The caller holds the lock of the workspace or mirror.
func (g repository) removeLocks(ctx context.Context) error {
	if err := g.awaitFetch(ctx); err != nil {
		return err
	}
	locks := []string{filepath.Join(g.gitDir, patchIndex+".lock")}
	err := filepath.WalkDir(filepath.Join(g.gitDir, "refs/slipway"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".lock") {
			locks = append(locks, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return localfile.Remove(locks...)
}

// awaitFetch waits up to ExitTime for a fetch whose slipway was killed, then removes its lock file
// in any case. If the fetch has ended, it also removes git's shallow.lock.
func (g repository) awaitFetch(ctx context.Context) error {
	if !localfile.Exists(g.fetchLock()) {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, ExitTime)
	defer cancel()
	left := []string{g.fetchLock()}
	lock, err := localfile.Lock(soon, g.fetchLock(), 0o644)
	if err == nil {
		lock.Close()
		left = append(left, filepath.Join(g.gitDir, "shallow.lock"))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return localfile.Remove(left...)
}

// checkTag fetches r's tag, and returns an error unless the tag's id or its commit is r's commit.
func (g repository) checkTag(ctx context.Context, r Remote, shallow bool) error {
	g.url = r.URL
	if err := g.fetchRefs(ctx, shallow, r.ref()+":"+r.localRef()); err != nil {
		return r.explainFetchError(err)
	}
	ids, err := g.Run(ctx, "rev-parse", r.localRef(), r.localRef()+"^{commit}")
	if err != nil {
		return err
	}
	object, at, _ := strings.Cut(ids, "\n")
	if at != r.Commit && object != r.Commit {
		return r.At.Errorf("repos.%s: tag %s is commit %s, not the pinned %s; the tag was moved or the pin is wrong", r.ID, r.Tag, at, r.Commit)
	}
	return nil
}

// git runs hooks and obeys the configuration in folders of its own. A project that puts
// files in such a folder has the user's next git command run them.

// IsReserved reports whether a path has an element that a file system of Linux, macOS or Windows
// takes for .git. git itself refuses the same spellings in a repository.
func IsReserved(path string) bool {
	for name := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		name = strings.Map(func(c rune) rune {
			if unicode.Is(unicode.Cf, c) { // HFS+ ignores these
				return -1
			}
			return c
		}, name)
		name, _, _ = strings.Cut(name, ":") // NTFS: a stream of the file
		name = strings.TrimRight(name, " .")
		if strings.EqualFold(name, ".git") || strings.EqualFold(name, "git~1") {
			return true
		}
	}
	return false
}

// FolderAround returns the .git folder or bare repository that contains a path, with links
// resolved. It returns "" if it finds none, or a work tree first.
func FolderAround(path string) string {
	path = localfile.ResolveLinks(path)
	for at := path; at != filepath.Dir(at); at = filepath.Dir(at) {
		_, err := os.Lstat(filepath.Join(at, ".git"))
		switch {
		case IsReserved(filepath.Base(at)), at != path && localfile.Exists(filepath.Join(at, "HEAD")) && localfile.Exists(filepath.Join(at, "objects")) && localfile.Exists(filepath.Join(at, "refs")):
			return at
		case err == nil && at != path:
			return ""
		}
	}
	return ""
}
