package starter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Write writes new files into a folder, which it makes if it is missing. It replaces no file and
// follows no link out of the folder. If it fails or ctx ends, the files that it made stay.
func Write(ctx context.Context, folder string, files []File) error {
	if err := Check(folder, files); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range files {
		if err := cmp.Or(context.Cause(ctx), root.MkdirAll(path.Dir(f.Path), 0o755)); err != nil {
			return err
		}
		file, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = file.WriteString(f.Text)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// LeaveOut removes README.md and .gitignore from the plan if the folder has them already. It
// returns what the user must add to the existing files.
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

// LeaveOutExisting removes all files that exist already from the plan, and returns them.
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

// Check returns an error if one of the files exists already, because Write replaces no file.
func Check(folder string, files []File) error {
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
