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

// MkdirAll is os.MkdirAll that says what to do with a file in a folder's place.
func MkdirAll(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	var at *os.PathError
	if errors.As(err, &at) && (errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EEXIST)) {
		return fmt.Errorf("%s is no folder, and Slipway needs one there\nnext: mv %s %s", at.Path, plaintext.Quote(at.Path), plaintext.Quote(at.Path+".old"))
	}
	return err
}

// Unwritable adds to an error of a folder that cannot be written where to look.
func Unwritable(dir string, err error) error {
	if !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w\nnext: ls -ld %s", err, plaintext.Quote(dir))
}

// NotHere says that the named file of this machine cannot be read, and where to look
// for it. Errors that are not about a path stay as they are.
func NotHere(name string, err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) {
		return err
	}
	return fmt.Errorf("read %q on this machine: %w\nnext: ls %s", name, path.Err, plaintext.Quote(NearestFolder(name)))
}

// NearestFolder returns the folder of a file that is not there, or the nearest above it that is.
func NearestFolder(name string) string {
	above := filepath.Dir(filepath.Clean(name))
	for _, none := os.Stat(above); none != nil && above != "." && above != "/"; _, none = os.Stat(above) {
		above = filepath.Dir(above)
	}
	return above
}
