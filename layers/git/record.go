package git

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// Record is the state that Slipway brought a checkout to. With it, and git's own small files, a
// checkout that is up to date needs no run of git.
type Record struct {
	URL     string `json:"url"`
	Ref     string `json:"ref"`           // the branch or tag that was requested
	Commit  string `json:"commit"`        // as the server has it
	Pin     string `json:"pin,omitempty"` // the tag by whose id the project pins the commit
	Patches string `json:"patches"`       // a digest of those applied; "" for none
	Count   int    `json:"count"`         // of patches
	Head    string `json:"head"`          // the commit with the patches

	Unfetched unfetched `json:"unfetched,omitzero"`
}

// maxStateBytes limits the small files of git's and ours. A larger one is not what it should be.
const maxStateBytes = 1 << 18

func (t Tree) recordFile() string { return filepath.Join(t.gitDir, "slipway.json") }

// Record returns the tree's record, or an empty one if it cannot read one.
func (t Tree) Record() (r Record) {
	if err := json.Unmarshal(readSmall(t.recordFile()), &r); err != nil {
		return Record{}
	}
	return r
}

func (t Tree) writeRecord(r Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return localfile.Replace(t.recordFile(), data)
}

// Matches reports whether the record is of r's settings, except its patches.
func (c Record) Matches(r Remote) bool {
	return c.Head != "" && c.URL == r.storedURL() && c.Ref == r.ref() && (r.Commit == "" || c.Commit == r.Commit || c.Pin == r.Commit)
}

// IsCurrent reports whether the tree is at the commit, patched or not, that Slipway recorded for r.
func (t Tree) IsCurrent(r Remote) bool {
	c := t.Record()
	return c.Matches(r) && t.IsComplete() && t.headCommit() == c.Head
}

// headCommit returns the commit of HEAD from git's files, or "" if only git can tell.
func (t Tree) headCommit() string {
	head := strings.TrimSpace(string(readSmall(filepath.Join(t.gitDir, "HEAD"))))
	if ref, ok := strings.CutPrefix(head, "ref: "); ok {
		if !strings.HasPrefix(ref, "refs/heads/") || !filepath.IsLocal(ref) {
			return ""
		}
		head = strings.TrimSpace(string(readSmall(filepath.Join(t.gitDir, ref))))
	}
	if !IsCommit(head) {
		return ""
	}
	return head
}

// readSmall returns the content of a regular file of at most maxStateBytes, nil for anything else.
func readSmall(path string) []byte {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data, _ := localfile.Read(path, maxStateBytes)
	return data
}

// Slipway fetches no submodules and, without git-lfs, no files of Git LFS; nor does kas.
// A build that lacks them fails far from the cause, so they are named.

// unfetched are the submodules of a checkout, with the files that Git LFS stores elsewhere.
type unfetched struct {
	Submodules []string `json:"submodules,omitempty"`
	Files      []string `json:"lfs,omitempty"`
}

// maxUnfetched is how many of a kind are recorded.
const maxUnfetched = 20

// findUnfetched returns the index's submodules and LFS files, fetched or not: maxUnfetched of each.
func (t Tree) findUnfetched(ctx context.Context) (u unfetched, err error) {
	index, err := os.ReadFile(filepath.Join(t.gitDir, "index"))
	if err != nil || !bytes.Contains(index, []byte("attributes")) && !bytes.Contains(index, []byte("modules")) {
		return u, err // the index has the names, or what they do not share with the one before
	}
	names, err := t.list(ctx, "ls-files", "-z", "--", ".gitmodules", ":(glob)**/.gitattributes")
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
		lfs = lfs || bytes.Contains(readBeginning(filepath.Join(t.Dir, name), yaml.MaxFileBytes), []byte("filter=lfs"))
	}
	if lfs {
		names, err = t.list(ctx, "ls-files", "-z", "--", ":(attr:filter=lfs)")
		u.Files = limitNames(names)
	}
	return u, err
}

// readBeginning returns up to most bytes from the start of a regular file, and nil for anything
// else. It does not follow symbolic links: a link in a repository can point anywhere.
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

// limitNames returns at most maxUnfetched of the names, without those over 500 bytes.
func limitNames(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return len(name) > 500 })
	return names[:min(len(names), maxUnfetched)]
}

// listSubmodules returns the submodules in the index, at most maxUnfetched.
func (t Tree) listSubmodules(ctx context.Context) ([]string, error) {
	entries, err := t.list(ctx, "ls-files", "-z", "--stage")
	var paths []string
	for _, entry := range entries {
		if info, path, _ := strings.Cut(entry, "\t"); strings.HasPrefix(info, "160000 ") {
			paths = append(paths, path)
		}
	}
	return limitNames(paths), err
}

// missingWarnings returns a warning for empty submodules, and one for LFS files that are pointers.
func (u unfetched) missingWarnings(r Remote, dir string) []string {
	var lines, lack []string
	for _, path := range u.Submodules {
		if entries, err := os.ReadDir(filepath.Join(dir, path)); err == nil && len(entries) == 0 {
			lack = append(lack, plaintext.ShortLine(path))
		}
	}
	if len(lack) > 0 {
		lines = append(lines, fmt.Sprintf("repository %s has submodules, which Slipway does not fetch, nor does kas: %s; \"git -C %s submodule update --init\" does", r.ID, firstNames(lack), dir))
	}
	lack = nil
	for _, path := range u.Files {
		if bytes.HasPrefix(readBeginning(filepath.Join(dir, path), 64), []byte("version https://git-lfs.github.com/spec/")) {
			lack = append(lack, plaintext.ShortLine(path))
		}
	}
	if len(lack) > 0 {
		lines = append(lines, fmt.Sprintf("repository %s has files of Git LFS, of which only pointers are here: %s; install git-lfs, and \"git -C %s lfs pull\" fetches them", r.ID, firstNames(lack), dir))
	}
	return lines
}

// firstNames returns the first namedEdits names of a list, and the number of the others.
func firstNames(names []string) string { return strings.Join(firstOf(names, namedEdits), ", ") }
