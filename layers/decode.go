package layers

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What kas takes where a project file is silent (5.3 and later).
const (
	defaultMachine = "qemux86-64"
	defaultDistro  = "nodistro"
	defaultTarget  = "core-image-minimal"
	defaultTask    = "build"
)

var (
	wholeCommit = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	// What git allows in a branch or tag is wider; what people use is not.
	refName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+/@-]*$`)
	taskArg = regexp.MustCompile(`^[A-Za-z0-9_][^\s"\\]*$`)
)

// project reads the merged files. Their shapes are right; this checks their sense.
func (l *loader) project() (Project, error) {
	m := l.merged
	p := Project{
		Root:         l.root,
		Machine:      m.get("machine").or(defaultMachine),
		Distro:       m.get("distro").or(defaultDistro),
		Task:         m.get("task").or(defaultTask),
		Targets:      targets(m.get("target")),
		LocalConf:    m.get("local_conf_header").texts(),
		BBLayersConf: m.get("bblayers_conf_header").texts(),
		Env:          environment(m.get("env")),
		Warnings:     l.warnings,
		version:      l.version,
		merged:       m,
	}
	if s := m.get("build_system"); s != nil && s.text != "oe" && s.text != "openembedded" {
		return Project{}, s.at.errorf("build_system %q is not yet read by slipway; use kas for this file", s.text)
	}
	if err := p.checkWords(); err != nil {
		return Project{}, err
	}
	return p, p.readRepos()
}

func targets(v *value) []string {
	if v == nil {
		return []string{defaultTarget}
	}
	if v.kind == text {
		return []string{v.text}
	}
	var names []string
	for _, e := range v.list {
		names = append(names, e.text)
	}
	return names
}

func environment(v *value) map[string]*string {
	if v == nil {
		return nil
	}
	env := map[string]*string{}
	for k, e := range v.dict {
		env[k] = nil
		if e.kind == text {
			env[k] = &e.text
		}
	}
	return env
}

// checkWords refuses what would not survive the quotes of a conf file or would
// be an option on bitbake's command line.
func (p Project) checkWords() error {
	words := append([]string{p.Machine, p.Distro, p.Task}, p.Targets...)
	for _, w := range words {
		if !taskArg.MatchString(w) {
			return fmt.Errorf("%s: %q cannot be a machine, distro, task or target", p.merged.at.file, w)
		}
	}
	return nil
}

func (p *Project) readRepos() error {
	repos := p.merged.get("repos")
	if repos == nil {
		return nil
	}
	folders := map[string]string{}
	for _, id := range repos.keys {
		r, err := p.readRepo(id, repos.dict[id])
		if err != nil {
			return err
		}
		if twin, there := folders[p.Dir(Workspace{Dir: "/"}, r)]; there && r.URL != "" {
			return r.at.errorf("repos.%s: has the same folder as repos.%s; give one of them a path", id, twin)
		}
		folders[p.Dir(Workspace{Dir: "/"}, r)] = id
		p.Repos = append(p.Repos, r)
	}
	return nil
}

func (p *Project) readRepo(id string, v *value) (Repo, error) {
	r := Repo{
		ID: id, at: v.at,
		Name:   v.get("name").or(id),
		URL:    v.get("url").or(""),
		Commit: v.get("commit").or(""),
		Branch: p.inherited(v, "branch"),
		Tag:    p.inherited(v, "tag"),
		Path:   v.get("path").or(""),
	}
	if err := r.useRefspec(p.inherited(v, "refspec")); err != nil {
		return Repo{}, err
	}
	if over := p.merged.get("overrides", "repos", id); over != nil {
		r.override(over)
	}
	if t := v.get("type").or("git"); t != "git" {
		return Repo{}, v.at.errorf("repos.%s.type %q is not yet read by slipway; use kas for this file", id, t)
	}
	var err error
	if r.Layers, err = readLayers(id, v.get("layers")); err != nil {
		return Repo{}, err
	}
	return r, r.check()
}

// inherited is a setting with its default; an explicit null removes the default.
func (p *Project) inherited(v *value, key string) string {
	if own := v.get(key); own != nil {
		return own.or("")
	}
	return p.merged.get("defaults", "repos", key).or("")
}

// useRefspec reads the one key that older files have for a commit, a branch and
// a tag alike. Only its spelling tells them apart here: no server is asked.
func (r *Repo) useRefspec(refspec string) error {
	if refspec == "" {
		return nil
	}
	if r.Commit != "" || r.Branch != "" || r.Tag != "" {
		return r.at.errorf("repos.%s: has a refspec and a commit, branch or tag; drop the refspec", r.ID)
	}
	if wholeCommit.MatchString(refspec) {
		r.Commit = refspec
	} else if tag, ok := strings.CutPrefix(refspec, "refs/tags/"); ok {
		r.Tag = tag
	} else {
		r.Branch = strings.TrimPrefix(refspec, "refs/heads/")
	}
	return nil
}

func (r *Repo) override(v *value) {
	if c := v.get("commit"); c != nil {
		r.Commit, r.Locked = c.or(""), c.kind == text
	}
	if b := v.get("branch"); b != nil {
		r.Branch = b.or("")
	}
	r.URL = v.get("url").or(r.URL)
}

// folder is where a repository with a url is checked out, below all checkouts.
func (r Repo) folder() string { return cmp.Or(r.Path, r.Name) }

func (r Repo) check() error {
	fail := func(format string, args ...any) error {
		return r.at.errorf("repos.%s: %w", r.ID, fmt.Errorf(format, args...))
	}
	if r.URL == "" {
		return nil
	}
	switch {
	case !filepath.IsLocal(r.folder()) || filepath.Clean(r.folder()) == ".":
		return fail("its folder %q is not below the project's; give a plain name", r.folder())
	case strings.HasPrefix(r.URL, "-") || strings.Contains(r.URL, "::"):
		return fail("url %q is not a repository's address", r.URL)
	case r.Commit == "" && r.Tag == "" && r.Branch == "":
		return fail("no commit, tag or branch says what to check out")
	case r.Commit != "" && !wholeCommit.MatchString(r.Commit):
		return fail("commit %q is not a whole commit id (40 digits, lower case); a shorter one could name something else", r.Commit)
	case r.Tag != "" && r.Branch != "":
		return fail("has both a tag and a branch; keep one (a null removes a default)")
	}
	for _, ref := range []string{r.Branch, r.Tag} {
		if ref != "" && (!refName.MatchString(ref) || strings.Contains(ref, "..") || strings.Contains(ref, "@{")) {
			return fail("%q cannot be a branch or tag", ref)
		}
	}
	return nil
}

// Besides "disabled", which kas's own documentation asks for, these leave a layer out.
var disabled = []string{"disabled", "excluded", "n", "no", "0", "false", "off", "No", "NO", "False", "FALSE", "Off", "OFF"}

func readLayers(id string, v *value) ([]Layer, error) {
	if v == nil {
		return []Layer{{}}, nil // the repository is a layer itself
	}
	var found []Layer
	for _, layer := range v.keys {
		e := v.dict[layer]
		if layer != "" && !filepath.IsLocal(layer) || strings.ContainsAny(layer, "\"\\\n") {
			return nil, e.at.errorf("repos.%s.layers: %q is not a folder of the repository", id, layer)
		}
		if e.kind == text && slices.Contains(disabled, e.text) {
			continue
		}
		if e.kind == text {
			return nil, e.at.errorf("repos.%s.layers.%s is %q; want nothing, disabled or a prio", id, layer, e.text)
		}
		priority, err := strconv.Atoi(e.get("prio").or("0"))
		if err != nil || priority < -99 || priority > 99 {
			return nil, e.at.errorf("repos.%s.layers.%s.prio %q is not a number from -99 to 99", id, layer, e.get("prio").text)
		}
		found = append(found, Layer{Name: layer, Priority: priority})
	}
	return found, nil
}
