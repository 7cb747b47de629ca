package starter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Write puts files into a folder, which it makes if it is not there. It replaces no file. If it
// fails or ctx ends, it leaves nothing behind. If it is killed, it leaves the marker.
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

// LeaveOutExisting takes all files that exist already out of a plan, and returns them.
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

// marker lists the files of a Write that has not ended. A killed Write leaves it.
const marker = ".slipway-init"

// CheckEnded refuses a folder whose files a Write did not write to the end.
func CheckEnded(folder string) error {
	list := filepath.Join(folder, marker)
	if _, err := os.Lstat(list); err != nil {
		return nil // Write says what is wrong with the folder
	}
	return fmt.Errorf("%s: another init still writes here, or one was killed: the files that it lists may be incomplete. Remove them, then the list\nnext: cat %s", plaintext.OneLine(list), plaintext.Quote(plaintext.OneLine(list)))
}

// Check refuses what Write would refuse because files exist already.
func Check(_ context.Context, folder string, files []File) error {
	if err := CheckEnded(folder); err != nil {
		return err
	}
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
	w := writer{root: root}
	var list strings.Builder
	for _, f := range files {
		fmt.Fprintln(&list, f.Path)
	}
	err = w.write(marker, list.String())
	for _, f := range files {
		if err == nil {
			err = errors.Join(context.Cause(ctx), w.makeFolder(path.Dir(f.Path)))
		}
		if err == nil {
			err = w.write(f.Path, f.Text)
		}
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		return errors.Join(err, w.undo())
	}
	return root.Remove(marker)
}

// writer remembers what it put into a folder. No path leads out of that, through whatever link.
type writer struct {
	root *os.Root
	made []string // files and folders
}

// write writes a file that is not there yet.
func (w *writer) write(name, text string) error {
	file, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	w.made = append(w.made, name)
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

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
