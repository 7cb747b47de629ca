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

// additions are what the user must add to files that many folders have already.
var additions = map[string]string{
	"README.md": ": add the commands below", ".gitignore": ": add the line /build/, so that git leaves out what is built",
}

// LeaveOut removes files from the plan that the folder has already: all of them, or only README.md
// and .gitignore. It returns them, with what the user must add.
func (p *Plan) LeaveOut(folder string, all bool) (kept []Edit) {
	p.Files = slices.DeleteFunc(p.Files, func(f File) bool {
		at := filepath.Join(folder, f.Path)
		if _, err := os.Lstat(at); err != nil || !all && additions[f.Path] == "" {
			return false
		}
		kept = append(kept, Edit{at, 1, "it is kept as it is" + additions[f.Path]})
		return true
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
