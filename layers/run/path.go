package run

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// systemFolders hold mke2fs, sfdisk and their like. An ordinary user of Debian
// has none of them in PATH.
var systemFolders = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// LookPath is exec.LookPath that knows the system's folders too.
func LookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if !errors.Is(err, exec.ErrNotFound) {
		return path, err
	}
	for _, dir := range systemFolders {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// completePath adds the system's folders to PATH, for programs that run others,
// as unshare and mmdebstrap do.
func completePath(env []string) []string {
	path := os.Getenv("PATH")
	if path == "" {
		return env
	}
	have := filepath.SplitList(path)
	for _, dir := range systemFolders {
		if !slices.Contains(have, dir) {
			path += string(filepath.ListSeparator) + dir
		}
	}
	return append(env, "PATH="+path)
}
