package localfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
)

// MkdirAll is os.MkdirAll with mode 0755. If a file is in the way, the error says how to move it.
func MkdirAll(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	if at, ok := errors.AsType[*os.PathError](err); ok && (errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EEXIST)) {
		return fmt.Errorf("%s is no folder, and Slipway needs one there\nnext: mv %s %s", at.Path, plaintext.Quote(at.Path), plaintext.Quote(at.Path+".old"))
	}
	return err
}

// Unwritable adds a next step to an error if it says that dir cannot be written: df for a full
// disk, else ls. An error that has a next step stays as it is.
func Unwritable(dir string, err error) error {
	look := "ls -ld"
	switch {
	case err == nil || strings.Contains(err.Error(), "\nnext: "):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		look = "df -h"
	case !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, fs.ErrPermission):
		return err
	}
	return fmt.Errorf("%w\nnext: %s %s", err, look, plaintext.Quote(NearestFolder(filepath.Join(dir, "x"))))
}

// Shorten returns the path relative to the current folder, if that is shorter.
func Shorten(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(here, path); err == nil && len(short) < len(path) {
		return short
	}
	return path
}

// ExplainUnreadable rewords a path error about a user's file, with a next step. Others stay.
func ExplainUnreadable(name string, err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) {
		return err
	}
	return fmt.Errorf("read %q on this machine: %w\nnext: ls %s", name, path.Err, plaintext.Quote(NearestFolder(name)))
}

// Exists reports whether a path leads to something that this process can find.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// IsRegular reports whether a path leads to a regular file.
func IsRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Remove removes files, up to the first error. A file that does not exist is no error.
func Remove(paths ...string) error {
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// FreeBytes returns how many bytes a user without special rights can still write to dir's file system.
func FreeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, &fs.PathError{Op: "find the free space of", Path: dir, Err: err}
	}
	return int64(min(s.Bavail, 1<<40)) * s.Frsize, nil // limited, because some file systems claim 2^64 blocks
}

// FolderBytes returns the size of a folder's files, and the first error of one that it leaves out.
func FolderBytes(dir string) (size int64, first error) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil { // else it was removed meanwhile
				size += info.Size()
			}
		}
		first = cmp.Or(first, err)
		return nil
	})
	return size, first
}

// NearestFolder returns the folder of a file, or the nearest folder above it that exists.
func NearestFolder(name string) string {
	above := filepath.Dir(filepath.Clean(name))
	for _, none := os.Stat(above); none != nil && above != "." && above != "/"; _, none = os.Stat(above) {
		above = filepath.Dir(above)
	}
	return above
}

// ResolveLinks returns a path with its links resolved. The path need not exist.
func ResolveLinks(path string) string { return followLinks(path, maxLinks) }

const maxLinks = 40 // as Linux

// followLinks resolves the links of a path that need not exist, in at most most steps.
func followLinks(path string, most int) string {
	if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) || most == 0 {
		return cmp.Or(real, path)
	}
	folder := followLinks(filepath.Dir(path), most-1)
	path = filepath.Join(folder, filepath.Base(path))
	link, err := os.Readlink(path)
	switch {
	case err != nil:
		return path
	case filepath.IsAbs(link):
		return followLinks(link, most-1)
	}
	return followLinks(filepath.Join(folder, link), most-1)
}

// QuoteGlob returns a glob pattern that matches only this path.
func QuoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
