package plan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/git"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// repository is the git repository around the user's boards.
type repository struct{ root string }

// openRepository finds the repository around a folder.
func openRepository(ctx context.Context, folder string) (repository, error) {
	out, err := (repository{folder}).git(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return repository{}, fmt.Errorf("%s is in no git repository, so nothing says what changed\nnext: git init %s", folder, plaintext.Quote(filepath.Dir(folder)))
	}
	root, err := filepath.EvalSymlinks(plaintext.TrimNewline(out))
	return repository{root}, err
}

func (r repository) git(ctx context.Context, args ...string) (string, error) {
	out, err := run.Output(ctx, r.command(args...))
	return string(out), err
}

// command returns a git command in r.root, without GIT_DIR and other variables that override it.
func (r repository) command(args ...string) run.Command {
	c := git.Command(r.root, append([]string{"-c", "core.quotePath=false"}, args...)...)
	c.Env = append(c.Env, "GIT_OPTIONAL_LOCKS=0")
	return c
}

// resolve returns the commit ID of a commit, branch or tag.
func (r repository) resolve(ctx context.Context, ref string) (string, error) {
	out, err := r.git(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err == nil {
		return plaintext.TrimNewline(out), nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if r.isShallow(ctx) {
		return "", fmt.Errorf("%q is no commit, branch or tag of this clone, which is shallow\nnext: git fetch --unshallow", ref)
	}
	if i := strings.IndexAny(ref, "~^"); i > 0 {
		if _, err := r.resolve(ctx, ref[:i]); err == nil {
			return "", fmt.Errorf("%q does not exist: the history of %s is shorter\nnext: git log --oneline %[2]s", ref, ref[:i])
		}
	}
	return "", fmt.Errorf("%q is no commit, branch or tag of this clone\nnext: git fetch --all --tags", ref)
}

// emptyTree returns the ID of the tree without files, for a diff with nothing.
func (r repository) emptyTree(ctx context.Context) (string, error) {
	c := r.command("hash-object", "-t", "tree", "--stdin")
	c.Stdin = strings.NewReader("")
	out, err := run.Output(ctx, c)
	return plaintext.TrimNewline(string(out)), err
}

func (r repository) isShallow(ctx context.Context) bool {
	out, err := r.git(ctx, "rev-parse", "--is-shallow-repository")
	return err == nil && plaintext.TrimNewline(out) == "true"
}

// mergeBase returns the last common ancestor of two commits. A shallow clone may lack it. Then
// mergeBase returns an error, because a wrong ancestor would leave out boards that need a build.
func (r repository) mergeBase(ctx context.Context, a, b string) (string, error) {
	out, err := r.git(ctx, "merge-base", a, b)
	if base, _, _ := strings.Cut(out, "\n"); err == nil && base != "" {
		return base, nil
	}
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case r.isShallow(ctx):
		return "", fmt.Errorf("this clone is shallow, and lacks the last commit that %.12s and %.12s have in common\nnext: git fetch --unshallow", a, b)
	}
	return "", fmt.Errorf("%.12s and %.12s have no commit in common\nnext: git log --oneline --all  # name a commit that both have", a, b)
}

// change is one file or submodule that differs between two commits.
type change struct {
	path   string // from the root
	status byte   // A added, D deleted, M modified; others are rare
	was    string // the commit of a submodule
	is     string
	linked bool // a submodule
}

const submoduleMode = "160000"

// changes lists the files that differ between two commits. If to is "", it compares from with the
// work tree, and includes files that git does not track and does not ignore.
func (r repository) changes(ctx context.Context, from, to string) ([]change, error) {
	args := []string{"diff", "--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--ignore-submodules=none", from}
	if to != "" {
		args = append(args, to)
	}
	out, err := r.git(ctx, append(args, "--")...)
	if err != nil {
		return nil, err
	}
	all, err := parseRaw(out)
	if err != nil || to != "" {
		return all, err
	}
	out, err = r.git(ctx, "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return nil, err
	}
	for path := range strings.SplitSeq(out, "\x00") {
		if path != "" {
			all = append(all, change{path: strings.TrimSuffix(path, "/"), status: 'A'})
		}
	}
	return all, nil
}

// parseRaw parses the output of git diff --raw -z: ":MODE MODE ID ID STATUS", then the path.
func parseRaw(text string) ([]change, error) {
	var all []change
	fields := strings.Split(strings.TrimSuffix(text, "\x00"), "\x00")
	if text == "" {
		return nil, nil
	}
	if len(fields)%2 != 0 {
		return nil, errors.New("git diff ended in the middle of a line")
	}
	for pair := range slices.Chunk(fields, 2) {
		words := strings.Fields(strings.TrimPrefix(pair[0], ":"))
		if len(words) != 5 || pair[1] == "" || !strings.HasPrefix(pair[0], ":") {
			return nil, fmt.Errorf("git diff said %q", pair[0])
		}
		c := change{path: pair[1], status: words[4][0], linked: words[0] == submoduleMode || words[1] == submoduleMode}
		if c.linked {
			c.was, c.is = words[2], words[3]
		}
		all = append(all, c)
	}
	return all, nil
}

// export checks out a commit's symbolic links, and files that wanted selects, into dir/tree, by the
// index dir/index. Submodules and .git become empty folders: paths of layers may go through them.
func (r repository) export(ctx context.Context, commit, dir string, wanted func(path string) bool) error {
	index := "GIT_INDEX_FILE=" + filepath.Join(dir, "index")
	out, err := r.git(ctx, "ls-tree", "-r", "-z", "--full-tree", commit)
	if err != nil {
		return err
	}
	var paths strings.Builder
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, ".git"), 0o755); err != nil { // marks the root for layers
		return err
	}
	for entry := range strings.SplitSeq(out, "\x00") {
		info, path, _ := strings.Cut(entry, "\t")
		mode, _, _ := strings.Cut(info, " ")
		switch {
		case path == "" || !filepath.IsLocal(path) || slices.Contains(strings.Split(path, "/"), ".git"):
		case mode == submoduleMode:
			if err := os.MkdirAll(filepath.Join(tree, path), 0o755); err != nil {
				return err
			}
		case mode == "120000" || wanted(path):
			paths.WriteString(path + "\x00")
		}
	}
	for _, args := range [][]string{
		{"read-tree", commit},
		{"checkout-index", "-q", "-z", "--stdin", "--prefix=" + tree + "/"},
	} {
		c := r.command(args...)
		c.Env, c.Stdin = append(c.Env, index), strings.NewReader(paths.String())
		if _, err := run.Output(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
