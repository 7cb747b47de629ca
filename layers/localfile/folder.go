package localfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"slipway/layers/plaintext"

	"golang.org/x/sys/unix"
)

// MkdirAll is os.MkdirAll. If a file is in the way, the error says how to move it.
func MkdirAll(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	var at *os.PathError
	if errors.As(err, &at) && (errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EEXIST)) {
		return fmt.Errorf("%s is no folder, and Slipway needs one there\nnext: mv %s %s", at.Path, plaintext.Quote(at.Path), plaintext.Quote(at.Path+".old"))
	}
	return err
}

// Unwritable adds a next step to an error if it says that dir cannot be written.
func Unwritable(dir string, err error) error {
	if !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w\nnext: ls -ld %s", err, plaintext.Quote(dir))
}

// ExplainUnreadable rewords an error about the path of a file that the user named, with a next step. Other
// errors stay as they are.
func ExplainUnreadable(name string, err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) {
		return err
	}
	return fmt.Errorf("read %q on this machine: %w\nnext: ls %s", name, path.Err, plaintext.Quote(NearestFolder(name)))
}

// FreeBytes returns how many bytes a user without special rights can still write to dir's file system.
func FreeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, &fs.PathError{Op: "find the free space of", Path: dir, Err: err}
	}
	return int64(min(s.Bavail, 1<<40)) * s.Frsize, nil // limited, because some file systems claim 2^64 blocks
}

// NearestFolder returns the folder of a file, or the nearest folder above it that exists.
func NearestFolder(name string) string {
	above := filepath.Dir(filepath.Clean(name))
	for _, none := os.Stat(above); none != nil && above != "." && above != "/"; _, none = os.Stat(above) {
		above = filepath.Dir(above)
	}
	return above
}
