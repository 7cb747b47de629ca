package layers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Slipway fetches no submodules and, without git-lfs, no files of Git LFS; nor does kas.
// A build that lacks them fails far from the cause, so they are named.

// unfetched are the submodules of a checkout, with the files that Git LFS stores
// elsewhere.
type unfetched struct {
	Submodules []string `json:"submodules,omitempty"`
	Files      []string `json:"lfs,omitempty"`
}

// maxUnfetched is how many of a kind are recorded.
const maxUnfetched = 20

// findUnfetched looks for what the checked out commit stores elsewhere.
func (t tree) findUnfetched(ctx context.Context) (u unfetched, err error) {
	index, err := os.ReadFile(filepath.Join(t.gitDir, "index"))
	if err != nil || !bytes.Contains(index, []byte("attributes")) && !bytes.Contains(index, []byte("modules")) {
		return u, err // the index has the names, or what they do not share with the one before
	}
	names, err := t.gitList(ctx, "ls-files", "-z", "--", ".gitmodules", ":(glob)**/.gitattributes")
	if err != nil {
		return u, err
	}
	lfs := false
	for _, name := range names {
		if name == ".gitmodules" {
			if u.Submodules, err = t.listSubmodules(ctx); err != nil {
				return u, err
			}
			continue
		}
		lfs = lfs || bytes.Contains(readBeginning(filepath.Join(t.dir, name), maxFileBytes), []byte("filter=lfs"))
	}
	if lfs {
		names, err = t.gitList(ctx, "ls-files", "-z", "--", ":(attr:filter=lfs)")
		u.Files = limitNames(names)
	}
	return u, err
}

// readBeginning reads the first bytes of a regular file. A link in a repository may
// lead to anything.
func readBeginning(path string, most int64) []byte {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, most)) // of what cannot be read, nothing can be said
	return data
}

// limitNames drops the names that are too long or too many for a record.
func limitNames(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return len(name) > 500 })
	return names[:min(len(names), maxUnfetched)]
}

func (t tree) listSubmodules(ctx context.Context) ([]string, error) {
	entries, err := t.gitList(ctx, "ls-files", "-z", "--stage")
	var paths []string
	for _, entry := range entries {
		if info, path, _ := strings.Cut(entry, "\t"); strings.HasPrefix(info, "160000 ") {
			paths = append(paths, path)
		}
	}
	return limitNames(paths), err
}

// missingWarnings returns a warning for the submodules, or LFS files, that are missing.
func (u unfetched) missingWarnings(r Repo, dir string) []string {
	var lines, lack []string
	for _, path := range u.Submodules {
		if entries, err := os.ReadDir(filepath.Join(dir, path)); err == nil && len(entries) == 0 {
			lack = append(lack, printableLine(path))
		}
	}
	if len(lack) > 0 {
		lines = append(lines, fmt.Sprintf("repository %s has submodules, which Slipway does not fetch, nor does kas: %s; \"git -C %s submodule update --init\" does", r.ID, firstNames(lack), dir))
	}
	lack = nil
	for _, path := range u.Files {
		if bytes.HasPrefix(readBeginning(filepath.Join(dir, path), 64), []byte("version https://git-lfs.github.com/spec/")) {
			lack = append(lack, printableLine(path))
		}
	}
	if len(lack) > 0 {
		lines = append(lines, fmt.Sprintf("repository %s has files of Git LFS, of which only pointers are here: %s; install git-lfs, and \"git -C %s lfs pull\" fetches them", r.ID, firstNames(lack), dir))
	}
	return lines
}

// firstNames returns the first names of a list.
func firstNames(names []string) string {
	more := ""
	if len(names) > namedEdits {
		more = fmt.Sprintf(" and %d more", len(names)-namedEdits)
		names = names[:namedEdits]
	}
	return strings.Join(names, ", ") + more
}
