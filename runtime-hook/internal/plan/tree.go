package plan

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

// maxLinks is the kernel's own limit on the links of one path.
const maxLinks = 40

// maxMatches limits the matches of one pattern, maxLooks the names compared with all patterns.
const (
	maxMatches = 4096
	maxLooks   = 1 << 17
)

// meta are the characters that make a path a pattern.
const meta = `*?[\`

// tree is a file tree in which "/" is root: a board's own, or an image's on the machine that built
// it. Symlinks resolve within it. All paths of its methods are absolute within it.
type tree struct {
	*watcher
	root          string
	dirs          map[string]string // resolved folders, because most entries share theirs
	namesCompared int               // names that patterns were compared with
}

func newTree(root string, w *watcher) *tree {
	return &tree{watcher: w, root: strings.TrimSuffix(root, "/"), dirs: map[string]string{}}
}

// hostPath returns the path of p outside of the tree.
func (t *tree) hostPath(p string) string { return t.root + p }

func (t *tree) lstat(p string) (fs.FileInfo, error) {
	t.watchPath(t.hostPath(p))
	return os.Lstat(t.hostPath(p))
}

// readlink returns the text of the link at p, "" if p is no link. A missing p is an error.
func (t *tree) readlink(p string) (string, error) {
	t.watchPath(t.hostPath(p))
	text, err := os.Readlink(t.hostPath(p))
	if errors.Is(err, syscall.EINVAL) {
		return "", nil
	}
	return text, err
}

// stat follows and watches p's symlinks. It returns the path at their end, and its file info.
func (t *tree) stat(p string) (end string, info fs.FileInfo, err error) {
	if end, err = t.resolveFolder(p); err == nil {
		end, err = t.walkLinks(path.Dir(end), path.Base(end))
	}
	if err == nil {
		info, err = t.lstat(end)
	}
	return end, info, err
}

// resolveFolder follows the symlinks of p's folder, but not p itself. It caches folders in t.dirs.
func (t *tree) resolveFolder(p string) (string, error) {
	dir, base := path.Split(path.Clean(p))
	real, ok := t.dirs[dir]
	if !ok {
		var err error
		if real, err = t.walkLinks("/", dir); err != nil {
			return "", err
		}
		t.dirs[dir] = real
	}
	return path.Join(real, base), nil
}

// nextTarget returns the target of the symlink p with this text, with the links of the target's
// folder followed. p's own folder must be resolved.
func (t *tree) nextTarget(p, text string) (string, error) {
	if path.IsAbs(text) {
		return t.resolveFolder(text)
	}
	dir, base := path.Split(strings.TrimRight(text, "/"))
	if base == "" || base == "." || base == ".." {
		return t.walkLinks(path.Dir(p), text)
	}
	real, err := t.walkLinks(path.Dir(p), dir)
	return path.Join(real, base), err
}

// walkLinks follows the symlinks of rest, starting in the resolved folder at, one path element at a
// time: the element before a ".." must be resolved first. Each element must exist, and is watched.
func (t *tree) walkLinks(at, rest string) (string, error) {
	links := 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		p := path.Join(at, part)
		info, err := t.lstat(p)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = p
			continue
		}
		text, err := os.Readlink(t.hostPath(p))
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "resolve", Path: p, Err: syscall.ELOOP}
		}
		if path.IsAbs(text) {
			at = "/"
		}
		rest = text + "/" + rest
	}
	return at, nil
}

// expandPattern returns the existing paths that match the pattern p. If p is no pattern, or exists
// literally with brackets in its name, it returns only p.
func (t *tree) expandPattern(p string) ([]string, error) {
	if !strings.ContainsAny(p, meta) || t.hasPath(p) {
		return []string{p}, nil
	}
	found := []string{"/"}
	for _, part := range strings.Split(strings.TrimPrefix(p, "/"), "/") {
		var err error
		if found, err = t.globPart(found, part); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(found, func(p string) bool { return !t.hasPath(p) }), nil
}

// hasPath reports whether p exists. It does not follow a link at p itself.
func (t *tree) hasPath(p string) bool {
	at, err := t.resolveFolder(p)
	if err != nil {
		return false
	}
	_, err = t.lstat(at)
	return err == nil
}

var (
	errMatches = errors.New("the pattern matches too much")
	errLooks   = errors.New("this pattern and those before it search too many folders")
)

// globPart joins each of dirs with the names in it that match part, or with part if that is no
// pattern. It fails above maxMatches or maxLooks.
func (t *tree) globPart(dirs []string, part string) ([]string, error) {
	var found []string
	for _, dir := range dirs {
		if t.namesCompared > maxLooks {
			return nil, errLooks
		}
		names := []string{part}
		if strings.ContainsAny(part, meta) {
			names = t.matchNames(dir, part)
		}
		for _, name := range names {
			found = append(found, path.Join(dir, name))
		}
		if len(found) > maxMatches {
			return nil, errMatches
		}
	}
	return found, nil
}

// matchNames returns the names in dir, in UTF-8, that match; none if it cannot read dir. It watches
// dir, and counts the names in t.namesCompared.
func (t *tree) matchNames(dir, pattern string) []string {
	real, err := t.walkLinks("/", dir)
	if err != nil {
		return nil
	}
	t.watchFolder(t.hostPath(real))
	list, err := os.ReadDir(t.hostPath(real))
	if err != nil {
		return nil
	}
	t.namesCompared += len(list) + 1
	var names []string
	for _, f := range list {
		if ok, _ := path.Match(pattern, f.Name()); ok && utf8.ValidString(f.Name()) {
			names = append(names, f.Name())
		}
	}
	return names
}
