package layers

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// The defaults of kas (5.3 and later).
const (
	defaultMachine     = "qemux86-64"
	defaultDistro      = "nodistro"
	defaultTarget      = "core-image-minimal"
	defaultTask        = "build"
	defaultBuildSystem = "openembedded"
)

var (
	// git takes these for commits too: the first digits of an id, also behind a tag.
	likeCommit = plaintext.Regexp(`(^|-g)[0-9a-fA-F]{4,64}$`)
	// git allows more characters in a branch or tag than people use.
	refName = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.+/@#%=,-]*$`)
	// git runs the program git-remote-ext for ext::, and others likewise.
	transport = plaintext.Regexp(`^[A-Za-z0-9+.-]*::`)
	taskArg   = plaintext.Regexp(`^[A-Za-z0-9_][^\s"\\]*$`)
)

var buildSystems = map[string]string{
	"oe": "openembedded", "openembedded": "openembedded",
	"isar": "isar-privileged", "isar-privileged": "isar-privileged", "isar-rootless": "isar-rootless",
}

// buildProject turns the merged files, whose structure was checked before, into a Project. It
// checks their values, and applies KAS_ variables. After most errors, only Warnings are set.
func (in *reading) buildProject() (Project, error) {
	p := in.projectSettings()
	if s := p.merged.Get("build_system"); s != nil && buildSystems[s.Text] == "" {
		return Project{}, s.At.Errorf("build_system %q is unknown (have openembedded, oe, isar-privileged, isar-rootless, isar)", s.Text)
	}
	if s := p.merged.Get("proxy_config"); s != nil {
		p.Warnings = append(p.Warnings, s.At.String()+": proxy_config has no effect, as in kas; set http_proxy and https_proxy in the environment")
	}
	for _, step := range []func() error{p.checkWords, p.applyKasVariables, p.readRepos, func() error { return p.checkLayers(in.ws, false) }} {
		if err := step(); err != nil {
			return Project{Warnings: p.Warnings}, err // they may say why, as of a repeated key
		}
	}
	p.warnUnknownOverrides()
	return p, p.checkLocal()
}

// partialProject returns a project with only the BuildSystem of the files read, "" if none has it.
func (in *reading) partialProject() Project {
	s := in.merged.Get("build_system")
	if s == nil {
		return Project{}
	}
	return Project{BuildSystem: buildSystems[s.Text]}
}

// projectSettings returns the project without its repositories, with kas's defaults.
func (in *reading) projectSettings() Project {
	m := in.merged
	return Project{
		File:         in.given,
		Root:         repositoryOf(in.root),
		BuildSystem:  buildSystems[m.Get("build_system").TextOr(defaultBuildSystem)],
		Machine:      m.Get("machine").TextOr(defaultMachine),
		Distro:       m.Get("distro").TextOr(defaultDistro),
		Task:         m.Get("task").TextOr(defaultTask),
		Targets:      targetNames(m.Get("target")),
		LocalConf:    m.Get("local_conf_header").TextMap(),
		BBLayersConf: m.Get("bblayers_conf_header").TextMap(),
		Env:          envDefaults(m.Get("env")),
		Warnings:     in.warnings,
		version:      in.version,
		merged:       m,
		read:         in.read,
		local:        in.ws.Local,
	}
}

// targetNames returns the targets of a text or a list, or kas's default for nil.
func targetNames(v *yaml.Value) []string {
	if v == nil {
		return []string{defaultTarget}
	}
	if v.Kind == yaml.Text {
		return []string{v.Text}
	}
	return v.Texts()
}

// envDefaults returns the default values of variables by name; nil for one that has none.
func envDefaults(v *yaml.Value) map[string]*string {
	if v == nil {
		return nil
	}
	env := map[string]*string{}
	for k, e := range v.Dict {
		env[k] = nil
		if e.Kind == yaml.Text {
			env[k] = &e.Text
		}
	}
	return env
}

// checkWords refuses a machine, distro, task or target that would break a conf file's quotes or be
// an option of bitbake, and names in env that no variable can have. It accepts an empty distro.
func (p Project) checkWords() error {
	words := []*yaml.Value{p.merged.Get("machine"), p.merged.Get("distro"), p.merged.Get("task"), p.merged.Get("target")}
	if t := p.merged.Get("target"); t != nil && t.Kind == yaml.List {
		words = append(words[:3], t.List...)
	}
	for _, w := range words {
		noDistro := w != nil && w.Text == "" && w == p.merged.Get("distro")
		if w != nil && !taskArg().MatchString(w.Text) && !noDistro {
			return w.At.Errorf("%q cannot be a machine, distro, task or target", w.Text)
		}
	}
	for name := range p.Env {
		if name == "" || strings.ContainsRune(name, '=') {
			return p.merged.Get("env", name).At.Errorf("env: %q cannot be the name of a variable", name)
		}
	}
	return nil
}

// applyKasVariables sets machine, distro, task and targets from KAS_ variables, with a warning for
// each change and of ignoredVariables. A value that checkWords would refuse is an error.
func (p *Project) applyKasVariables() error {
	for _, v := range []struct {
		name string
		into *string
	}{{"KAS_MACHINE", &p.Machine}, {"KAS_DISTRO", &p.Distro}, {"KAS_TASK", &p.Task}} {
		value, set := os.LookupEnv(v.name)
		if !set || value == *v.into {
			continue
		}
		if !taskArg().MatchString(value) && (value != "" || v.into != &p.Distro) {
			return fmt.Errorf("%s: %q cannot be a machine, distro or task\nnext: unset %s", v.name, value, v.name)
		}
		p.warnOverride(v.name, value, *v.into)
		*v.into = value
	}
	p.warnIgnored()
	asked := strings.Fields(os.Getenv("KAS_TARGET"))
	if len(asked) == 0 || slices.Equal(asked, p.Targets) {
		return nil
	}
	for _, target := range asked {
		if !taskArg().MatchString(target) {
			return fmt.Errorf("KAS_TARGET: %q cannot be a target\nnext: unset KAS_TARGET", target)
		}
	}
	p.warnOverride("KAS_TARGET", strings.Join(asked, " "), strings.Join(p.Targets, " "))
	p.Targets = asked
	return nil
}

// ignoredVariables are those of kas and kas-container that Slipway does not follow.
const ignoredVariables = "WORK_DIR BUILD_DIR REPO_REF_DIR PREMIRRORS CLONE_DEPTH BUILDTOOLS_DIR CONTAINER_ENGINE CONTAINER_IMAGE IMAGE_VERSION RUNTIME_ARGS"

// warnIgnored adds a warning that names the ignoredVariables that are set.
func (p *Project) warnIgnored() {
	var set []string
	for name := range strings.FieldsSeq(ignoredVariables) {
		if os.Getenv("KAS_"+name) != "" {
			set = append(set, "KAS_"+name)
		}
	}
	if len(set) > 0 {
		p.Warnings = append(p.Warnings, strings.Join(set, ", ")+": Slipway does not follow these variables of kas; everything is below build/")
	}
}

func (p *Project) warnOverride(name, value, was string) {
	p.Warnings = append(p.Warnings, fmt.Sprintf("%s is followed, as kas does: %q in place of %q, except in layers dump; \"unset %s\" ends that", name, value, was, name))
}

// readRepos adds the repositories to p, in the files' order. It refuses one with a url in another's
// folder. A commit that is no whole id, or a patch of an unknown repository, is a warning.
func (p *Project) readRepos() error {
	repos := p.merged.Get("repos")
	if repos == nil {
		return nil
	}
	folders := map[string]string{}
	for _, id := range repos.Keys {
		r, err := p.readRepo(id, repos.Dict[id])
		if err != nil {
			return err
		}
		dir := p.Dir(Workspace{Dir: "/"}, r)
		if twin, there := folders[dir]; there && r.URL != "" {
			return r.At.Errorf("repos.%s: has the same folder as repos.%s; give one of them a path", id, twin)
		}
		folders[dir] = id
		p.Repos = append(p.Repos, r)
		if err := r.CheckCommit(); err != nil {
			p.Warnings = append(p.Warnings, err.Error())
		}
		for _, patch := range r.Patches {
			if repos.Get(patch.Repo) == nil {
				p.Warnings = append(p.Warnings, fmt.Sprintf("%s: repos.%s.patches.%s: repos names no repository %q, so a checkout will stop here", r.At, id, patch.ID, patch.Repo))
			}
		}
	}
	return nil
}

// warnUnknownOverrides warns of overrides, as in a lock file, of repositories that repos lacks.
func (p *Project) warnUnknownOverrides() {
	over := p.merged.Get("overrides", "repos")
	if over == nil {
		return
	}
	for _, id := range over.Keys {
		if p.merged.Get("repos", id) == nil && !slices.Contains(p.repoIDs(), id) {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s: overrides.repos.%s has no effect: repos names no repository %q%s", over.Dict[id].At, id, id, plaintext.DidYouMean(id, p.repoIDs())))
		}
	}
}

// readRepo makes and checks a Repo of one entry, with its defaults, overrides and local folder.
func (p *Project) readRepo(id string, v *yaml.Value) (Repo, error) {
	r := Repo{
		Name: v.Get("name").TextOr(id),
		Path: v.Get("path").TextOr(""),
		Remote: git.Remote{
			ID: id, At: v.At, URL: v.Get("url").TextOr(""), Commit: v.Get("commit").TextOr(""),
			Branch: p.settingOrDefault(v, "branch"), Tag: p.settingOrDefault(v, "tag"),
		},
	}
	if err := checkSupported(id, v); err != nil {
		return Repo{}, err
	}
	if err := p.chooseCommit(&r, v); err != nil {
		return Repo{}, err
	}
	var err error
	if r.Layers, err = readLayers(r, v.Get("layers")); err != nil {
		return Repo{}, err
	}
	if r.Patches, err = p.readPatches(id, v.Get("patches")); err != nil {
		return Repo{}, err
	}
	if err := r.validate(); err != nil {
		return Repo{}, err
	}
	err = p.useLocal(&r)
	return r, err
}

// settingOrDefault returns the setting of a repository v, or else the default of defaults.repos, or
// "". An explicit null removes the default.
func (p *Project) settingOrDefault(v *yaml.Value, key string) string {
	if own := v.Get(key); own != nil {
		return own.TextOr("")
	}
	return p.merged.Get("defaults", "repos", key).TextOr("")
}

// checkSupported refuses a repository that is not git's, or with signed: true.
func checkSupported(id string, v *yaml.Value) error {
	switch t := v.Get("type"); {
	case t.TextOr("git") == "hg":
		return t.At.Errorf("repos.%s: slipway checks out git repositories only; name a git mirror of this one, or use kas for this file", id)
	case t.TextOr("git") != "git":
		return t.At.Errorf("repos.%s.type %q is unknown (have git)", id, t.Text)
	}
	if s := v.Get("signed"); s != nil && s.Text == "true" {
		return s.At.Errorf("repos.%s: slipway checks no signatures; pin the commit, which names all of its content, and take out signed and allowed_signers, or use kas for this file", id)
	}
	return nil
}

// chooseCommit sets r's commit, branch or tag from a refspec in v, which excludes the three, and
// from an override; with a refspec only the commit, as kas. It refuses names like a commit's id.
func (p *Project) chooseCommit(r *Repo, v *yaml.Value) error {
	over := p.merged.Get("overrides", "repos", r.ID)
	if refspec := p.settingOrDefault(v, "refspec"); refspec != "" {
		if r.Commit != "" || r.Branch != "" || r.Tag != "" {
			return r.At.Errorf("repos.%s: has a refspec and a commit, branch or tag; drop the refspec", r.ID)
		}
		r.useRefspec(refspec)
		if r.OrTag && likeCommit().MatchString(refspec) {
			return r.At.Errorf("repos.%s: refspec %q may be a commit, a branch or a tag; write commit: with the whole id, or refs/heads/%[2]s or refs/tags/%[2]s\nnext: git ls-remote %s", r.ID, refspec, r.ShownURL())
		}
	} else {
		if r.URL != "" && r.Commit == "" && r.Tag == "" && r.Branch == "" {
			return r.At.Errorf("repos.%s: no commit, tag or branch says what to check out", r.ID)
		}
		if b := over.Get("branch"); b != nil {
			r.Branch = b.TextOr("")
		}
		r.URL = over.Get("url").TextOr(r.URL)
	}
	if c := over.Get("commit"); c != nil {
		r.Commit, r.Locked, r.CommitAt = c.TextOr(""), c.Kind == yaml.Text, c.At
	}
	if err := r.refuseCommitAsName(); err != nil {
		return err
	}
	r.shortenRefs()
	return nil
}

// refuseCommitAsName refuses a branch or tag with the name of a commit. Whoever may push such a
// branch would choose what is built. With refs/ before it, the name is accepted.
func (r Repo) refuseCommitAsName() error {
	for _, name := range []string{r.Branch, strings.TrimPrefix(r.Tag, "tags/")} {
		if git.IsCommit(strings.ToLower(name)) {
			return r.At.Errorf("repos.%s: %q is a commit's id, not a branch or tag; write it as commit:, or with refs/heads/ or refs/tags/ before it\nnext: git ls-remote %s", r.ID, name, r.ShownURL())
		}
	}
	return nil
}

// shortenRefs cuts refs/heads/ off Branch, and refs/ and tags/ off Tag. A Branch refs/tags/NAME
// becomes the Tag, if there is none. A change of Branch clears OrTag. Other refs stay whole.
func (r *Repo) shortenRefs() {
	r.Tag = strings.TrimPrefix(strings.TrimPrefix(r.Tag, "refs/"), "tags/")
	if tag, ok := strings.CutPrefix(r.Branch, "refs/tags/"); ok && r.Tag == "" {
		r.Branch, r.Tag, r.OrTag = "", tag, false
	}
	if branch, ok := strings.CutPrefix(r.Branch, "refs/heads/"); ok {
		r.Branch, r.OrTag = branch, false
	}
}

// useRefspec sets r's commit, tag or branch from refspec, the key of older files for all three. It
// cuts no tags/ or refs/ off. The server decides later if a name without these is a tag.
func (r *Repo) useRefspec(refspec string) {
	switch {
	case git.IsCommit(refspec):
		r.Commit = refspec
	case strings.HasPrefix(refspec, "tags/"):
		r.Tag = refspec
	default:
		r.Branch, r.OrTag = refspec, !strings.HasPrefix(refspec, "refs/")
	}
}

// checkoutFolder returns the folder of a repository with a url, below all checkouts.
func (r Repo) checkoutFolder() string { return cmp.Or(r.Path, r.Name) }

// sameTree reports whether a checkout of r is one of other too.
func (r Repo) sameTree(other Repo) bool {
	return r.URL == other.URL && r.checkoutFolder() == other.checkoutFolder() && r.OrTag == other.OrTag &&
		r.Commit == other.Commit && r.Branch == other.Branch && r.Tag == other.Tag && slices.Equal(r.Patches, other.Patches)
}

// validate returns an error for names with control characters and a folder of git's own. If r has a
// url, it also refuses a url, folder, branch or tag that is ambiguous or unsafe for git.
func (r Repo) validate() error {
	fail := func(format string, args ...any) error {
		return r.At.Errorf("repos.%s: %w", r.ID, fmt.Errorf(format, args...))
	}
	if strings.ContainsFunc(r.URL+r.Path+r.Name, yaml.IsControl) {
		return fail("its url, path or name holds a control character")
	}
	if git.IsReserved(r.checkoutFolder()) {
		return fail("its folder %q is one of git's own, where files are run; give it another path", r.checkoutFolder())
	}
	if r.URL == "" {
		return nil
	}
	switch {
	case !filepath.IsLocal(r.checkoutFolder()) || filepath.Clean(r.checkoutFolder()) == ".":
		return fail("its folder %q is not below the project's; give a plain name", r.checkoutFolder())
	case strings.HasPrefix(r.URL, "-") || transport().MatchString(r.URL):
		return fail("url %q is not a repository's address", r.URL)
	case r.Commit == "" && r.Tag == "" && r.Branch == "":
		return fail("an override removed what to check out; name a commit, tag or branch")
	case r.Tag != "" && r.Branch != "":
		return fail("has both a tag and a branch; keep one (a null removes a default)")
	}
	for _, ref := range []string{r.Branch, r.Tag} {
		if ref != "" && (!refName().MatchString(ref) || strings.Contains(ref, "..") || strings.Contains(ref, "@{")) {
			return fail("%q cannot be a branch or tag", ref)
		}
	}
	return nil
}

// Besides "disabled", which kas's own documentation recommends, these leave a layer out.
var disabled = []string{"disabled", "excluded", "n", "no", "0", "false"}

// readLayers reads r's layers, without disabled ones. Without the key, r itself is a layer. If r
// has no url, layers may be beside its folder, in the git repository around it: see checkLayers.
func readLayers(r Repo, v *yaml.Value) ([]Layer, error) {
	id := r.ID
	if v == nil {
		return []Layer{{}}, nil // the repository is a layer itself
	}
	var found []Layer
	for _, layer := range v.Keys {
		e := v.Dict[layer]
		out := layer != "" && !filepath.IsLocal(layer) && (r.URL != "" || filepath.IsAbs(layer))
		if out || strings.ContainsAny(layer, "\"\\\n") {
			return nil, e.At.Errorf("repos.%s.layers: %q is not a folder of the repository; give its folder a repository of its own, without a url: \"%s: {path: FOLDER}\"", id, layer, filepath.Base(layer))
		}
		if e.Kind&(yaml.Text|yaml.Number|yaml.Boolean) != 0 {
			if !slices.Contains(disabled, e.Text) {
				return nil, e.At.Errorf("repos.%s.layers.%s is %q; want nothing, disabled or a prio", id, layer, e.Text)
			}
			continue
		}
		priority, err := strconv.Atoi(e.Get("prio").TextOr("0"))
		if err != nil || priority < -99 || priority > 99 {
			return nil, e.At.Errorf("repos.%s.layers.%s.prio %q is not a number from -99 to 99", id, layer, e.Get("prio").Text)
		}
		found = append(found, Layer{Name: layer, Priority: priority})
	}
	return found, nil
}

// checkLayers refuses a layer that is outside of the git repository around its folder, also through
// a link. Checkouts that are not at their commits yet (placed is false) may lack a layer, and a
// local folder's links are the user's: it follows neither's links.
func (p *Project) checkLayers(ws Workspace, placed bool) error {
	for _, r := range p.Repos {
		for _, layer := range r.Layers {
			top, below := splitWorkTree(p.Dir(ws, r))
			path := filepath.Join(top, below, layer.Name)
			rel, err := filepath.Rel(top, path)
			followed := localfile.Exists(path) && (placed || r.URL == "" && p.setup == nil) && !(r.Local && filepath.IsLocal(layer.Name))
			if err != nil || !filepath.IsLocal(rel) || git.IsReserved(rel) || followed && !isInside(top, path) {
				return r.At.Errorf("layer %q of repository %s: it is not a folder of the repository %s; give its folder a repository of its own, without a url: \"%s: {path: FOLDER}\"", layer.Name, r.ID, top, filepath.Base(layer.Name))
			}
		}
	}
	return nil
}

// splitWorkTree returns the git repository around a folder, or the folder itself without git, and
// the folder's path in it. It resolves links first.
func splitWorkTree(dir string) (top, below string) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	top = repositoryOf(dir)
	below, err := filepath.Rel(top, dir)
	if err != nil {
		return dir, "."
	}
	return top, below
}

// sortedPatchNames returns patches' names in kas's order: all numbers, or all texts, or an error.
func sortedPatchNames(id string, v *yaml.Value) ([]string, error) {
	names := slices.Sorted(slices.Values(v.Keys))
	if len(v.Numbers) == 0 {
		return names, nil
	}
	if len(v.Numbers) < len(names) {
		return nil, v.At.Errorf("repos.%s.patches: some keys are numbers to kas and some are texts; write all in quotes", id)
	}
	slices.SortFunc(names, func(a, b string) int {
		x, _ := strconv.Atoi(a) // both were written by parseInt
		y, _ := strconv.Atoi(b)
		return cmp.Compare(x, y)
	})
	return names, nil
}

// readPatches returns the patches in the order of their names, without those that are null. It
// refuses a patch without a repository, or with a path that leaves its repository.
func (p *Project) readPatches(id string, v *yaml.Value) ([]Patch, error) {
	if v == nil {
		return nil, nil
	}
	names, err := sortedPatchNames(id, v)
	if err != nil {
		return nil, err
	}
	var all []Patch
	for _, name := range names {
		e := v.Dict[name]
		if e.Kind == yaml.Null {
			continue
		}
		patch := Patch{ID: name, Path: e.Get("path").Text, Repo: e.Get("repo").TextOr(p.merged.Get("defaults", "repos", "patches", "repo").TextOr(""))}
		switch {
		case patch.Repo == "":
			return nil, e.At.Errorf("repos.%s.patches.%s: no repo says where the patch lies, and defaults.repos.patches has none", id, name)
		case !filepath.IsLocal(patch.Path) && (filepath.IsAbs(patch.Path) || p.merged.Get("repos", patch.Repo, "url").TextOr("") != ""),
			patch.Path == "", git.IsReserved(patch.Path), strings.ContainsFunc(patch.Path, yaml.IsControl):
			return nil, e.At.Errorf("repos.%s.patches.%s: path %q leaves its repository", id, name, patch.Path)
		}
		all = append(all, patch)
	}
	return all, nil
}
