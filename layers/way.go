package layers

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

// block is a file that a checkout would write over or delete, and that neither
// the index nor a commit holds.
type block struct {
	path string
	id   string // of the blob that the commit has at this very path
}

// inTheWay lists the blocks of a commit. Git counts ignored files as worthless;
// here they are the user's like any other.
func (t tree) inTheWay(ctx context.Context, commit string) ([]block, error) {
	names, err := t.list(ctx, "ls-files", "-z", "--cached")
	if err != nil {
		return nil, err
	}
	entries, err := t.list(ctx, "ls-tree", "-r", "-z", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	w := way{dir: t.dir, known: make(map[string]bool, len(names)), seen: map[string]bool{}}
	for _, name := range names {
		w.known[name] = true
	}
	for _, entry := range entries {
		info, path, _ := strings.Cut(entry, "\t")
		words := strings.Fields(info) // mode, type, id
		if len(words) != 3 {
			return nil, fmt.Errorf("%s: git lists commit %s with %q", t.dir, commit, entry)
		}
		if !writable(path) {
			return nil, fmt.Errorf("%s: commit %s has a file %q, which no checkout may write", t.dir, commit, path)
		}
		if err := w.add(path, words[2], words[1] == "commit"); err != nil {
			return nil, err
		}
	}
	return w.blocks, nil
}

// writable says that a path of a commit stays in the tree and out of .git.
func writable(path string) bool {
	return filepath.IsLocal(path) && !slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool {
		return part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git")
	})
}

// way looks for blocks in a tree. Links are never followed.
type way struct {
	dir    string
	known  map[string]bool // to the index
	seen   map[string]bool // folders, and whether a path goes on below them
	blocks []block
}

func (w *way) add(path, id string, submodule bool) error {
	free, err := w.open(filepath.Dir(path))
	if err != nil || !free {
		return err
	}
	info, err := os.Lstat(filepath.Join(w.dir, path))
	switch {
	case absent(err):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		w.found(path, id)
		return nil
	case submodule: // its folder is its own
		return nil
	}
	return filepath.WalkDir(filepath.Join(w.dir, path), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err = filepath.Rel(w.dir, name)
		w.found(name, "")
		return err
	})
}

// open says whether there is a folder at path; something else there is a block.
func (w *way) open(path string) (bool, error) {
	if path == "." {
		return true, nil
	}
	if free, ok := w.seen[path]; ok {
		return free, nil
	}
	free, err := w.open(filepath.Dir(path))
	if err == nil && free {
		free, err = w.folder(path)
	}
	w.seen[path] = free
	return free, err
}

func (w *way) folder(path string) (bool, error) {
	info, err := os.Lstat(filepath.Join(w.dir, path))
	if absent(err) {
		return false, nil
	}
	if err == nil && !info.IsDir() {
		w.found(path, "")
		return false, nil
	}
	return true, err
}

// absent says that nothing is there, and perhaps that nothing can be.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

func (w *way) found(path, id string) {
	if !w.known[path] {
		w.blocks = append(w.blocks, block{path, id})
	}
}

// written says that the file is whole and as the commit has it: git wrote it.
func (b block) written(dir string) bool {
	if b.id == "" {
		return false
	}
	id, err := blobID(filepath.Join(dir, b.path), len(b.id))
	return err == nil && id == b.id
}

// blobID is git's name for a file's content, in as many digits.
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
