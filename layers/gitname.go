package layers

import (
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// git runs hooks and obeys the configuration in folders of its own. A project that puts
// files there has the user's next git command run them.

// namesGit reports whether a path has an element that a file system of Linux, macOS or
// Windows takes for .git. git itself refuses the same spellings in a repository.
func namesGit(path string) bool {
	for name := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		name = strings.Map(func(c rune) rune {
			if unicode.Is(unicode.Cf, c) { // HFS+ ignores these
				return -1
			}
			return c
		}, name)
		name, _, _ = strings.Cut(name, ":") // NTFS: a stream of the file
		name = strings.TrimRight(name, " .")
		if strings.EqualFold(name, ".git") || strings.EqualFold(name, "git~1") {
			return true
		}
	}
	return false
}

// gitFolderAround returns the folder of git's own that a path is in, with its links
// followed, or "". git looks for repositories in the same way: upwards, to the first one.
func gitFolderAround(path string) string {
	path = withoutLinks(path)
	for at := path; at != filepath.Dir(at); at = filepath.Dir(at) {
		_, err := os.Lstat(filepath.Join(at, ".git"))
		switch {
		case namesGit(filepath.Base(at)), at != path && exists(filepath.Join(at, "HEAD")) && exists(filepath.Join(at, "objects")) && exists(filepath.Join(at, "refs")):
			return at
		case err == nil && at != path:
			return ""
		}
	}
	return ""
}
