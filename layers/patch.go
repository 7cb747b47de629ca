package layers

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

// Patches become commits on top of the server's, made beside the checkout: the checkout then moves
// to the last of them as to any other commit. So files end as with kas, which commits too; local
// changes are safe, a kill leaves nothing half patched, and nothing is patched twice. The same
// patches on the same commit make the same commits on every machine.

// Limits for the patches of one repository. Real ones stay far below.
const (
	maxPatches    = 1000
	maxPatchBytes = 16 << 20
	maxAllBytes   = 64 << 20 // they are in memory together
)

// patchFile is a patch with its content.
type patchFile struct {
	of      Patch
	name    string // its path in its repository
	content []byte
}

// patchAll applies the patches of repositories to their checkouts, but not to local folders.
func (c *checkout) patchAll(ctx context.Context, repos []Repo) error {
	for _, r := range repos {
		if r.URL == "" { // its files are the user's
			continue
		}
		if err := c.patchRepo(ctx, r); err != nil {
			return c.repoTree(r).explainDamage(err)
		}
	}
	return nil
}

// patchRepo makes commits of r's patches, checks out the last and records it, unless that is done.
func (c *checkout) patchRepo(ctx context.Context, r Repo) error {
	t := c.repoTree(r)
	now := t.readRecord()
	files, err := c.patchFiles(r)
	if err != nil {
		return err
	}
	sum := digestOfPatches(files)
	if now.Patches == sum && (sum == "" || t.isCurrent(r)) {
		return nil
	}
	c.markMoved(r)
	now.Patches, now.Count = sum, len(files)
	if err := t.removeLocks(ctx); err != nil {
		return err
	}
	if now.Head, err = t.commitPatches(ctx, r, now.Commit, files); err != nil {
		return err
	}
	if err := t.moveTo(ctx, r, now.Head); err != nil {
		return err
	}
	return t.writeRecord(now)
}

// digestOfPatches returns a digest of the patches' contents and names in their order, "" for none.
func digestOfPatches(files []patchFile) string {
	if len(files) == 0 {
		return ""
	}
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %q %q %x\n", f.of.ID, f.of.Repo, f.name, sha256.Sum256(f.content))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// patchFiles reads r's patches from their repositories, up to maxPatches and maxAllBytes in sum.
func (c *checkout) patchFiles(r Repo) ([]patchFile, error) {
	var files []patchFile
	for _, patch := range r.Patches {
		top, below, err := c.patchDir(r, patch)
		if err != nil {
			return nil, err
		}
		more, err := readPatch(top, below, patch)
		if err != nil {
			return nil, r.at.Errorf("repos.%s.patches.%s: %w", r.ID, patch.ID, err)
		}
		if files = append(files, more...); exceedsLimits(files) {
			return nil, r.at.Errorf("repos.%s.patches: more than %d patches, or %d bytes", r.ID, maxPatches, maxAllBytes)
		}
	}
	return files, nil
}

// patchDir returns the top of a patch's git repository, and the folder in it where its path begins.
func (c *checkout) patchDir(r Repo, patch Patch) (top, below string, err error) {
	for _, source := range c.p.Repos {
		if source.ID != patch.Repo {
			continue
		}
		dir := c.p.Dir(c.ws, source)
		if source.URL != "" {
			return dir, ".", nil
		}
		top, below = splitWorkTree(dir)
		return top, below, nil
	}
	return "", "", r.at.Errorf("repos.%s.patches.%s: there is no repository %q", r.ID, patch.ID, patch.Repo)
}

// readPatch reads a patch file or a folder's quilt series. No link leads out of the repository.
func readPatch(top, below string, patch Patch) ([]patchFile, error) {
	name, err := filepath.Rel(top, filepath.Join(top, below, patch.Path))
	if err != nil || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("path %q leaves its repository %s", patch.Path, top)
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("no patch in repository %s: %w", patch.Repo, localfile.ExplainUnreadable(filepath.Join(top, name), err))
	}
	if !info.IsDir() {
		f, err := readPatchFile(root, patch, name)
		return []patchFile{f}, err
	}
	return readSeries(root, patch, name)
}

// readSeries reads the patches of a quilt series as kas does: one on each line, without options.
func readSeries(root *os.Root, patch Patch, folder string) ([]patchFile, error) {
	name := path.Join(folder, "series")
	series, err := readPatchFile(root, patch, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is a folder without a file series, which names its patches in order", folder)
	}
	if err != nil {
		return nil, err
	}
	var files []patchFile
	lines := bufio.NewScanner(bytes.NewReader(series.content))
	for number := 1; lines.Scan(); number++ {
		line := seriesEntry(lines.Text())
		if line == "" {
			continue
		}
		f, err := readPatchFile(root, patch, path.Join(folder, line))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
		if files = append(files, f); exceedsLimits(files) {
			return nil, fmt.Errorf("%s: more than %d patches, or %d bytes", name, maxPatches, maxAllBytes)
		}
	}
	return files, lines.Err()
}

// exceedsLimits reports whether patches exceed maxPatches or, in sum, maxAllBytes.
func exceedsLimits(files []patchFile) bool {
	bytes := 0
	for _, f := range files {
		bytes += len(f.content)
	}
	return len(files) > maxPatches || bytes > maxAllBytes
}

// seriesEntry returns the patch named by a line of a series, without the comment, or "".
func seriesEntry(line string) string {
	if strings.HasPrefix(line, "#") {
		return ""
	}
	line, _, _ = strings.Cut(line, " #")
	return strings.TrimRight(line, " \t\r")
}

// readPatchFile reads a regular file in root, at most maxPatchBytes, that is in no .git folder.
func readPatchFile(root *os.Root, patch Patch, name string) (patchFile, error) {
	if namesGit(name) {
		return patchFile{}, fmt.Errorf("%s is a file of git's own", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return patchFile{}, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return patchFile{}, errors.Join(err, fmt.Errorf("%s is not a file", name))
	}
	data, err := localfile.ReadAll(f, name, maxPatchBytes)
	return patchFile{patch, name, data}, err
}

// commitPatches makes a commit of each patch, the first on top of base, and returns the last
// commit. It uses an index of its own, so files and HEAD do not change.
func (t tree) commitPatches(ctx context.Context, r Repo, base string, files []patchFile) (string, error) {
	if len(files) == 0 {
		return base, nil
	}
	index := filepath.Join(t.gitDir, patchIndex)
	defer os.Remove(index)
	b := patchTree{tree: t, env: []string{"GIT_INDEX_FILE=" + index}}
	seconds, err := b.runGit(ctx, nil, "show", "-s", "--format=%ct", base)
	if err != nil {
		return "", err
	}
	b.setIdentity(seconds)
	if _, err := b.runGit(ctx, nil, "read-tree", base); err != nil {
		return "", err
	}
	for _, f := range files {
		next, err := b.commitPatch(ctx, base, f)
		if err != nil {
			if failed := (*run.Failure)(nil); errors.As(err, &failed) {
				failed.Argv = []string{"git", "apply"} // without the options that keep the user's configuration out
			}
			return "", r.at.Errorf("repos.%s.patches.%s: %s of repository %s does not apply to commit %s; refresh the patch or drop it: %w",
				r.ID, f.of.ID, f.name, f.of.Repo, base, err)
		}
		base = next
	}
	return base, nil
}

// slipwayEmail is the committer of Slipway's commits, which tells them from a user's: a commit that
// a user amends keeps its author, but not its committer.
const slipwayEmail = "slipway@localhost"

// patchIndex is git's index while patches are applied.
const patchIndex = "slipway-index"

// patchTree is a tree with a separate index, in which patches are applied.
type patchTree struct {
	tree
	env []string
}

// setIdentity makes Slipway the author and committer, at the time (in seconds) of the base commit.
func (b *patchTree) setIdentity(seconds string) {
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		b.env = append(b.env, "GIT_"+who+"_NAME=slipway", "GIT_"+who+"_EMAIL="+slipwayEmail, "GIT_"+who+"_DATE=@"+seconds+" +0000")
	}
}

// runGit runs git with the separate index, and returns its trimmed standard output.
func (b *patchTree) runGit(ctx context.Context, stdin []byte, args ...string) (string, error) {
	c := b.command(args...)
	c.Env = append(c.Env, b.env...)
	if stdin != nil {
		c.Stdin = bytes.NewReader(stdin)
	}
	out, err := run.Output(ctx, c)
	return strings.TrimSpace(string(out)), err
}

// commitPatch applies a patch to the index and commits the result on top of onto.
func (b *patchTree) commitPatch(ctx context.Context, onto string, f patchFile) (string, error) {
	if _, err := b.runGit(ctx, f.content, "apply", "--cached", "--whitespace=nowarn", "-"); err != nil {
		return "", err
	}
	tree, err := b.runGit(ctx, nil, "write-tree")
	if err != nil {
		return "", err
	}
	message := fmt.Sprintf("%s: %s of repository %s\n", f.of.ID, f.name, f.of.Repo)
	return b.runGit(ctx, []byte(message), "commit-tree", "-p", onto, tree)
}
