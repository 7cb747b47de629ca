package layers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The versions of kas's format that Load reads.
const (
	oldestVersion = 1
	newestVersion = 23
)

const maxFiles = 200 // includes and lock files together

// Load reads a project file, the files that it includes and their lock files.
// Files that lie in other repositories are read from ws; what is missing there
// is checked out.
func Load(ctx context.Context, path string, ws Workspace) (Project, error) {
	if file, choices, ok := cutSetup(path); ok {
		p, err := loadSetup(file, choices)
		p.File = path
		return p, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return Project{}, err
	}
	l := loader{root: repositoryOf(filepath.Dir(abs))}
	if err := l.load(abs, nil); err != nil {
		return Project{}, err
	}
	p, err := l.project()
	p.File = path
	return p, err
}

// loader merges files in the order in which they are read, each over those before.
type loader struct {
	root     string
	files    int
	version  int
	merged   *value
	warnings []string
}

// load reads a file's lock file and includes before the file itself, so that the
// file wins. open are the files that include it.
func (l *loader) load(path string, open []string) error {
	if slices.Contains(open, path) {
		return fmt.Errorf("%s: includes itself through %s", path, strings.Join(open, ", "))
	}
	if l.files++; l.files > maxFiles {
		return fmt.Errorf("%s: more than %d included files", path, maxFiles)
	}
	v, warnings, err := readFile(path)
	if err != nil {
		return err
	}
	l.warnings = append(l.warnings, warnings...)
	if err := l.checkHeader(path, v); err != nil {
		return err
	}
	open = append(open, path)
	if lock := LockFile(path); exists(lock) {
		if err := l.load(lock, open); err != nil {
			return err
		}
	}
	if includes := v.get("header", "includes"); includes != nil {
		for _, include := range includes.list {
			if err := l.include(path, include, open); err != nil {
				return err
			}
		}
	}
	l.merged = merge(l.merged, v)
	return nil
}

func (l *loader) checkHeader(path string, v *value) error {
	version := v.get("header", "version")
	if version == nil {
		return fmt.Errorf("%s: no header.version; a project file begins with \"header:\" and, below it, \"  version: %d\"", path, newestVersion)
	}
	n, err := strconv.Atoi(version.text)
	if err != nil || n < oldestVersion || n > newestVersion {
		return version.at.errorf("header.version is %q; slipway reads %d to %d", version.text, oldestVersion, newestVersion)
	}
	l.version = max(l.version, n)
	return nil
}

// include finds an included file as kas does: from the repository's root or,
// failing that, beside the file that names it.
func (l *loader) include(from string, name *value, open []string) error {
	if name.kind != text {
		return name.at.errorf("an include needs a repo and a file, or is a path")
	}
	for _, base := range []string{l.root, filepath.Dir(from)} {
		path := filepath.Join(base, name.text)
		if !exists(path) {
			continue
		}
		if !inside(l.root, path) || filepath.IsAbs(name.text) {
			return name.at.errorf("include %q leaves its repository %s; move the file into it", name.text, l.root)
		}
		return l.load(path, open)
	}
	return name.at.errorf("include %q is neither in %s nor beside this file", name.text, l.root)
}

// inside says whether path, with its links followed, lies below root.
func inside(root, path string) bool {
	realRoot, err := filepath.EvalSymlinks(root)
	if err != nil {
		return false
	}
	realPath, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(realRoot, realPath)
	return err == nil && filepath.IsLocal(rel)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// LockFile is where the lock of a project file lies: a.yml has a.lock.yml.
func LockFile(path string) string {
	if file, _, ok := cutSetup(path); ok {
		return setupLock(file)
	}
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + ".lock" + ext
}

// repositoryOf returns the work tree that dir is in, of the repository around it
// where that one is a submodule; without git, dir itself.
func repositoryOf(dir string) string {
	start := dir
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		start = real
	}
	for at := start; ; at = filepath.Dir(at) {
		info, err := os.Stat(filepath.Join(at, ".git"))
		if err == nil && (info.IsDir() || !isSubmodule(at)) {
			return at
		}
		if at == filepath.Dir(at) {
			return dir
		}
	}
}

// A submodule's .git is a file that points into its parent's .git/modules; that
// of a linked work tree points elsewhere.
func isSubmodule(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, ".git"))
	return err == nil && strings.Contains(string(data), "/modules/")
}
