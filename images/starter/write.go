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
	w := writer{root: root, stage: fmt.Sprintf(".slipway-init-%016x", rand.Uint64())}
	if err := root.Mkdir(w.stage, 0o700); err != nil {
		return err
	}
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
