package lint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Project checks the configuration of a project, its own blocks and the user's files in the build
// folder, against the tables of names and the layers that are checked out.
func Project(p layers.Project, ws layers.Workspace, build string) ([]Finding, error) {
	sources, err := projectSources(p, build)
	if err != nil {
		return nil, err
	}
	l := LayersOf(p, ws)
	if l.Checkout != nil { // BBPATH has the build folder too
		l.Checkout.folders = append(l.Checkout.folders, build)
	}
	return Check(sources, l)
}

// Setting returns the unexpanded value of a variable after the project's configuration in the build
// folder. given is the value before that, from the environment, or ""; ?= leaves it as it is.
func Setting(p layers.Project, build, name, given string) (string, error) {
	sources, err := projectSources(p, build)
	if err != nil {
		return "", err
	}
	var all []Statement
	for _, src := range sources {
		statements, _, err := parseConf(src)
		if err != nil {
			return "", err
		}
		all = append(all, statements...)
	}
	return assignedValue(all, name, given), nil
}

// assignedValue returns the value of a variable after all statements. given is its value before
// them. += and the like replace a ??= value, as in bitbake. It ignores statements with overrides.
func assignedValue(statements []Statement, name, given string) string {
	value, weak := given, given == ""
	for _, s := range statements {
		if s.Var != name || s.Flag != "" || !weak && strings.HasPrefix(s.Op, "?") {
			continue
		}
		before := plaintext.Either(weak, "", value)
		value, weak = s.Value, strings.HasPrefix(s.Op, "??")
		switch s.Op {
		case "+=":
			value = before + " " + s.Value
		case "=+":
			value = s.Value + " " + before
		case ".=":
			value = before + s.Value
		case "=.":
			value = s.Value + before
		}
	}
	return value
}

// projectSources returns a project's configuration in bitbake's order: machine and distro,
// site.conf, auto.conf, the project's own blocks and local.conf.
func projectSources(p layers.Project, build string) ([]Source, error) {
	var sources []Source
	for _, s := range []struct{ assign, key, value string }{{`MACHINE ??= "`, "machine", p.Machine}, {`DISTRO ??= "`, "distro", p.Distro}} {
		file, line, column := p.KeyAt(s.key)
		sources = append(sources, Source{file, line, s.assign + s.value + `"`, column - 1 - len(s.assign)})
	}
	for _, name := range []string{"site.conf", "auto.conf", "local.conf"} {
		if name == "local.conf" { // which the project's blocks become
			for _, b := range p.LocalConfBlocks() {
				sources = append(sources, Source{b.File, b.Line, b.Text, blockIndent(b)})
			}
		}
		src, err := Read(filepath.Join(build, "conf", name))
		switch {
		case err == nil:
			sources = append(sources, src)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return sources, nil
}

// blockIndent returns by how many columns a project file indents a block, 0 if that is unknown.
func blockIndent(b layers.Block) int {
	src, err := Read(b.File)
	if err != nil {
		return 0
	}
	lines := strings.Split(src.Text, "\n")
	for i, text := range strings.Split(b.Text, "\n") {
		if at := b.Line - 1 + i; text != "" && at < len(lines) {
			return max(strings.Index(lines[at], text), 0)
		}
	}
	return 0
}

// Branch returns the tables' layers of a meta-tegra branch or Yocto release, without a project.
func Branch(branch string) (Layers, error) {
	release := seriesOf(branch)
	l := Layers{Branch: map[string]string{}, Others: true}
	for _, t := range tables() {
		switch {
		case t.branchBit(branch) != 0:
			l.Branch[t.layer] = branch
		case t.branchBit(release) != 0:
			l.Branch[t.layer] = release
		}
	}
	if branch == "" {
		return l, fmt.Errorf("--branch is missing: the branch of meta-tegra, or the release of Yocto, that the configuration is for; known are %s", strings.Join(knownBranches(), " "))
	}
	if release == "" {
		near, _, _ := strings.Cut(plaintext.Nearest(branch, knownBranches()), " ")
		return l, fmt.Errorf("--branch: no branch %q of meta-tegra or release of Yocto is known%s (have %s)\nnext: repeat the line with --branch=%s", branch, plaintext.DidYouMean(branch, knownBranches()), strings.Join(knownBranches(), " "), cmp.Or(near, "master"))
	}
	return l, nil
}

// knownBranches returns the sorted names of Yocto's releases and of the tables' branches.
func knownBranches() []string {
	all := slices.Clone(series)
	for _, t := range tables() {
		all = append(all, slices.DeleteFunc(slices.Clone(t.branches), func(b string) bool { return strings.Contains(b, "@") })...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Read returns the content of a configuration file.
func Read(file string) (Source, error) {
	text, err := localfile.Read(file, maxTextBytes)
	if err != nil {
		return Source{}, localfile.ExplainUnreadable(file, err)
	}
	return Source{File: file, Line: 1, Text: string(text)}, nil
}

// layerAliases are other names of repositories of the tables' layers.
var layerAliases = map[string]string{"poky": "openembedded-core", "oe-core": "openembedded-core", "openembedded-core-contrib": "openembedded-core", "meta-oe": "meta-openembedded"}

// tableLayer returns which layer of the tables of names a repository is, by URL, name or ID, or "".
func tableLayer(r layers.Repo) string {
	for _, name := range []string{strings.TrimSuffix(path.Base(r.URL), ".git"), r.Name, r.ID} {
		if layer, ok := layerAliases[name]; ok {
			return layer
		}
		if slices.ContainsFunc(tables(), func(t table) bool { return t.layer == name }) {
			return name
		}
	}
	return ""
}

// LayersOf returns the layers of a project with their branches, and what Slipway reads of those
// that are checked out: recipes, the distro's configuration and, if none is missing, all files.
func LayersOf(p layers.Project, ws layers.Workspace) Layers {
	l := Layers{Branch: map[string]string{}}
	var folders []string
	for _, r := range p.Repos {
		layer := tableLayer(r)
		switch {
		case layer != "":
			l.Branch[layer] = r.Branch
			if r.Branch == "master" && (r.Commit != "" || r.Tag != "") {
				l.Branch[layer] = "" // it may be of any release
			}
		case len(r.Layers) > 0 && r.URL != "":
			l.Others = true
		}
		for _, sub := range r.Layers {
			folders = append(folders, filepath.Join(p.Dir(ws, r), sub.Name))
		}
	}
	for layer, branch := range l.Branch { // a layer with only a commit follows the others
		if branch == "" {
			l.Branch[layer] = seriesOf(l.releaseBranch())
		}
	}
	l.Recipes = sync.OnceValue(func() map[string]bool { return namesFromFiles(folders) })
	if !namesLayers(p.BBLayersConf) {
		l.Checkout = newCheckout(folders)
	}
	l.DistroName = p.Distro
	l.Distro, l.DistroKnown = readDistro(p.Distro, folders)
	return l
}

// moreLayers matches lines by which bblayers.conf may add layers.
var moreLayers = plaintext.Regexp(`(?m)^\s*(?:BBLAYERS|include|require|inherit)\b|\bINHERIT\b`)

// namesLayers reports whether blocks of bblayers.conf may name layers of their own.
func namesLayers(blocks map[string]string) bool {
	for _, text := range blocks {
		if moreLayers().MatchString(text) {
			return true
		}
	}
	return false
}

// namesFromFiles returns the recipes, machines, classes, image types and gcc versions that the
// files of layers define, with the prefixes of the tables.
func namesFromFiles(folders []string) map[string]bool {
	all := map[string]bool{}
	walkFiles(folders, func(file string) {
		ext := filepath.Ext(file)
		name := strings.TrimSuffix(filepath.Base(file), ext)
		switch ext {
		case ".bb":
			recipe, version, _ := strings.Cut(name, "_")
			all[recipe] = true
			if recipe == "gcc" {
				all[gccPrefix+version] = true
			}
		case ".conf":
			if filepath.Base(filepath.Dir(file)) == "machine" {
				all[machinePrefix+name] = true
			}
		case ".bbclass":
			all[classPrefix+name] = true
			src, _ := Read(file) // an unreadable class defines no names
			for _, m := range typeCommand().FindAllStringSubmatch(src.Text, -1) {
				all[typePrefix+m[1]] = true
			}
		}
	})
	return all
}

const maxLayerFiles = 200_000

// walkFiles calls found for each regular file below the folders, and for links to files, up to
// maxLayerFiles in each. A folder itself may be a link. It skips .git and unreadable folders.
func walkFiles(folders []string, found func(file string)) {
	for _, dir := range folders {
		seen := 0
		_ = filepath.WalkDir(dir+"/", func(file string, d fs.DirEntry, err error) error {
			if seen++; seen > maxLayerFiles {
				return fs.SkipAll // larger than any layer
			}
			if err != nil {
				return nil // one folder that cannot be read hides no other
			}
			if d.IsDir() && d.Name() == ".git" {
				return fs.SkipDir
			}
			if mode := d.Type(); mode.IsRegular() || mode == fs.ModeSymlink && localfile.IsRegular(file) { // as bitbake does, but for links to folders
				found(file)
			}
			return nil
		})
	}
}

// plainDistros are distros whose features are known without their files.
var plainDistros = []string{"", "poky", "nodistro"}

// readDistro returns the distro's configuration files in the checkouts, with the files that they
// include. known is false if one of them was not found. poky, nodistro and no distro need no files.
func readDistro(name string, folders []string) (all []Source, known bool) {
	if slices.Contains(plainDistros, name) {
		return nil, true
	}
	return readIncluded(path.Join("conf/distro", name+".conf"), folders, map[string]bool{})
}

// readIncluded returns the first layer's file with a name, after the files that it includes, each
// once. known is false if a file is missing, has a variable in its name, or comes after 100 others.
func readIncluded(name string, folders []string, seen map[string]bool) (all []Source, known bool) {
	if seen[name] {
		return nil, true
	}
	seen[name] = true
	if len(seen) > 100 || !filepath.IsLocal(name) || strings.Contains(name, "$") {
		return nil, false
	}
	for _, dir := range folders {
		src, err := Read(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		statements, _, err := parseConf(src)
		if err != nil {
			return nil, false
		}
		known = true
		for _, s := range statements {
			if s.Op != "" || !includeDirectives[s.Var] {
				continue
			}
			more, whole := readIncluded(s.Value, folders, seen)
			all, known = append(all, more...), known && whole
		}
		return append(all, src), known
	}
	return nil, false
}
