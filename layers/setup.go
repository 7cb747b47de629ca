package layers

// This file and setup_*.go read the project files of bitbake-setup (version 1.0)
// as bitbake-setup 2.19 does, and write the same conf/ for them. Where a file has
// several configurations, or lets people choose a fragment, the choice is written
// behind a number sign: poky.conf.json#poky,machine/qemuarm64,distro/poky.
//
// The file's keys are those of bitbake-setup's schema, which bitbake-setup itself
// does not look at: here an unknown key is an error. Commits are fixed by a file
// sources-fixed-revisions.json beside the project file, or by one whose name
// begins with the project file's, which Lock writes and bitbake-setup takes with
// --source-overrides.
//
// bitbake-setup does more, and does not do here: registries and addresses of
// project files, settings, a site.conf with folders for downloads, the script
// init-build-env, installing buildtools, a workspace for an editor, and rebasing
// local commits: a checkout with changes stops with a word about them, and so
// does an edited file in conf/ that the project file wants to change. Layers lie
// where the workspace says. A source on the local disk is used where it is,
// without a link to it.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/layers/lazy"
)

const (
	setupEnding  = ".conf.json"
	setupVersion = "1.0"
)

var (
	setupFile = &shape{kinds: dict, needs: []string{"version", "description", "sources", "bitbake-setup"}, keys: map[string]*shape{
		"description":   aText,
		"version":       aText,
		"expires":       aText,
		"sources":       setupSources,
		"bitbake-setup": {kinds: dict, needs: []string{"configurations"}, keys: map[string]*shape{"configurations": setupConfigurations()}},
	}}
	setupSources = &shape{kinds: dict, each: &shape{kinds: dict, keys: map[string]*shape{
		"path":               aText,
		"contains_this_file": {kinds: boolean},
		"local":              {kinds: dict, needs: []string{"path"}, keys: map[string]*shape{"path": aText}},
		"git-remote": {kinds: dict, needs: []string{"rev"}, keys: map[string]*shape{
			"uri":      aText,
			"branch":   aText,
			"rev":      aText,
			"describe": aText,
			"remotes":  {kinds: dict, each: &shape{kinds: dict, needs: []string{"uri"}, keys: map[string]*shape{"uri": aText}}},
		}},
	}}}
	fragments = &shape{kinds: list, each: &shape{kinds: text | dict, needs: []string{"name"}, keys: map[string]*shape{"name": aText, "description": aText}}}
)

var oneOf = &shape{kinds: dict, needs: []string{"description", "options"}, keys: map[string]*shape{"description": aText, "options": fragments}}

func setupConfigurations() *shape {
	c := &shape{kinds: dict, keys: map[string]*shape{
		"name":                         aText,
		"description":                  aText,
		"notes":                        {kinds: text | list, each: aText},
		"bb-layers":                    aList,
		"bb-layers-file-relative":      aList,
		"oe-template":                  aText,
		"oe-fragments":                 fragments,
		"oe-fragments-one-of":          {kinds: dict, each: oneOf},
		"bb-env-passthrough-additions": aList,
		"setup-dir-name":               aText,
		"install-buildtools":           {kinds: dict, keys: map[string]*shape{"url": aText, "sha256sum": aText}},
	}}
	all := &shape{kinds: list, each: c}
	c.keys["configurations"] = all
	return all
}

// setup is a bitbake-setup file with its choices made.
type setup struct {
	file        *value
	sources     *value              // with those of the lock file
	toLock      map[string]lockable // by id
	chain       []*value            // the chosen configuration, after those around it
	description string
	notes       string
	template    string
	layers      []*value // of bb-layers
	beside      []*value // of bb-layers-file-relative
	fragments   []string // as they are enabled
}

// cutSetup takes the choices from the name of a bitbake-setup file.
func cutSetup(name string) (file string, choices []string, ok bool) {
	file, words, chosen := strings.Cut(name, setupEnding+"#")
	if !chosen {
		return name, nil, strings.HasSuffix(name, setupEnding)
	}
	return file + setupEnding, strings.Split(words, ","), true
}

// setupLockPath returns the lock file of a bitbake-setup file: one for it alone, or one
// for its folder with the name that bitbake-setup uses.
func setupLockPath(file string) string {
	const fixed = "sources-fixed-revisions.json"
	own := strings.TrimSuffix(file, setupEnding) + "." + fixed
	if shared := filepath.Join(filepath.Dir(file), fixed); !exists(own) && exists(shared) {
		return shared
	}
	return own
}

func loadSetup(file string, choices []string, ws Workspace) (Project, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return Project{}, err
	}
	if strings.Contains(file, ":") && !exists(abs) {
		return Project{}, fmt.Errorf("%s: a bitbake-setup file cannot be merged with others; give it alone", file)
	}
	s := &setup{}
	p := Project{
		Root: repositoryOf(filepath.Dir(abs)), BuildSystem: defaultBuildSystem,
		Targets: []string{defaultTarget}, Task: defaultTask, setup: s, local: ws.Local,
	}
	if s.file, p.Warnings, err = readJSON(abs, setupFile); err != nil {
		return Project{}, err
	}
	p.read = []string{abs, setupLockPath(abs)}
	if err := p.checkSetup(); err != nil {
		return Project{}, err
	}
	if err := p.chooseConfiguration(choices); err != nil {
		return Project{}, err
	}
	if err := p.readSources(setupLockPath(abs)); err != nil {
		return Project{}, err
	}
	if err := p.placeLayers(filepath.Dir(abs)); err != nil {
		return Project{}, err
	}
	for i := range p.Repos {
		if err := p.useLocal(&p.Repos[i]); err != nil {
			return Project{}, err
		}
		if r := p.Repos[i]; r.Local {
			s.sources.set(r.ID, r.withWholePath(newDict()))
		}
	}
	if err := p.checkLayers(ws, false); err != nil {
		return Project{}, err
	}
	return p, p.checkLocal()
}

// checkSetup checks the keys of the whole file.
func (p *Project) checkSetup() error {
	file := p.setup.file
	if v := file.get("version"); v.text != setupVersion {
		return v.at.errorf("version is %q; slipway reads %q", v.text, setupVersion)
	}
	end := file.get("expires")
	if end == nil {
		return nil
	}
	expires, err := parseDate(end.text)
	if err != nil {
		return end.at.errorf("expires is %q; want a date such as 2030-05-31", end.text)
	}
	if time.Now().After(expires) {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: this project file's support ended on %s; take a newer one", end.at, end.text))
	}
	return nil
}

// parseDate parses the usual forms of ISO 8601. A date without a time zone is the
// machine's own.
func parseDate(s string) (time.Time, error) {
	var first error
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", time.RFC3339} {
		at, err := time.ParseInLocation(layout, s, time.Local)
		if err == nil {
			return at, nil
		}
		first = err
	}
	return time.Time{}, first
}

// What of a project reaches a conf file or an environment is of these words, so
// that nothing in it ends a line, a quote or a name.
var (
	layerPath    = lazy.Regexp(`^[A-Za-z0-9_.][A-Za-z0-9_.+@/-]*$`)
	fragmentName = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)+$`)
	variableName = lazy.Regexp(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// placeLayers finds the repository of each layer. here is the file's folder.
func (p *Project) placeLayers(here string) error {
	for _, v := range p.setup.layers {
		i, rest := p.repoAround(v.text)
		switch {
		case !layerPath().MatchString(v.text) || !filepath.IsLocal(v.text):
			return v.at.errorf("bb-layers: %q is not a folder below the checkouts; name a layer outside them as a local source", v.text)
		case i < 0:
			return v.at.errorf("bb-layers: %q is in none of the sources (have %s)", v.text, strings.Join(p.sourceFolders(), ", "))
		}
		p.Repos[i].Layers = append(p.Repos[i].Layers, Layer{Name: rest})
	}
	own := Repo{ID: ".", Name: filepath.Base(p.Root), at: p.setup.file.at}
	for _, v := range p.setup.beside {
		rel, err := filepath.Rel(p.Root, filepath.Join(here, v.text))
		switch {
		case err != nil:
			return err
		case !layerPath().MatchString(v.text):
			return v.at.errorf("bb-layers-file-relative: %q is not the path of a folder", v.text)
		case !filepath.IsLocal(rel):
			return v.at.errorf("bb-layers-file-relative: %q leaves the repository %s; name it as a local source", v.text, p.Root)
		}
		own.Layers = append(own.Layers, Layer{Name: rel})
	}
	if len(own.Layers) > 0 {
		p.Repos = append(p.Repos, own)
	}
	return nil
}

// repoAround returns the repository around a path below the checkouts, with the path in
// it. It prefers a repository inside another one.
func (p *Project) repoAround(path string) (index int, rest string) {
	index, longest := -1, -1
	for i, folder := range p.sourceFolders() {
		rel, err := filepath.Rel(folder, filepath.Clean(path))
		if err == nil && filepath.IsLocal(rel) && len(folder) > longest {
			index, longest, rest = i, len(folder), rel
		}
	}
	return index, rest
}

// sourceFolders returns the folders of the sources, below the checkouts.
func (p *Project) sourceFolders() []string {
	var all []string
	for _, r := range p.Repos {
		all = append(all, r.Name)
	}
	return all
}

// checkEnvironment reads the variables that bitbake gets from the caller.
func (p *Project) checkEnvironment(names *value) error {
	if names == nil {
		return nil
	}
	p.Env = map[string]*string{}
	for _, v := range names.list {
		if !variableName().MatchString(v.text) {
			return v.at.errorf("bb-env-passthrough-additions: %q cannot be a variable", v.text)
		}
		p.Env[v.text] = nil
	}
	return nil
}

// expandHome replaces a leading ~/ by the user's home folder.
func expandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	home, err := os.UserHomeDir()
	if !ok || err != nil {
		return path
	}
	return filepath.Join(home, rest)
}
