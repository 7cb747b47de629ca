// Package layers turns a project file into pinned checkouts with bitbake's conf/ folder. Project
// files are kas's, or bitbake-setup's if the name ends in .conf.json. It refuses keys that it does
// not read, so that no build differs silently from theirs. A project file comes from outside: it is
// read with limits, names no file outside its repository, and never reaches a shell.
package layers

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/yaml"
)

// Project is a project file with its includes and lock files merged.
type Project struct {
	File        string // as given to Load
	Root        string // the repository of the file; the file's own folder if there is none
	BuildSystem string // openembedded, isar-privileged or isar-rootless
	Machine     string
	Distro      string
	Targets     []string
	Task        string
	Repos       []Repo // in the order of the files

	Env          map[string]*string // default values; nil: passed on only where set
	LocalConf    map[string]string  // blocks of conf/local.conf, by name
	BBLayersConf map[string]string
	Warnings     []string // what is accepted but looks like a mistake
	version      int
	merged       *yaml.Value
	read         []string          // the files that were read, in their order
	local        map[string]string // of the workspace that the project was loaded for
	setup        *setup            // of a bitbake-setup file; nil for kas's
}

// Repo is one repository of a project.
type Repo struct {
	git.Remote
	Name    string // of its folder
	Locked  bool   // Commit comes from a lock file or another override
	Path    string
	Layers  []Layer
	Patches []Patch // in the order in which they are applied
	Local   bool    // Path is a folder of the user's, which is taken as it is in place of a checkout

	tagObject string // that Lock found at the server
}

// Layer is one layer of a repository.
type Layer struct {
	Name     string // its path in the repository; "" and "." are the repository itself
	Priority int
}

// Patch is a change that a project makes to a repository.
type Patch struct {
	ID   string
	Repo string // the id of the repository that holds the patch
	Path string // in that repository: a patch, or a folder with a quilt series
}

// Workspace is where a project's repositories are checked out.
type Workspace struct {
	Dir     string // of the checkouts
	Mirrors string // of mirrors that many workspaces share; "" for none
	Build   string // where Checkout writes bitbake's conf folder; "" for none
	Offline bool   // Load reads existing checkouts, or ends with ErrNotHere
	// Local are folders of the user's, by repository, that a build takes as they are in
	// place of checkouts. Load looks at them; the project knows them from then on.
	Local map[string]string
}

// Dir returns the folder of a repository: Path, absolute or in ws.Dir. Without a path that is Name
// in ws.Dir, or Root if the url is missing too. Without a url, Path may also be relative to the
// current folder, if ws.Dir has no such folder.
func (p Project) Dir(ws Workspace, r Repo) string {
	switch {
	case r.Path == "" && r.URL == "":
		return p.Root
	case r.Path == "":
		return filepath.Join(ws.Dir, r.Name)
	case filepath.IsAbs(r.Path):
		return r.Path
	}
	dir := filepath.Join(ws.Dir, r.Path)
	if here, err := filepath.Abs(r.Path); err == nil && r.URL == "" && !localfile.Exists(dir) && localfile.Exists(here) {
		return here // where kas looks: its work folder is the current one
	}
	return dir
}

// Block is one of the blocks of configuration that a project's files hold.
type Block struct {
	Name string
	File string
	Line int // of the text's first line
	Text string
}

// LocalConfBlocks returns the blocks of conf/local.conf with their places, sorted by name.
func (p Project) LocalConfBlocks() []Block {
	var all []Block
	for _, name := range slices.Sorted(maps.Keys(p.LocalConf)) {
		b := Block{Name: name, File: p.File, Line: 1, Text: p.LocalConf[name]}
		if v := p.merged.Get("local_conf_header", name); v != nil {
			b.File, b.Line = v.At.File, v.At.Line
			if strings.Contains(b.Text, "\n") {
				b.Line++ // it begins below the | of its key
			}
		}
		all = append(all, b)
	}
	return all
}

// KeyAt returns the place of a top-level key, such as machine, in the project's files, or else line
// 1 of the project file. For a bitbake-setup file it returns the place of the chosen configuration.
func (p Project) KeyAt(key string) (file string, line, column int) {
	at := yaml.Position{File: p.File, Line: 1, Column: 1}
	if p.setup != nil {
		at = p.setup.chain[len(p.setup.chain)-1].At
	} else if v := p.merged.Get(key); v != nil {
		at = v.At
	}
	return at.File, at.Line, at.Column
}
