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

	"slipway/layers/git"
	"slipway/layers/localfile"
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

// patchAll applies the patches of each repository that has a url, and undoes those that are gone.
func (c *checkout) patchAll(ctx context.Context) error {
	for _, r := range c.p.Repos {
		if r.URL == "" { // its files are the user's
			continue
		}
		if err := c.patchRepo(ctx, r); err != nil {
			return c.repoTree(r).ExplainDamage(err)
		}
	}
	return nil
}

// patchRepo checks out r's commit with its patches and marks r as moved, unless that is done.
func (c *checkout) patchRepo(ctx context.Context, r Repo) error {
	t := c.repoTree(r)
	now := t.Record()
	files, err := c.patchFiles(r)
	if err != nil {
		return err
	}
	sum := digestOfPatches(files)
	if now.Patches == sum && (sum == "" || t.IsCurrent(r.Remote)) {
		return nil
	}
	c.markMoved(r)
	return t.ApplyPatches(ctx, r.Remote, files, sum)
}

// digestOfPatches returns a digest of the patches' contents and names in their order, "" for none.
func digestOfPatches(files []git.PatchFile) string {
	if len(files) == 0 {
		return ""
	}
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %q %q %x\n", f.ID, f.Repo, f.Name, sha256.Sum256(f.Content))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// patchFiles reads r's patches. More than maxPatches, or maxAllBytes in sum, are an error.
func (c *checkout) patchFiles(r Repo) ([]git.PatchFile, error) {
	var files []git.PatchFile
	for _, patch := range r.Patches {
		top, below, err := c.patchDir(r, patch)
		if err != nil {
			return nil, err
		}
		more, err := readPatch(top, below, patch)
		if err != nil {
			return nil, r.At.Errorf("repos.%s.patches.%s: %w", r.ID, patch.ID, err)
		}
		if files = append(files, more...); exceedsLimits(files) {
			return nil, r.At.Errorf("repos.%s.patches: more than %d patches, or %d bytes", r.ID, maxPatches, maxAllBytes)
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
	return "", "", r.At.Errorf("repos.%s.patches.%s: there is no repository %q", r.ID, patch.ID, patch.Repo)
}

// readPatch reads a patch file or a folder's quilt series. No link leads out of the repository.
func readPatch(top, below string, patch Patch) ([]git.PatchFile, error) {
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
		return []git.PatchFile{f}, err
	}
	return readSeries(root, patch, name)
}

// readSeries reads the patches of the quilt series in folder, in its order. As in kas, each line is
// the name of a file, without options such as -p1.
func readSeries(root *os.Root, patch Patch, folder string) ([]git.PatchFile, error) {
	name := path.Join(folder, "series")
	series, err := readPatchFile(root, patch, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is a folder without a file series, which names its patches in order", folder)
	}
	if err != nil {
		return nil, err
	}
	var files []git.PatchFile
	lines := bufio.NewScanner(bytes.NewReader(series.Content))
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
func exceedsLimits(files []git.PatchFile) bool {
	bytes := 0
	for _, f := range files {
		bytes += len(f.Content)
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

// readPatchFile reads a regular file in root, of at most maxPatchBytes. It refuses one in .git.
func readPatchFile(root *os.Root, patch Patch, name string) (git.PatchFile, error) {
	if git.IsReserved(name) {
		return git.PatchFile{}, fmt.Errorf("%s is a file of git's own", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return git.PatchFile{}, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return git.PatchFile{}, errors.Join(err, fmt.Errorf("%s is not a file", name))
	}
	data, err := localfile.ReadAll(f, name, maxPatchBytes)
	return git.PatchFile{ID: patch.ID, Repo: patch.Repo, Name: name, Content: data}, err
}
