package run

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// systemFolders hold programs such as mke2fs, and are not in the PATH of an ordinary Debian user.
var systemFolders = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// LookPath is exec.LookPath, but also looks in systemFolders.
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

// completePath appends PATH with systemFolders to env, for programs that start others with it. If
// this process has no PATH, env stays as it is.
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
