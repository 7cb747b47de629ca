package layers

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"slipway/layers/git"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/yaml"
)

// lockVersion is the version of a lock file: the oldest version of kas's format that has locks.
const lockVersion = 14

// lockFile is one lock file of a project with its content.
type lockFile struct {
	path     string
	v        *yaml.Value
	external bool // of another repository, which is not ours to change
}

// AllPins in the list update makes Lock update every repository.
const AllPins = "all"

// Lock writes the commits of the project's branches and tags into its lock files, as "kas lock"
// does. A repository without a pin gets the commit of its checkout or, without a checkout, the
// server's newest. Existing pins stay, except those of the IDs in update, or all for AllPins, which
// move to the server's newest commit. Lock never changes project files, and writes only changes.
func Lock(ctx context.Context, p Project, ws Workspace, update []string) error {
	if err := p.checkUpdate(update); err != nil {
		return err
	}
	return progress.Run(ctx, "lock", func(step *progress.Step) (string, error) {
		return lockRepos(ctx, step, p, ws, update)
	})
}

// lockRepos writes the pins as Lock does, and returns the text with which step ends.
func lockRepos(ctx context.Context, step *progress.Step, p Project, ws Workspace, update []string) (string, error) {
	if p.setup != nil {
		return lockSetup(ctx, p, update)
	}
	ws.Local = p.local
	l, err := newLoader(p.File, ws)
	if err != nil {
		return "", err
	}
	l.update = update
	l.pin = func(ctx context.Context, r Repo) (Repo, error) {
		if r.isFloating() {
			step.Detail(r.ID)
		}
		return l.pinRepo(ctx, r)
	}
	in, err := l.readAll(ctx)
	if err != nil {
		return "", err
	}
	floating, err := in.floatingRepos(ctx)
	if err != nil {
		return "", err
	}
	if len(floating) == 0 {
		return "nothing to pin: the project files pin all, or their lock files do, whose pins --update moves", nil
	}
	all := len(floating)
	moved, err := in.writeLocks(ctx, floating)
	return in.describePins(moved, all), err
}

// describePins returns a text: how many of all pins moved, and the lock file if there is only one.
func (in *reading) describePins(moved, all int) string {
	first := in.firstLock().path
	switch {
	case moved == 0:
		return fmt.Sprintf("nothing moved: %d of %d pins are at their servers' commits", all, all)
	case len(in.locks) == 0 || len(in.locks) == 1 && in.locks[0].path == first:
		return fmt.Sprintf("%d of %d pins are new, in %s", moved, all, first)
	}
	return fmt.Sprintf("%d of %d pins are new", moved, all)
}

// checkUpdate returns an error for a repository in update whose pin cannot move.
func (p Project) checkUpdate(update []string) error {
	for _, id := range update {
		i := slices.Index(p.repoIDs(), id)
		switch {
		case id == AllPins:
		case i < 0:
			return fmt.Errorf("the project has no repository %q%s (have %s)\nnext: layers dump %[4]s", id, plaintext.DidYouMean(id, p.repoIDs()), strings.Join(p.repoIDs(), ", "), plaintext.Quote(p.File))
		case p.Repos[i].Local:
			return fmt.Errorf("repository %s is the local folder %s, so its pin stays; lock it without SLIPWAY_LOCAL", id, p.Repos[i].Path)
		case p.Repos[i].URL == "":
			return fmt.Errorf("repository %s has no url, so no lock file pins it", id)
		case p.Repos[i].Commit != "" && !p.Repos[i].Locked:
			return p.Repos[i].At.Errorf("repos.%s: the project file itself pins the commit; change it there", id)
		}
	}
	return nil
}

// shouldUpdate reports whether update contains a repository or AllPins.
func shouldUpdate(update []string, id string) bool {
	return slices.Contains(update, id) || slices.Contains(update, AllPins)
}

// withoutUpdatedPins returns a lock file's content without the pins that Lock updates by their IDs.
func (l *loader) withoutUpdatedPins(lock *yaml.Value) *yaml.Value {
	out := yaml.Merge(yaml.NewDict(), lock)
	for _, id := range l.update {
		out.ReplacePath(nil, "overrides", "repos", id, "commit")
	}
	return out
}

// isFloating reports whether r has a url and no pinned commit: its server then decides the commit.
func (r Repo) isFloating() bool { return r.URL != "" && r.Commit == "" }

// pinRepo returns r with a commit: its own, its checkout's, or the server's newest. It asks the
// server if r has no checkout, or is to be updated. Without a url, r stays as it is.
func (l *loader) pinRepo(ctx context.Context, r Repo) (Repo, error) {
	if !r.isFloating() {
		return r, nil
	}
	if now := git.TreeIn((Project{Root: l.root}).Dir(l.ws, r), nil).Record(); now.Matches(r.Remote) && !shouldUpdate(l.update, r.ID) {
		r.Commit = now.Commit
		return r, nil
	}
	t, err := r.LookUp(ctx)
	r.Commit, r.tagObject = t.Commit, t.Object
	return r, err
}

// floatingRepos returns the repositories that no file pins, or whose pins Lock updates, each with
// the commit to lock.
func (in *reading) floatingRepos(ctx context.Context) ([]Repo, error) {
	p, err := in.buildProject()
	if err != nil {
		return nil, err
	}
	repos := slices.DeleteFunc(p.Repos, func(r Repo) bool { return !r.isFloating() })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for i, r := range repos {
		group.Go(func() (err error) {
			if placed, ok := in.placed[r.ID]; ok {
				r = placed // its files were read at that commit
			}
			repos[i], err = in.pinRepo(ctx, r)
			return err
		})
	}
	return repos, group.Wait()
}

// writeLocks writes the commits of repositories into every lock file that has a pin for them, and
// adds those without one to the first. It only warns of an old pin in another repository's file,
// and returns how many pins are new. kas changes no second pin, although the later file's counts.
func (in *reading) writeLocks(ctx context.Context, repos []Repo) (int, error) {
	moved, locked := map[string]bool{}, map[string]bool{}
	for _, file := range in.locks {
		changed := 0
		for _, r := range repos {
			entry := file.v.Get("overrides", "repos", r.ID)
			if entry.Get("commit") == nil {
				continue
			}
			locked[r.ID] = true
			if at := entry.Get("commit").Text; at == r.Commit || at == r.tagObject {
				continue
			}
			if file.external {
				progress.Warn(ctx, fmt.Sprintf("%s: locks %s to another commit than the newest; it is another repository's file and stays as it is", file.path, r.ID))
				continue
			}
			entry.Set("commit", &yaml.Value{Kind: yaml.Text, Text: r.Commit})
			moved[r.ID] = true
			changed++
		}
		if err := file.writeFile(changed); err != nil {
			return 0, err
		}
	}
	repos = slices.DeleteFunc(repos, func(r Repo) bool { return locked[r.ID] })
	return len(moved) + len(repos), in.firstLock().addPins(repos)
}

// firstLock returns the lock file beside the first project file, or a new one, not written yet.
func (in *reading) firstLock() lockFile {
	path := LockFile(in.files[0])
	for _, file := range in.locks {
		if file.path == path {
			return file
		}
	}
	header := yaml.NewDict()
	header.Set("version", &yaml.Value{Kind: yaml.Number, Text: strconv.Itoa(lockVersion)})
	v := yaml.NewDict()
	v.Set("header", header)
	return lockFile{path: path, v: v}
}

// addPins adds the commits of repositories to the lock file and writes it, if there are any.
func (f lockFile) addPins(repos []Repo) error {
	into := f.v
	for _, key := range []string{"overrides", "repos"} {
		if into.Get(key) == nil {
			into.Set(key, yaml.NewDict())
		}
		into = into.Get(key)
	}
	for _, r := range repos {
		if into.Get(r.ID) == nil {
			into.Set(r.ID, yaml.NewDict())
		}
		into.Get(r.ID).Set("commit", &yaml.Value{Kind: yaml.Text, Text: r.Commit})
	}
	return f.writeFile(len(repos))
}

// writeFile writes the lock file, YAML or JSON, and raises an older version to lockVersion. With 0
// changes it does nothing.
func (f lockFile) writeFile(changes int) error {
	if changes == 0 {
		return nil
	}
	if n, _ := strconv.Atoi(f.v.Get("header", "version").Text); n < lockVersion {
		f.v.Get("header").Set("version", &yaml.Value{Kind: yaml.Number, Text: strconv.Itoa(lockVersion)})
	}
	if filepath.Ext(f.path) != ".json" {
		return writeChanged(f.path, f.v.YAML())
	}
	content, err := f.v.JSON()
	if err != nil {
		return err
	}
	return writeChanged(f.path, content)
}

// lockSetup writes a changed lock file of bitbake-setup, and returns its path. Pins in update move.
func lockSetup(ctx context.Context, p Project, update []string) (string, error) {
	var mu sync.Mutex
	commits := map[string]string{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for id, source := range p.setup.toLock {
		if !source.repo.isFloating() {
			continue
		}
		if i := slices.IndexFunc(p.Repos, func(r Repo) bool { return r.ID == id && r.Locked && r.URL == source.repo.URL }); i >= 0 && !shouldUpdate(update, id) {
			mu.Lock()
			commits[id] = p.Repos[i].Commit
			mu.Unlock()
			continue
		}
		group.Go(func() error {
			t, err := source.repo.LookUp(ctx)
			mu.Lock()
			defer mu.Unlock()
			commits[id] = t.Commit
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	content, err := p.setupLockContent(commits)
	if err != nil {
		return "", err
	}
	return LockFile(p.File), writeChanged(LockFile(p.File), content)
}
