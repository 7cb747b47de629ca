package layers

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/layers/plaintext"
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
// Slipway does not do the following: registries and addresses of project files, settings, a
// site.conf with folders for downloads, the script init-build-env, installing buildtools, a
// workspace for an editor, and rebasing local commits. A checkout with local changes is an error,
// and so is an edited file in conf/ that the project file would change. The workspace decides the
// folders of the layers. A source on the local disk is used in its place, without a link to it.

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

// setupLockPath returns the lock file of a bitbake-setup file: its own, or one for its folder with
// the name that bitbake-setup uses.
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
	if s.file, p.Warnings, err = readSetup(abs, setupFile); err != nil {
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

// Every word of a project that reaches a conf file or an environment matches one of these, so that
// it cannot end a line, a quote or a name.
var (
	layerPath    = plaintext.Regexp(`^[A-Za-z0-9_.][A-Za-z0-9_.+@/-]*$`)
	fragmentName = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)+$`)
	variableName = plaintext.Regexp(`^[A-Za-z_][A-Za-z0-9_]*$`)
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

// Limits for one configuration. Real ones stay far below.
const (
	maxName  = 200 // in bytes; names are joined from those of the configurations around
	maxItems = 500 // of sources, layers and fragments each
)

// setupKeys are the keys of a configuration, except its name and the configurations in
// it.
var setupKeys = []string{
	"description", "notes", "oe-template", "bb-layers", "bb-layers-file-relative", "oe-fragments",
	"oe-fragments-one-of", "bb-env-passthrough-additions", "install-buildtools", "setup-dir-name",
}

// chooseConfiguration finds the named configuration, then makes its choices.
func (p *Project) chooseConfiguration(words []string) error {
	s := p.setup
	var chains [][]*value
	if err := listChains(s.file.get("bitbake-setup", "configurations"), nil, &chains); err != nil {
		return err
	}
	words, err := s.pickConfiguration(chains, words)
	if err != nil {
		return err
	}
	parts := map[string]*value{}
	for _, key := range setupKeys {
		if parts[key], err = mergeChain(s.chain, key); err != nil {
			return err
		}
	}
	if err := s.useParts(parts, words); err != nil {
		return err
	}
	if s.template != "" && s.layers != nil {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: bb-layers and oe-template: the template has layers of its own, which bitbake-setup leaves out here; drop one of the two", parts["oe-template"].at))
	}
	p.Machine = s.builtinFragment("machine", defaultMachine)
	p.Distro = s.builtinFragment("distro", defaultDistro)
	return p.checkEnvironment(parts["bb-env-passthrough-additions"])
}

// useParts takes over the parts of the chosen configuration.
func (s *setup) useParts(parts map[string]*value, words []string) error {
	leaf := s.chain[len(s.chain)-1]
	if parts["description"] == nil {
		return leaf.at.errorf("configuration %q has no description", chainName(s.chain))
	}
	s.description = parts["description"].text
	s.template = parts["oe-template"].textOr("")
	if layers := parts["bb-layers"]; layers != nil {
		if s.layers = layers.list; len(s.layers) > maxItems {
			return layers.at.errorf("more than %d layers", maxItems)
		}
	}
	if s.template == "" && len(s.layers) == 0 {
		return leaf.at.errorf("configuration %q has neither bb-layers nor oe-template, so bitbake-setup leaves conf/ to people; add one", chainName(s.chain))
	}
	if beside := parts["bb-layers-file-relative"]; beside != nil {
		if len(s.layers) == 0 {
			return beside.at.errorf("bb-layers-file-relative goes with bb-layers, not with a template; put the layer into the template's bblayers.conf.sample")
		}
		s.beside = beside.list
	}
	if notes := parts["notes"]; notes != nil {
		s.notes = notes.text
		if notes.kind == list {
			s.notes = strings.Join(notes.listTexts(), "\n")
		}
	}
	return s.useFragments(parts["oe-fragments"], parts["oe-fragments-one-of"], words)
}

// listChains lists the configurations that hold no others, each after those around it.
func listChains(configurations *value, around []*value, all *[][]*value) error {
	if len(configurations.list) == 0 {
		return configurations.at.errorf("configurations is empty")
	}
	for _, c := range configurations.list {
		if own := c.get("name").textOr(""); len(own) > maxName || strings.ContainsFunc(own, isControl) {
			return c.at.errorf("a configuration's name is longer than %d bytes or holds a control character", maxName)
		}
		chain := append(slices.Clone(around), c)
		if inner := c.get("configurations"); inner != nil {
			if err := listChains(inner, chain, all); err != nil {
				return err
			}
			continue
		}
		if chainName(chain) == "" {
			return c.at.errorf("a configuration needs a name")
		}
		*all = append(*all, chain)
	}
	return nil
}

func chainName(chain []*value) string {
	var name strings.Builder
	for _, c := range chain {
		name.WriteString(c.get("name").textOr(""))
	}
	return name.String()
}

// pickConfiguration finds the configuration that the first word names. It returns the
// other words. A single configuration needs no word.
func (s *setup) pickConfiguration(chains [][]*value, words []string) ([]string, error) {
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
	at := s.file.get("bitbake-setup", "configurations").at
	if len(words) == 0 {
		return nil, at.errorf("which configuration? A board's file must leave one; elsewhere write it behind the file's name: #%s (or %s)\nnext: layers dump %s", names[0], strings.Join(names[1:], ", "), plaintext.Quote(at.file+"#"+names[0]))
	}
	return nil, at.errorf("no configuration is named %q (have %s)", words[0], strings.Join(names, ", "))
}

// mergeChain returns what a chain of configurations has under a key. It joins texts and
// lists as bitbake-setup does, with Python's +.
func mergeChain(chain []*value, key string) (*value, error) {
	var sum *value
	for _, c := range chain {
		v := c.get(key)
		switch {
		case v == nil:
		case sum == nil:
			sum = v
		case v.kind != sum.kind || v.kind == dict:
			return nil, v.at.errorf("%s cannot be added to that of line %d, in a configuration around this one; keep one of them", key, sum.at.line)
		case v.kind == text:
			sum = &value{at: v.at, kind: text, text: sum.text + v.text}
		default:
			sum = &value{at: v.at, kind: list, list: slices.Concat(sum.list, v.list)}
		}
	}
	return sum, nil
}

// useFragments lists the fragments in the order in which they are enabled, with
// one of each choice. words are the choices that people made.
func (s *setup) useFragments(fixed, oneOf *value, words []string) error {
	all, err := fragmentNames(fixed)
	if err != nil {
		return err
	}
	var chosen []*value
	if oneOf != nil {
		for _, key := range oneOf.keys {
			option, err := s.chooseOne("oe-fragments-one-of."+key, oneOf.dict[key], words)
			if err != nil {
				return err
			}
			chosen = append(chosen, option)
		}
	}
	for _, w := range words {
		if !slices.ContainsFunc(chosen, func(v *value) bool { return v.text == w }) {
			return s.file.get("bitbake-setup").at.errorf("configuration %q has no choice %q", chainName(s.chain), w)
		}
	}
	slices.SortFunc(chosen, func(a, b *value) int { return cmp.Compare(a.text, b.text) })
	for _, f := range slices.Concat(all, chosen) {
		s.enableFragment(f.text)
	}
	return nil
}

// fragmentNames returns the names in a list of fragments, of which some may have
// descriptions.
func fragmentNames(v *value) ([]*value, error) {
	if v == nil {
		return nil, nil
	}
	if len(v.list) > maxItems {
		return nil, v.at.errorf("more than %d fragments", maxItems)
	}
	var names []*value
	for _, e := range v.list {
		if e.kind == dict {
			e = e.get("name")
		}
		if !fragmentName().MatchString(e.text) {
			return nil, e.at.errorf("%q cannot be a fragment; one is named layer/path, machine/name or distro/name", e.text)
		}
		names = append(names, e)
	}
	return names, nil
}

func (s *setup) chooseOne(path string, possible *value, words []string) (*value, error) {
	options, err := fragmentNames(possible.get("options"))
	if err != nil {
		return nil, err
	}
	var names []string
	var chosen []*value
	for _, o := range options {
		names = append(names, o.text)
		if slices.Contains(words, o.text) {
			chosen = append(chosen, o)
		}
	}
	if len(chosen) != 1 {
		return nil, possible.at.errorf("%s: choose one, for a board in oe-fragments, elsewhere behind the file's name (#configuration,fragment): %s%s", path, strings.Join(names, ", "), s.adviseChoice(possible.at.file, words, chosen, names))
	}
	return chosen[0], nil
}

// adviseChoice returns the command with the first of the names added to the choices.
func (s *setup) adviseChoice(path string, words []string, chosen []*value, names []string) string {
	if len(chosen) > 0 || len(names) == 0 {
		return ""
	}
	choices := slices.Concat([]string{chainName(s.chain)}, words, names[:1])
	return "\nnext: layers dump " + plaintext.Quote(path+"#"+strings.Join(choices, ","))
}

// enableFragment adds a fragment as bitbake-config-build does: a later machine or
// distro replaces an earlier one.
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

// builtinFragment returns the name in a fragment such as machine/qemuarm64.
func (s *setup) builtinFragment(kind, otherwise string) string {
	for _, f := range s.fragments {
		if name, ok := strings.CutPrefix(f, kind+"/"); ok {
			return name
		}
	}
	return otherwise
}
