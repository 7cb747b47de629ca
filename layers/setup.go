package layers

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// This file and setup_*.go read the project files of bitbake-setup (version 1.0) as bitbake-setup
// 2.19 does, and write the same conf/ for them. If a file has several configurations, or lets
// people choose a fragment, the user adds the choice after a number sign:
// poky.conf.json#poky,machine/qemuarm64,distro/poky.
//
// The file's keys are those of bitbake-setup's schema. bitbake-setup does not check them; Slipway
// rejects an unknown key. Commits are fixed by a file sources-fixed-revisions.json beside the
// project file, or by one whose name begins with the project file's, which Lock writes and
// bitbake-setup takes with --source-overrides.
//
// Slipway does not do the following: registries and addresses of project files, templates
// (oe-template), settings, a site.conf with folders for downloads, the script init-build-env,
// installing buildtools, a workspace for an editor, and rebasing local commits. A checkout with
// local changes is an error, and so is an edited file in conf/ that the project file would change.
// The workspace decides the folders of the layers. It uses a local source without a link.

const (
	setupEnding  = ".conf.json"
	setupVersion = "1.0"
)

var (
	setupFile = &yaml.Shape{Kinds: yaml.Dict, Needs: []string{"version", "description", "sources", "bitbake-setup"}, Keys: map[string]*yaml.Shape{
		"description":   yaml.AText,
		"version":       yaml.AText,
		"expires":       yaml.AText,
		"sources":       setupSources,
		"bitbake-setup": {Kinds: yaml.Dict, Needs: []string{"configurations"}, Keys: map[string]*yaml.Shape{"configurations": setupConfigurations()}},
	}}
	setupSources = &yaml.Shape{Kinds: yaml.Dict, Each: &yaml.Shape{Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{
		"path":               yaml.AText,
		"contains_this_file": {Kinds: yaml.Boolean},
		"local":              {Kinds: yaml.Dict, Needs: []string{"path"}, Keys: map[string]*yaml.Shape{"path": yaml.AText}},
		"git-remote": {Kinds: yaml.Dict, Needs: []string{"rev"}, Keys: map[string]*yaml.Shape{
			"uri":      yaml.AText,
			"branch":   yaml.AText,
			"rev":      yaml.AText,
			"describe": yaml.AText,
			"remotes":  {Kinds: yaml.Dict, Each: &yaml.Shape{Kinds: yaml.Dict, Needs: []string{"uri"}, Keys: map[string]*yaml.Shape{"uri": yaml.AText}}},
		}},
	}}}
	fragments = &yaml.Shape{Kinds: yaml.List, Each: &yaml.Shape{Kinds: yaml.Text | yaml.Dict, Needs: []string{"name"}, Keys: map[string]*yaml.Shape{"name": yaml.AText, "description": yaml.AText}}}
)

var oneOf = &yaml.Shape{Kinds: yaml.Dict, Needs: []string{"description", "options"}, Keys: map[string]*yaml.Shape{"description": yaml.AText, "options": fragments}}

// setupConfigurations returns the shape of a list of configurations, which may be nested.
func setupConfigurations() *yaml.Shape {
	c := &yaml.Shape{Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{
		"name":                         yaml.AText,
		"description":                  yaml.AText,
		"notes":                        {Kinds: yaml.Text | yaml.List, Each: yaml.AText},
		"bb-layers":                    yaml.AList,
		"bb-layers-file-relative":      yaml.AList,
		"oe-template":                  {Refused: "reads no templates; write the layers of its bblayers.conf.sample as bb-layers, and its local.conf.sample into site.conf"},
		"oe-fragments":                 fragments,
		"oe-fragments-one-of":          {Kinds: yaml.Dict, Each: oneOf},
		"bb-env-passthrough-additions": yaml.AList,
		"setup-dir-name":               yaml.AText,
		"install-buildtools":           {Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{"url": yaml.AText, "sha256sum": yaml.AText}},
	}}
	all := &yaml.Shape{Kinds: yaml.List, Each: c}
	c.Keys["configurations"] = all
	return all
}

// setup is a bitbake-setup file and the configuration that was chosen in it.
type setup struct {
	file        *yaml.Value
	sources     *yaml.Value         // with those of the lock file
	toLock      map[string]lockable // by id
	chain       []*yaml.Value       // the chosen configuration, after those around it
	description string
	notes       string
	layers      []*yaml.Value // of bb-layers
	beside      []*yaml.Value // of bb-layers-file-relative
	fragments   []string      // as they are enabled
}

// cutSetup splits FILE.conf.json#CHOICE,CHOICE into file and choices. ok is false for other files.
func cutSetup(name string) (file string, choices []string, ok bool) {
	file, words, chosen := strings.Cut(name, setupEnding+"#")
	if !chosen {
		return name, nil, strings.HasSuffix(name, setupEnding)
	}
	return file + setupEnding, strings.Split(words, ","), true
}

// setupLockPath returns the path of the lock file of a bitbake-setup file: its own, or else one for
// the whole folder with bitbake-setup's name, if that exists.
func setupLockPath(file string) string {
	const fixed = "sources-fixed-revisions.json"
	own := strings.TrimSuffix(file, setupEnding) + "." + fixed
	if shared := filepath.Join(filepath.Dir(file), fixed); !localfile.Exists(own) && localfile.Exists(shared) {
		return shared
	}
	return own
}

// loadSetup reads a bitbake-setup file and its lock, and applies choices and local folders.
func loadSetup(file string, choices []string, ws Workspace) (Project, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return Project{}, err
	}
	if strings.Contains(file, ":") && !localfile.Exists(abs) {
		return Project{}, fmt.Errorf("%s: a bitbake-setup file cannot be merged with others; give it alone", file)
	}
	s := &setup{}
	p := Project{
		Root: repositoryOf(filepath.Dir(abs)), BuildSystem: defaultBuildSystem,
		Targets: []string{defaultTarget}, Task: defaultTask, setup: s, local: ws.Local,
	}
	if s.file, p.Warnings, err = yaml.ReadSetup(abs, setupFile); err != nil {
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
			s.sources.Set(r.ID, r.withWholePath(yaml.NewDict()))
		}
	}
	if err := p.checkLayers(ws, false); err != nil {
		return Project{}, err
	}
	return p, p.checkLocal()
}

// checkSetup checks the file's version, and warns if the date in expires has passed.
func (p *Project) checkSetup() error {
	file := p.setup.file
	if v := file.Get("version"); v.Text != setupVersion {
		return v.At.Errorf("version is %q; slipway reads %q", v.Text, setupVersion)
	}
	end := file.Get("expires")
	if end == nil {
		return nil
	}
	expires, err := parseDate(end.Text)
	if err != nil {
		return end.At.Errorf("expires is %q; want a date such as 2030-05-31", end.Text)
	}
	if time.Now().After(expires) {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: this project file's support ended on %s; take a newer one", end.At, end.Text))
	}
	return nil
}

// parseDate parses a date, or a time without a zone, each in local time, or a time of RFC 3339.
func parseDate(s string) (time.Time, error) {
	for _, form := range []string{time.DateOnly, "2006-01-02T15:04:05"} {
		if at, err := time.ParseInLocation(form, s, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Parse(time.RFC3339, s)
}

// Every word of a project that reaches a conf file or an environment matches one of these, so that
// it cannot end a line, a quote or a name.
var (
	layerPath    = plaintext.Regexp(`^[A-Za-z0-9_.][A-Za-z0-9_.+@/-]*$`)
	fragmentName = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)+$`)
	variableName = plaintext.Regexp(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// placeLayers adds each layer to the repository that contains it, and those beside the project file
// to a new Repo of the project's own repository. here is the file's folder. Others are errors.
func (p *Project) placeLayers(here string) error {
	for _, v := range p.setup.layers {
		i, rest := p.repoAround(v.Text)
		switch {
		case !layerPath().MatchString(v.Text) || !filepath.IsLocal(v.Text):
			return v.At.Errorf("bb-layers: %q is not a folder below the checkouts; name a layer outside them as a local source", v.Text)
		case i < 0:
			return v.At.Errorf("bb-layers: %q is in none of the sources (have %s)", v.Text, strings.Join(p.sourceFolders(), ", "))
		}
		p.Repos[i].Layers = append(p.Repos[i].Layers, Layer{Name: rest})
	}
	own := Repo{Remote: git.Remote{ID: ".", At: p.setup.file.At}, Name: filepath.Base(p.Root)}
	for _, v := range p.setup.beside {
		rel, err := filepath.Rel(p.Root, filepath.Join(here, v.Text))
		switch {
		case err != nil:
			return err
		case !layerPath().MatchString(v.Text):
			return v.At.Errorf("bb-layers-file-relative: %q is not the path of a folder", v.Text)
		case !filepath.IsLocal(rel):
			return v.At.Errorf("bb-layers-file-relative: %q leaves the repository %s; name it as a local source", v.Text, p.Root)
		}
		own.Layers = append(own.Layers, Layer{Name: rel})
	}
	if len(own.Layers) > 0 {
		p.Repos = append(p.Repos, own)
	}
	return nil
}

// repoAround returns the index of the innermost repository that contains a path below the
// checkouts, or -1, and the path inside that repository.
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

// sourceFolders returns the name of each source's folder in the folder of the checkouts.
func (p *Project) sourceFolders() []string {
	var all []string
	for _, r := range p.Repos {
		all = append(all, r.Name)
	}
	return all
}

// useEnvironment sets p.Env to variables to pass to bitbake, without values. It refuses bad names.
func (p *Project) useEnvironment(names *yaml.Value) error {
	if names == nil {
		return nil
	}
	p.Env = map[string]*string{}
	for _, v := range names.List {
		if !variableName().MatchString(v.Text) {
			return v.At.Errorf("bb-env-passthrough-additions: %q cannot be a variable", v.Text)
		}
		p.Env[v.Text] = nil
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

// Limits for one configuration. Real ones stay far below.
const (
	maxName  = 200 // in bytes; names are joined from those of the configurations around
	maxItems = 500 // of sources, layers and fragments each
)

// setupKeys are the keys of a configuration, except its name and its nested configurations.
var setupKeys = []string{
	"description", "notes", "bb-layers", "bb-layers-file-relative", "oe-fragments",
	"oe-fragments-one-of", "bb-env-passthrough-additions", "install-buildtools", "setup-dir-name",
}

// chooseConfiguration finds the named configuration, merges it with those around it, and sets its
// layers, fragments, machine, distro and environment. words are the choices after the file's name.
func (p *Project) chooseConfiguration(words []string) error {
	s := p.setup
	var chains [][]*yaml.Value
	if err := listChains(s.file.Get("bitbake-setup", "configurations"), nil, &chains); err != nil {
		return err
	}
	words, err := s.pickConfiguration(chains, words)
	if err != nil {
		return err
	}
	parts := map[string]*yaml.Value{}
	for _, key := range setupKeys {
		if parts[key], err = mergeChain(s.chain, key); err != nil {
			return err
		}
	}
	if err := s.useParts(parts, words); err != nil {
		return err
	}
	p.Machine = s.builtinFragment("machine", defaultMachine)
	p.Distro = s.builtinFragment("distro", defaultDistro)
	return p.useEnvironment(parts["bb-env-passthrough-additions"])
}

// useParts stores the merged values of the chosen configuration in s, and enables its fragments.
// The configuration needs a description and bb-layers.
func (s *setup) useParts(parts map[string]*yaml.Value, words []string) error {
	leaf := s.chain[len(s.chain)-1]
	if parts["description"] == nil {
		return leaf.At.Errorf("configuration %q has no description", chainName(s.chain))
	}
	s.description = parts["description"].Text
	if layers := parts["bb-layers"]; layers != nil {
		if s.layers = layers.List; len(s.layers) > maxItems {
			return layers.At.Errorf("more than %d layers", maxItems)
		}
	}
	if len(s.layers) == 0 {
		return leaf.At.Errorf("configuration %q has no bb-layers, so bitbake-setup leaves conf/ to people; add them", chainName(s.chain))
	}
	if beside := parts["bb-layers-file-relative"]; beside != nil {
		s.beside = beside.List
	}
	if notes := parts["notes"]; notes != nil {
		s.notes = notes.Text
		if notes.Kind == yaml.List {
			s.notes = strings.Join(notes.Texts(), "\n")
		}
	}
	return s.useFragments(parts["oe-fragments"], parts["oe-fragments-one-of"], words)
}

// listChains appends to all each innermost configuration after those around it. An empty list fails.
func listChains(configurations *yaml.Value, around []*yaml.Value, all *[][]*yaml.Value) error {
	if len(configurations.List) == 0 {
		return configurations.At.Errorf("configurations is empty")
	}
	for _, c := range configurations.List {
		if own := c.Get("name").TextOr(""); len(own) > maxName || strings.ContainsFunc(own, yaml.IsControl) {
			return c.At.Errorf("a configuration's name is longer than %d bytes or holds a control character", maxName)
		}
		chain := append(slices.Clone(around), c)
		if inner := c.Get("configurations"); inner != nil {
			if err := listChains(inner, chain, all); err != nil {
				return err
			}
			continue
		}
		if chainName(chain) == "" {
			return c.At.Errorf("a configuration needs a name")
		}
		*all = append(*all, chain)
	}
	return nil
}

// chainName joins the names of a chain without a separator, to the name by which the user chooses.
func chainName(chain []*yaml.Value) string {
	var name strings.Builder
	for _, c := range chain {
		name.WriteString(c.Get("name").TextOr(""))
	}
	return name.String()
}

// pickConfiguration sets the configuration that the first word names, and returns the other words.
// If the file has a single configuration, no word need name it.
func (s *setup) pickConfiguration(chains [][]*yaml.Value, words []string) ([]string, error) {
	var names []string
	for _, chain := range chains {
		names = append(names, chainName(chain))
	}
	if len(words) > 0 {
		for i, name := range slices.Backward(names) { // of two with one name, bitbake-setup takes the last
			if name == words[0] {
				s.chain = chains[i]
				return words[1:], nil
			}
		}
	}
	if len(chains) == 1 {
		s.chain = chains[0]
		return words, nil
	}
	at := s.file.Get("bitbake-setup", "configurations").At
	if len(words) == 0 {
		return nil, at.Errorf("which configuration? A board's file must leave one; elsewhere write it behind the file's name: #%s (or %s)\nnext: layers dump %s", names[0], strings.Join(names[1:], ", "), plaintext.Quote(at.File+"#"+names[0]))
	}
	return nil, at.Errorf("no configuration is named %q (have %s)", words[0], strings.Join(names, ", "))
}

// mergeChain returns the value of a key in a chain of configurations, nil for none. It joins texts
// and lists, the outer first, as bitbake-setup does with Python's +, and refuses other kinds.
func mergeChain(chain []*yaml.Value, key string) (*yaml.Value, error) {
	var sum *yaml.Value
	for _, c := range chain {
		v := c.Get(key)
		switch {
		case v == nil:
		case sum == nil:
			sum = v
		case v.Kind != sum.Kind || v.Kind == yaml.Dict:
			return nil, v.At.Errorf("%s cannot be added to that of line %d, in a configuration around this one; keep one of them", key, sum.At.Line)
		case v.Kind == yaml.Text:
			sum = &yaml.Value{At: v.At, Kind: yaml.Text, Text: sum.Text + v.Text}
		default:
			sum = &yaml.Value{At: v.At, Kind: yaml.List, List: slices.Concat(sum.List, v.List)}
		}
	}
	return sum, nil
}

// useFragments enables the fixed fragments, then one of each choice, in bitbake-setup's order.
// words are the user's choices. A word that names no choice is an error.
func (s *setup) useFragments(fixed, oneOf *yaml.Value, words []string) error {
	all, err := fragmentNames(fixed)
	if err != nil {
		return err
	}
	var chosen []*yaml.Value
	if oneOf != nil {
		for _, key := range oneOf.Keys {
			option, err := chooseOne("oe-fragments-one-of."+key, oneOf.Dict[key], words)
			if err != nil {
				return err
			}
			chosen = append(chosen, option)
		}
	}
	for _, w := range words {
		if !slices.ContainsFunc(chosen, func(v *yaml.Value) bool { return v.Text == w }) {
			return s.file.Get("bitbake-setup").At.Errorf("configuration %q has no choice %q", chainName(s.chain), w)
		}
	}
	slices.SortFunc(chosen, func(a, b *yaml.Value) int { return cmp.Compare(a.Text, b.Text) })
	for _, f := range slices.Concat(all, chosen) {
		s.enableFragment(f.Text)
	}
	return nil
}

// fragmentNames returns the names in a list of fragments, which are texts or have a description.
func fragmentNames(v *yaml.Value) ([]*yaml.Value, error) {
	if v == nil {
		return nil, nil
	}
	if len(v.List) > maxItems {
		return nil, v.At.Errorf("more than %d fragments", maxItems)
	}
	var names []*yaml.Value
	for _, e := range v.List {
		if e.Kind == yaml.Dict {
			e = e.Get("name")
		}
		if !fragmentName().MatchString(e.Text) {
			return nil, e.At.Errorf("%q cannot be a fragment; one is named layer/path, machine/name or distro/name", e.Text)
		}
		names = append(names, e)
	}
	return names, nil
}

// chooseOne returns the one possible fragment among the words. None or two are an error about path.
func chooseOne(path string, possible *yaml.Value, words []string) (*yaml.Value, error) {
	options, err := fragmentNames(possible.Get("options"))
	if err != nil {
		return nil, err
	}
	var names []string
	var chosen []*yaml.Value
	for _, o := range options {
		names = append(names, o.Text)
		if slices.Contains(words, o.Text) {
			chosen = append(chosen, o)
		}
	}
	if len(chosen) != 1 {
		return nil, possible.At.Errorf("%s: choose one, for a board in oe-fragments, elsewhere behind the file's name (#configuration,fragment): %s", path, strings.Join(names, ", "))
	}
	return chosen[0], nil
}

// enableFragment adds a fragment as bitbake-config-build does: the last machine and distro count.
func (s *setup) enableFragment(fragment string) {
	if slices.Contains(s.fragments, fragment) {
		return
	}
	kind, _, _ := strings.Cut(fragment, "/")
	if kind == "machine" || kind == "distro" {
		s.fragments = slices.DeleteFunc(s.fragments, func(f string) bool { return strings.HasPrefix(f, kind+"/") })
	}
	s.fragments = append(s.fragments, fragment)
}

// builtinFragment returns NAME of the enabled fragment kind/NAME, or otherwise if there is none.
func (s *setup) builtinFragment(kind, otherwise string) string {
	for _, f := range s.fragments {
		if name, ok := strings.CutPrefix(f, kind+"/"); ok {
			return name
		}
	}
	return otherwise
}
