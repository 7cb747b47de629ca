package starter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
)

// Write puts files into a folder, which it makes if it is not there. It replaces no file. Where
// it fails or ctx ends, it leaves nothing behind.
func Write(ctx context.Context, folder string, files []File) error {
	made, err := makeFolders(folder)
	if err == nil {
		err = writeInto(ctx, folder, files)
	}
	if err != nil {
		for _, dir := range slices.Backward(made) {
			_ = os.Remove(dir) // somebody else may use it by now
		}
	}
	return err
}

// makeFolders makes a folder with those above it, and returns the new ones, the highest first.
func makeFolders(folder string) (made []string, err error) {
	for dir := filepath.Clean(folder); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		made = append([]string{dir}, made...)
	}
	for i, dir := range made {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return made[:i], err
		}
	}
	return made, nil
}

// LeaveOut takes the files out of a plan that a repository often has already. It returns what
// the user adds to them.
func (p *Plan) LeaveOut(folder string) (edits []Edit) {
	p.Files = slices.DeleteFunc(p.Files, func(f File) bool {
		line, often := map[string]string{"README.md": "the commands below", ".gitignore": "the line /build/, so that git leaves out what is built"}[f.Path]
		at := filepath.Join(folder, f.Path)
		if _, err := os.Lstat(at); err != nil || !often {
			return false
		}
		edits = append(edits, Edit{at, 1, "it is kept as it is: add " + line})
		return true
	})
	return edits
}

// LeaveOutExisting takes all files out of a plan that are there already, and returns them.
func (p *Plan) LeaveOutExisting(folder string) (kept []Edit) {
	p.Files = slices.DeleteFunc(p.Files, func(f File) bool {
		at := filepath.Join(folder, f.Path)
		_, err := os.Lstat(at)
		if err == nil {
			kept = append(kept, Edit{at, 1, "it is kept as it is"})
		}
		return err == nil
	})
	return kept
}

// stagePrefix begins the name of a folder of files that are not in their place yet.
const stagePrefix = ".slipway-init-"

// RemoveStale removes what a killed Write left in a folder: stages of this user's that nobody
// locks, with nothing but files that Write makes.
func RemoveStale(folder string) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil // Write says what is wrong with the folder
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if stageName().MatchString(e.Name()) && isStale(root, e.Name()) {
			err = errors.Join(err, root.RemoveAll(e.Name()))
		}
	}
	return err
}

var stageName = lazy.Regexp(`^\.slipway-init-[0-9a-f]{16}$`)

// isStale reports whether a folder is a stage that no Write uses.
func isStale(root *os.Root, name string) bool {
	info, err := root.Lstat(name)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != os.Getuid() {
		return false
	}
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !e.Type().IsRegular() || !stagedName().MatchString(e.Name()) }) {
		return false
	}
	unlock, err := lockStage(root, name)
	if err != nil {
		return false
	}
	unlock()
	return true
}

var stagedName = lazy.Regexp(`^[0-9]{1,3}$`)

// lockStage locks a stage as long as its Write runs. The kernel takes the lock of a killed one.
func lockStage(root *os.Root, name string) (unlock func(), err error) {
	dir, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return func() { _ = dir.Close() }, nil // which unlocks it
}

// Check refuses what Write would refuse because files exist already.
func Check(_ context.Context, folder string, files []File) error {
	var taken []string
	for _, f := range files {
		at := filepath.Join(folder, f.Path)
		if _, err := os.Lstat(at); err == nil {
			taken = append(taken, plaintext.Quote(plaintext.OneLine(at)))
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("already there, and Slipway replaces no file: %s\nnext: ls -l %s", strings.Join(taken, ", "), strings.Join(taken, " "))
	}
	return nil
}

func writeInto(ctx context.Context, folder string, files []File) error {
	if err := Check(ctx, folder, files); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	w := writer{root: root, stage: fmt.Sprintf(stagePrefix+"%016x", rand.Uint64())}
	if err := root.Mkdir(w.stage, 0o700); err != nil {
		return err
	}
	unlock, err := lockStage(root, w.stage)
	if err != nil {
		return errors.Join(err, root.Remove(w.stage))
	}
	defer unlock()
	err = w.place(ctx, files)
	if err != nil {
		err = errors.Join(err, w.undo())
	}
	return errors.Join(err, root.RemoveAll(w.stage))
}

// writer remembers what it put into a folder. No path leads out of that, through whatever link.
type writer struct {
	root  *os.Root
	stage string   // the folder of files that are not in their place yet
	made  []string // files and folders
}

// place writes all files before it gives the first one its name, by a link that replaces none.
func (w *writer) place(ctx context.Context, files []File) error {
	for i, f := range files {
		if err := errors.Join(context.Cause(ctx), w.root.WriteFile(w.staged(i), []byte(f.Text), 0o644)); err != nil {
			return err
		}
	}
	for i, f := range files {
		if err := errors.Join(context.Cause(ctx), w.makeFolder(path.Dir(f.Path))); err != nil {
			return err
		}
		if err := w.root.Link(w.staged(i), f.Path); err != nil {
			return err
		}
		w.made = append(w.made, f.Path)
	}
	return context.Cause(ctx)
}

func (w *writer) staged(i int) string { return path.Join(w.stage, fmt.Sprint(i)) }

// makeFolder makes a folder with those above it.
func (w *writer) makeFolder(dir string) error {
	if dir == "." {
		return nil
	}
	if err := w.makeFolder(path.Dir(dir)); err != nil {
		return err
	}
	err := w.root.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		w.made = append(w.made, dir)
	}
	return err
}

func (w *writer) undo() (err error) {
	for _, name := range slices.Backward(w.made) {
		err = errors.Join(err, w.root.Remove(name))
	}
	return err
}
