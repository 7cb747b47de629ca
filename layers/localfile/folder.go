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

// NotHere rewords an error about the path of a file that the user named, with a next step. Other
// errors stay as they are.
func NotHere(name string, err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) {
		return err
	}
	return fmt.Errorf("read %q on this machine: %w\nnext: ls %s", name, path.Err, plaintext.Quote(NearestFolder(name)))
}

// NearestFolder returns the folder of a file, or the nearest folder above it that exists.
func NearestFolder(name string) string {
	above := filepath.Dir(filepath.Clean(name))
	for _, none := os.Stat(above); none != nil && above != "." && above != "/"; _, none = os.Stat(above) {
		above = filepath.Dir(above)
	}
	return above
}
