package layers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// The versions of kas's format that Load reads.
const (
	oldestVersion = 1
	newestVersion = 23
)

const maxFiles = 200 // includes and lock files together

// Load reads a project file, the files that it includes and their lock files, and merges them.
// Several files, as in "a.yml:b.yml", are merged from left to right. If files are included from
// other repositories, Load checks these out in ws. If that is missing and ws.Offline is set, it
// returns ErrNotHere and a project with only BuildSystem. Missing keys have the defaults of kas. A
// file named .conf.json is read as bitbake-setup reads it, without a checkout.
//
// It differs from kas on purpose. If a key takes a text, 12:30, no and 2024-01-02 are texts, with a
// warning, since kas refuses the file. Files of a repository with patches are read after patching.
// A layer, a patch or an include outside its git repository, and a key that is a number are errors;
// only patches may have numbers. As with kas, but with a warning, KAS_MACHINE, KAS_DISTRO,
// KAS_TARGET and KAS_TASK override the files.
func Load(ctx context.Context, files string, ws Workspace) (Project, error) {
	if file, choices, ok := cutSetup(files); ok {
		p, err := loadSetup(file, choices, ws)
		p.File = files
		return p, err
	}
	l, err := newLoader(files, ws)
	if err != nil {
		return Project{}, err
	}
	in, err := l.readAll(ctx)
	if errors.Is(err, ErrNotHere) {
		return in.partialProject(), err
	}
	if err != nil {
		return Project{}, err
	}
	return in.buildProject()
}

// loader reads a project's files until each repository with included files is at its commit.
type loader struct {
	given  string   // to Load
	files  []string // the same, with whole paths
	root   string
	ws     Workspace
	placed map[string]Repo // checked out so far, by id
	update []string        // repositories whose pins do not hold: see Lock
	pin    func(context.Context, Repo) (Repo, error)
}

// newLoader returns a loader for "a.yml:b.yml". It refuses an empty name beside others, and files
// in different repositories.
func newLoader(files string, ws Workspace) (*loader, error) {
	l := &loader{given: files, placed: map[string]Repo{}, ws: ws, pin: func(_ context.Context, r Repo) (Repo, error) { return r, nil }}
	var err error
	if l.ws.Dir, err = filepath.Abs(ws.Dir); err != nil {
		return nil, err
	}
	l.ws.Build = "" // only a checkout of the whole project writes bitbake's configuration
	trees := map[string]bool{}
	names := splitFiles(files)
	for _, name := range names {
		if named := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" }); name == "" && len(named) > 0 {
			return nil, fmt.Errorf("%s: a file's name is empty; a colon stands between two names\nnext: layers dump %s", files, plaintext.Quote(strings.Join(named, ":")))
		}
		path, err := filepath.Abs(name)
		if err != nil {
			return nil, err
		}
		l.files = append(l.files, path)
		trees[workTree(filepath.Dir(path))] = true
	}
	if len(trees) > 1 {
		return nil, fmt.Errorf("%s: the files lie in different repositories; move them into one", files)
	}
	l.root = repositoryOf(filepath.Dir(l.files[0]))
	return l, nil
}

// splitFiles splits "a.yml:b.yml" into its files, unless a file exists with that whole name.
func splitFiles(files string) []string {
	if localfile.Exists(files) {
		return []string{files}
	}
	return strings.Split(files, ":")
}

// maxRounds limits how often readAll checks out repositories and reads the files again.
const maxRounds = 20

// readAll reads all files, checks out the repositories that files are included from, and repeats
// that until no repository moves, at most maxRounds times: an included file may change the commit
// of its own repository. If a checkout fails, it also returns what it read.
func (l *loader) readAll(ctx context.Context) (*reading, error) {
	for range maxRounds {
		in, err := l.readOnce()
		if err != nil {
			return nil, err
		}
		moved, err := l.checkOutSources(ctx, in)
		if err != nil {
			return in, err
		}
		if !moved {
			return in, nil
		}
	}
	return nil, fmt.Errorf("%s: files of other repositories change again and again where those come from; pin a commit for each repository that is included from", l.given)
}

// checkOutSources checks out the repositories that files are included from. It returns true if this
// loader did not check out one of them yet, or not at this commit, so that the files must be read
// again. Otherwise an include of an unknown repository is an error.
func (l *loader) checkOutSources(ctx context.Context, in *reading) (bool, error) {
	p, moved := in.projectSettings(), false
	ids, lost := in.sourceRepos(p)
	for _, id := range ids {
		r, err := p.readRepo(id, p.merged.Get("repos", id))
		if err != nil {
			return false, err
		}
		if r, err = l.pin(ctx, r); err != nil {
			return false, err
		}
		if before, placed := l.placed[id]; !placed || !before.sameTree(r) {
			l.placed[id], moved = r, true
		}
		p.Repos = append(p.Repos, r)
	}
	if moved {
		return true, l.checkOutRepos(ctx, p)
	}
	if lost != nil {
		return false, lost.at.Errorf("include of %s: repos names no repository %q; enter the one that holds the file", lost.file, lost.repo)
	}
	return false, nil
}

// ErrNotHere ends an offline Load if files come from a repository that is not checked out.
var ErrNotHere = errors.New("files are included from it, and it is not checked out as the project wants it")

// checkOutRepos checks out p's repositories. Offline it only checks that they are at their commits.
func (l *loader) checkOutRepos(ctx context.Context, p Project) error {
	if !l.ws.Offline {
		return Checkout(ctx, p, l.ws)
	}
	for _, r := range p.Repos {
		if r.URL != "" && !git.TreeIn(p.Dir(l.ws, r), nil).IsCurrent(r.Remote) {
			return fmt.Errorf("%s: repos.%s: %w", r.At, r.ID, ErrNotHere)
		}
	}
	return nil
}

// sourceRepos returns, sorted, the repositories of included files, and those with patches for them.
// lost is the first include of an unknown repository, which a file not read yet may define.
func (in *reading) sourceRepos(p Project) (ids []string, lost *need) {
	repos := p.merged.Get("repos")
	for _, n := range in.needs {
		if repos.Get(n.repo) != nil {
			ids = append(ids, n.repo)
		} else if lost == nil {
			lost = &n
		}
	}
	for i := 0; i < len(ids); i++ {
		patches, _ := p.readPatches(ids[i], repos.Get(ids[i], "patches")) // place reads them again
		for _, patch := range patches {
			if repos.Get(patch.Repo) != nil && !slices.Contains(ids, patch.Repo) {
				ids = append(ids, patch.Repo)
			}
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(ids))), lost
}

// reading is one pass over all files. Each file is merged over those read before it.
type reading struct {
	*loader
	read     []string // files
	version  int
	merged   *yaml.Value
	locks    []lockFile
	needs    []need // in the order in which they were met
	warnings []string
}

// need is an include of a file in another repository.
type need struct {
	repo, file string
	at         yaml.Position
}

// source says how a file was reached: its repository, and the files that include it.
type source struct {
	root     string // of its repository
	external bool   // that is not the project's own
	first    bool
	lock     bool
	open     []string // the files that include it
}

// readOnce reads and merges all files once, with the includes and lock files that it finds.
func (l *loader) readOnce() (*reading, error) {
	in := &reading{loader: l}
	for i, path := range l.files {
		if err := in.readProjectFile(path, source{root: l.root, first: i == 0}); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// readProjectFile reads a file and merges it over what it includes and over its lock file, which
// are read first. It leaves out the pins that Lock updates. More than maxFiles files are an error.
func (in *reading) readProjectFile(path string, from source) error {
	if in.read = append(in.read, path); len(in.read) > maxFiles {
		return fmt.Errorf("%s: more than %d included files", path, maxFiles)
	}
	v, err := in.parseProjectFile(path)
	if err != nil {
		return err
	}
	below := source{root: from.root, external: from.external, open: append(slices.Clone(from.open), path)}
	if below.root, err = in.sourceDir(v, from); err != nil {
		return err
	}
	if err := in.readLockOf(path, below); err != nil {
		return err
	}
	if includes := v.Get("header", "includes"); includes != nil {
		for _, include := range includes.List {
			if err := in.readInclude(path, include, below); err != nil {
				return err
			}
		}
	}
	if from.lock {
		in.locks = append(in.locks, lockFile{path, v, from.external})
	}
	switch {
	case !from.lock:
		in.merged = yaml.Merge(in.merged, v)
	case !slices.Contains(in.update, AllPins):
		in.merged = yaml.Merge(in.merged, in.withoutUpdatedPins(v))
	}
	return nil
}

// parseProjectFile reads a .yml, .yaml or .json file, checks keys and version, adds to in.warnings.
func (in *reading) parseProjectFile(path string) (*yaml.Value, error) {
	if !slices.Contains([]string{".yml", ".yaml", ".json"}, filepath.Ext(path)) {
		return nil, fmt.Errorf("%s: a project file's name ends in .yml, .yaml or .json", path)
	}
	v, warnings, err := yaml.ReadFile(path, project)
	if err != nil {
		return nil, err
	}
	in.warnings = append(in.warnings, warnings...)
	return v, in.checkHeader(path, v)
}

// checkHeader checks header.version, and sets in.version to the highest. It turns "0.10" into 1.
func (in *reading) checkHeader(path string, v *yaml.Value) error {
	version := v.Get("header", "version")
	if version == nil {
		return fmt.Errorf("%s: no header.version; a project file begins with \"header:\" and, below it, \"  version: %d\"\nnext: head -n 5 %[1]s  # then add these two lines at its top", path, newestVersion)
	}
	if version.Kind == yaml.Text && version.Text == "0.10" { // what kas's first release wrote
		version = &yaml.Value{At: version.At, Kind: yaml.Number, Text: "1"}
		v.Get("header").Dict["version"] = version
	}
	n, err := strconv.Atoi(version.Text)
	if version.Kind == yaml.Text && err == nil {
		return version.At.Errorf("header.version is a text; write %d without quotes", n)
	}
	if version.Kind != yaml.Number || err != nil || n < oldestVersion || n > newestVersion {
		return version.At.Errorf("header.version is %q; slipway reads %d to %d", version.Text, oldestVersion, newestVersion)
	}
	in.version = max(in.version, n)
	return nil
}

// sourceDir returns the folder in which a file's includes are looked for: the root of its
// repository, or its _source_dir, which becomes in.root too. "kas menu" writes that key, as it puts
// its file elsewhere. Only the first file may have it.
func (in *reading) sourceDir(v *yaml.Value, from source) (string, error) {
	dir := v.Get("_source_dir")
	if dir == nil {
		return from.root, nil
	}
	if !from.first {
		return "", dir.At.Errorf("_source_dir is allowed in the first file only")
	}
	if info, err := os.Stat(dir.Text); err != nil || !info.IsDir() || !filepath.IsAbs(dir.Text) {
		return "", dir.At.Errorf("_source_dir %q is not the path of a folder here; write the file anew with \"kas menu\"", dir.Text)
	}
	in.root = dir.Text
	return dir.Text, nil
}

// readLockOf reads a project file's lock file, if it exists. A link out of its folder is an error.
func (in *reading) readLockOf(path string, from source) error {
	path = LockFile(path)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !isInside(filepath.Dir(path), path) {
		return fmt.Errorf("%s: leads to a file elsewhere; replace the link with the file", path)
	}
	from.lock = true
	return in.readProjectFile(path, from)
}

// readInclude reads the file that v names, for the file by, which includes it. It notes an include
// from another repository in needs, and reads that only if the repository is checked out.
func (in *reading) readInclude(by string, v *yaml.Value, from source) error {
	if v.Kind == yaml.Text {
		return in.readIncludedFile(v, from, filepath.Dir(by))
	}
	n := need{v.Get("repo").Text, v.Get("file").Text, v.At}
	in.needs = append(in.needs, n)
	r, placed := in.placed[n.repo]
	if !placed {
		return nil
	}
	from.root = Project{Root: repositoryOf(in.root)}.Dir(in.ws, r)
	from.external = from.root != repositoryOf(in.root)
	return in.readIncludedFile(v.Get("file"), from)
}

// readIncludedFile reads the file that findInclude returns. It refuses one that is being read.
func (in *reading) readIncludedFile(name *yaml.Value, from source, beside ...string) error {
	path, err := findInclude(name, from.root, beside...)
	if err != nil {
		return err
	}
	if slices.Contains(from.open, path) {
		return name.At.Errorf("include %q leads back to %s, which is being read; take this include out", name.Text, path)
	}
	return in.readProjectFile(path, from)
}

// findInclude returns the path of an included file with its links resolved. It looks in root, then,
// for older files, in the folders beside, and refuses a path outside of root.
func findInclude(name *yaml.Value, root string, beside ...string) (string, error) {
	path := name.Text
	if !filepath.IsAbs(path) {
		path = filepath.Join(root, name.Text)
		for _, dir := range beside {
			if _, err := os.Lstat(path); err != nil {
				path = filepath.Join(dir, name.Text)
			}
		}
	}
	_, err := os.Lstat(path)
	info, followed := os.Stat(path)
	switch {
	case err == nil && followed == nil && !isInside(root, path), !filepath.IsAbs(name.Text) && !filepath.IsLocal(name.Text):
		return "", name.At.Errorf("include %q leaves its repository %s; move the file into it, and write its path from there", name.Text, root)
	case err != nil:
		return "", name.At.Errorf("include %q is not in %s; write its path from there", name.Text, root)
	case followed != nil || !info.Mode().IsRegular():
		return "", name.At.Errorf("include %q is no file, or a link to none", name.Text)
	}
	if path, err = filepath.EvalSymlinks(path); strings.ContainsFunc(path, yaml.IsControl) {
		return "", name.At.Errorf("include %q leads to a file with a control character in its name; rename that", name.Text)
	}
	return path, err
}

// isInside reports whether path exists and, links resolved, is root or below it, and not in .git.
func isInside(root, path string) bool {
	realRoot, err := filepath.EvalSymlinks(root)
	if err != nil {
		return false
	}
	realPath, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(realRoot, realPath)
	return err == nil && filepath.IsLocal(rel) && !git.IsReserved(rel)
}

// LockFile returns the path of a project file's lock: a.lock.yml of a.yml, or setupLockPath's.
func LockFile(path string) string {
	if file, _, ok := cutSetup(path); ok {
		return setupLockPath(file)
	}
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + ".lock" + ext
}

// repositoryOf returns the git work tree around dir, or dir itself without git.
func repositoryOf(dir string) string { return cmp.Or(workTree(dir), dir) }

// workTree returns the git work tree around dir, links resolved, outside of submodules, or "".
func workTree(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	for at := dir; ; at = filepath.Dir(at) {
		// With os.Stat, Go's test cache would run a test again after each command of git.
		var info unix.Stat_t
		err := unix.Stat(filepath.Join(at, ".git"), &info)
		for err == unix.EINTR { // which os.Stat repeats too
			err = unix.Stat(filepath.Join(at, ".git"), &info)
		}
		if err == nil && (info.Mode&unix.S_IFMT == unix.S_IFDIR || !isSubmodule(at)) {
			return at
		}
		if at == filepath.Dir(at) {
			return ""
		}
	}
}

// isSubmodule reports whether .git is a file that points into the outer repository's .git/modules.
// The .git file of a linked work tree points elsewhere.
func isSubmodule(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, ".git"))
	return err == nil && strings.Contains(string(data), "/modules/")
}
