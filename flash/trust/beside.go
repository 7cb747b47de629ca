package trust

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// maxLinks is how many symbolic links the kernel follows in a path.
const maxLinks = 40

// RefuseBeside returns an error if one of the files, such as a list of signers, lies in or below
// folder, or its path has a link in folder: who supplied the folder may have supplied the file.
func RefuseBeside(folder string, files ...string) error {
	for _, file := range files {
		if suppliedBy(folder, file) {
			return fmt.Errorf("trust %s: it lies beside the files that it should prove, and came with them\nnext: ls -l %[1]s  # name a file from somebody whom you trust, outside of %s", file, folder)
		}
	}
	return nil
}

// suppliedBy reports whether file, or a symbolic link on its path, lies in folder, or has too many
// links to tell. It resolves the path link by link, as the kernel does.
func suppliedBy(folder, file string) bool {
	if !filepath.IsAbs(file) {
		dir, err := os.Getwd()
		if err != nil {
			return true
		}
		file = dir + "/" + file
	}
	at, rest, links := "/", strings.Split(file, "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name) // at holds no link, so .. is what it says
		target, err := os.Readlink(next)
		if name == ".." || err != nil {
			at = next
			continue
		}
		if links++; links > maxLinks || isBelow(at, folder) {
			return true
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = slices.Concat(strings.Split(target, "/"), rest)
	}
	return isBelow(filepath.Dir(at), folder)
}

// isBelow reports whether dir is folder or lies in it. Slipway's folder in the user's configuration
// lies in no folder above it, so that the user's own list works for files in the home folder.
func isBelow(dir, folder string) bool {
	top, err := os.Stat(folder)
	if err != nil {
		return false
	}
	var own os.FileInfo // nil without a home folder
	if dir, err := userConfigDir(); err == nil {
		own, _ = os.Stat(dir)
	}
	for {
		info, err := os.Stat(dir)
		if err == nil && os.SameFile(info, top) {
			return true
		}
		if dir == "/" || err == nil && own != nil && os.SameFile(info, own) {
			return false
		}
		dir = filepath.Dir(dir)
	}
}

// ReadRegular reads a regular file of up to most bytes. It refuses symbolic links, devices, FIFOs.
func ReadRegular(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("read %s: it is a symbolic link\nnext: readlink -f %s  # name that file", path, plaintext.Quote(path))
	}
	if err != nil {
		return nil, localfile.ExplainUnreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("read %s: it is no regular file", path)
	}
	if err != nil {
		return nil, err
	}
	return localfile.ReadAll(f, path, most)
}
