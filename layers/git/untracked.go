package git

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// untrackedFile is a file, maybe ignored, in a checkout's way that the index does not have.
type untrackedFile struct {
	path string
	id   string // of the blob that the commit has at this very path
}

// overwrittenFiles returns the untracked files that a checkout of the commit would overwrite. git
// overwrites ignored files; Slipway treats them as the user's. A path out of the tree is an error.
func (t Tree) overwrittenFiles(ctx context.Context, commit string) ([]untrackedFile, error) {
	names, err := t.list(ctx, "ls-files", "-z", "--cached")
	if err != nil {
		return nil, err
	}
	entries, err := t.list(ctx, "ls-tree", "-r", "-z", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	w := untrackedScan{dir: t.Dir, known: make(map[string]bool, len(names)), seen: map[string]bool{}}
	for _, name := range names {
		w.known[name] = true
	}
	for _, entry := range entries {
		info, path, _ := strings.Cut(entry, "\t")
		words := strings.Fields(info) // mode, type, id
		if len(words) != 3 {
			return nil, fmt.Errorf("%s: git lists commit %s with %q", t.Dir, commit, entry)
		}
		if !staysInTree(path) {
			return nil, fmt.Errorf("%s: commit %s has a file %q, which no checkout may write", t.Dir, commit, path)
		}
		if err := w.addEntry(path, words[2], words[1] == "commit"); err != nil {
			return nil, err
		}
	}
	return w.files, nil
}

// staysInTree reports whether a path of a commit stays in the tree and out of .git.
func staysInTree(path string) bool {
	return filepath.IsLocal(path) && !slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool {
		return part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git")
	})
}

// untrackedScan collects untracked files in a tree. It follows no links.
type untrackedScan struct {
	dir   string
	known map[string]bool // to the index
	seen  map[string]bool // folders, and whether there are more paths below them
	files []untrackedFile
}

// addEntry adds the untracked files in the way of one path of a commit: a file or all files of a
// folder at the path, or a file in place of a parent folder. It accepts a submodule's folder.
func (w *untrackedScan) addEntry(path, id string, submodule bool) error {
	free, err := w.hasFolder(filepath.Dir(path))
	if err != nil || !free {
		return err
	}
	info, err := os.Lstat(filepath.Join(w.dir, path))
	switch {
	case isAbsent(err):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		w.addFile(path, id)
		return nil
	case submodule: // its folder is its own
		return nil
	}
	return filepath.WalkDir(filepath.Join(w.dir, path), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err = filepath.Rel(w.dir, name)
		w.addFile(name, "")
		return err
	})
}

// hasFolder reports whether path is a folder in the tree, or adds the file that it or a parent is.
func (w *untrackedScan) hasFolder(path string) (bool, error) {
	if path == "." {
		return true, nil
	}
	if free, ok := w.seen[path]; ok {
		return free, nil
	}
	free, err := w.hasFolder(filepath.Dir(path))
	if err == nil && free {
		free, err = w.isFolder(path)
	}
	w.seen[path] = free
	return free, err
}

// isFolder is hasFolder for a path whose parent is a folder. It too adds the file that path is.
func (w *untrackedScan) isFolder(path string) (bool, error) {
	info, err := os.Lstat(filepath.Join(w.dir, path))
	if isAbsent(err) {
		return false, nil
	}
	if err == nil && !info.IsDir() {
		w.addFile(path, "")
		return false, nil
	}
	return true, err
}

// isAbsent reports whether an error means that a path does not exist.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

// addFile adds a file unless the index has it. id is the blob that the commit has in its place.
func (w *untrackedScan) addFile(path, id string) {
	if !w.known[path] {
		w.files = append(w.files, untrackedFile{path, id})
	}
}

// matchesCommit reports whether the file has the commit's content, so that git wrote it.
func (b untrackedFile) matchesCommit(dir string) bool {
	if b.id == "" {
		return false
	}
	id, err := blobID(filepath.Join(dir, b.path), len(b.id))
	return err == nil && id == b.id
}

// blobID returns git's ID of a file's or link's content: SHA-1 for 40 digits, otherwise SHA-256. It
// returns "" for anything else, such as a pipe.
func blobID(path string, digits int) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	link := info.Mode()&fs.ModeSymlink != 0
	if !link && !info.Mode().IsRegular() {
		return "", nil // opening a pipe would wait
	}
	var h hash.Hash = sha256.New()
	if digits == 2*sha1.Size {
		h = sha1.New()
	}
	fmt.Fprintf(h, "blob %d\x00", info.Size())
	if link {
		target, err := os.Readlink(path)
		io.WriteString(h, target)
		return hex.EncodeToString(h.Sum(nil)), err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}
