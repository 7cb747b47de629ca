package layers

import (
	"fmt"
	"path/filepath"
	"strings"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/yaml"
)

// A lock file replaces whole sources.
var setupOverrides = &yaml.Shape{Kinds: yaml.Dict, Needs: []string{"sources"}, Keys: map[string]*yaml.Shape{"description": yaml.AText, "version": yaml.AText, "sources": setupSources}}

// readSources makes a Repo of each source in the file, replaced by its entry in the lock file if
// that has one. It refuses two sources in one folder, fills p.Repos and p.setup, and adds warnings.
func (p *Project) readSources(lock string) error {
	s := p.setup
	s.sources = yaml.NewDict()
	s.toLock = map[string]lockable{}
	declared := s.file.Get("sources")
	fixed, err := p.readSetupLock(lock, declared)
	if err != nil {
		return err
	}
	if len(declared.Keys) > maxItems {
		return declared.At.Errorf("more than %d sources", maxItems)
	}
	folders := map[string]string{}
	for _, id := range declared.Keys {
		r, err := readSource(id, declared.Dict[id], "")
		if err != nil {
			return err
		}
		s.sources.Set(id, declared.Dict[id])
		s.toLock[id] = lockable{declared.Dict[id], r}
		if over := fixed.Get(id); over != nil {
			own := r
			if r, err = own.withOverride(over, filepath.Dir(lock)); err != nil {
				return err
			}
			s.sources.Set(id, r.withWholePath(over))
			if own.URL == "" || r.URL == "" {
				s.toLock[id] = lockable{over, r} // from another place than the project file names, on purpose
			}
			p.Warnings = append(p.Warnings, own.lockWarnings(r)...)
		}
		if twin, there := folders[r.Name]; there {
			return r.At.Errorf("sources.%s: has the same folder as sources.%s; give one of them another path", id, twin)
		}
		folders[r.Name] = id
		p.Repos = append(p.Repos, r)
	}
	return nil
}

// readSetupLock returns the lock file's sources, nil without one. It warns of undeclared ones.
func (p *Project) readSetupLock(lock string, declared *yaml.Value) (*yaml.Value, error) {
	if !localfile.Exists(lock) {
		return nil, nil
	}
	file, warnings, err := yaml.ReadSetup(lock, setupOverrides)
	if err != nil {
		return nil, err
	}
	p.Warnings = append(p.Warnings, warnings...)
	sources := file.Get("sources")
	for _, id := range sources.Keys {
		if declared.Get(id) == nil {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s: sources.%s is not in the project file; as with bitbake-setup, it is not used", sources.Dict[id].At, id))
		}
	}
	return sources, nil
}

// readSource makes a Repo of one source, which has either git-remote or local. base is the folder
// of relative local paths, "" in a file that must have absolute ones.
func readSource(id string, v *yaml.Value, base string) (Repo, error) {
	r := Repo{Remote: git.Remote{ID: id, At: v.At}, Name: filepath.Clean(v.Get("path").TextOr(id))}
	if !layerPath().MatchString(r.Name) || !filepath.IsLocal(r.Name) || r.Name == "." {
		return Repo{}, v.At.Errorf("sources.%s: its folder %q is not below the checkouts; give it a plain path", id, r.Name)
	}
	remote, local := v.Get("git-remote"), v.Get("local")
	switch {
	case remote != nil && local != nil:
		return Repo{}, v.At.Errorf("sources.%s: has both git-remote and local; keep one", id)
	case remote != nil:
		return r, r.useRemote(remote)
	case local != nil:
		return r, r.useLocalSource(local, base)
	}
	return Repo{}, v.At.Errorf("sources.%s: has neither git-remote nor local, so its origin is unknown", id)
}

// useLocalSource sets r's path from a source's local, relative to base, or absolute without base.
func (r *Repo) useLocalSource(v *yaml.Value, base string) error {
	r.Path = expandHome(v.Get("path").Text)
	if base != "" && !filepath.IsAbs(r.Path) {
		r.Path = filepath.Join(base, r.Path)
	}
	if !filepath.IsAbs(r.Path) {
		return v.At.Errorf("sources.%s.local: path %q is not absolute; begin it with / or ~/", r.ID, r.Path)
	}
	return r.validate()
}

// useRemote sets r's URL, path and revision from a git-remote. It refuses an abbreviated commit id.
func (r *Repo) useRemote(v *yaml.Value) error {
	path := "sources." + r.ID + ".git-remote"
	// bitbake-setup fetches from each address in turn. It keeps the result of the last one.
	if remotes := v.Get("remotes"); remotes != nil {
		for _, name := range remotes.Keys {
			r.URL = remotes.Dict[name].Get("uri").Text
		}
	}
	if r.URL = v.Get("uri").TextOr(r.URL); r.URL == "" {
		return v.At.Errorf("%s: needs a uri or remotes", path)
	}
	if strings.Contains(r.URL, ";") {
		return v.At.Errorf("%s: uri %q has parameters of bitbake's fetcher; write the address as git takes it, with branch and rev beside it", path, r.URL)
	}
	r.Path = r.Name
	rev, branch := v.Get("rev").Text, v.Get("branch").TextOr("")
	if likeCommit().MatchString(rev) && !git.IsCommit(rev) && rev != branch {
		return v.At.Errorf("%s: rev %q may be a commit, a branch or a tag; write the whole id, or refs/heads/%[2]s or refs/tags/%[2]s\nnext: git ls-remote %s", path, rev, r.ShownURL())
	}
	r.useRev(rev, branch)
	return r.validate()
}

// useRev sets r's commit, branch or tag from a revision: a commit ID, the branch's name or a
// complete ref. Any other name is a tag, and if branch is "", a branch or a tag. It does not check
// that a commit is on the branch, as its ID is enough.
func (r *Repo) useRev(rev, branch string) {
	tag, isTag := strings.CutPrefix(rev, "refs/tags/")
	head, isHead := strings.CutPrefix(rev, "refs/heads/")
	switch {
	case git.IsCommit(rev):
		r.Commit, r.Branch = rev, branch
	case isTag:
		r.Tag = tag
	case isHead:
		r.Branch = head
	case branch != "" && rev != branch:
		r.Tag = rev
	default:
		r.Branch, r.OrTag = rev, branch == ""
	}
}

// withOverride returns the repository as the lock file has it. If only the lock file pins a commit,
// the result keeps r's branch or tag, for Lock's updates.
func (r Repo) withOverride(v *yaml.Value, base string) (Repo, error) {
	over, err := readSource(r.ID, v, base)
	if err != nil {
		return Repo{}, err
	}
	if over.Commit != "" && r.Commit == "" && r.URL != "" {
		over.Locked = true
		over.Branch, over.OrTag, over.Tag = r.Branch, r.OrTag, r.Tag
	}
	return over, nil
}

// lockable is a source that Lock writes to the lock file.
type lockable struct {
	v    *yaml.Value
	repo Repo
}

// lockWarnings returns a warning if the lock file has another URL than the project file or another
// commit than it pins: the lock file may be older. A local source gets none.
func (r Repo) lockWarnings(locked Repo) []string {
	const holds = "; as with bitbake-setup, this file takes precedence; layers lock rewrites it from the project file"
	switch {
	case r.URL == "" || locked.URL == "":
		return nil
	case r.URL != locked.URL:
		return []string{fmt.Sprintf("%s: sources.%s comes from %s here and from %s in the project file%s", locked.At, r.ID, locked.URL, r.URL, holds)}
	case r.Commit != "" && r.Commit != locked.Commit:
		return []string{fmt.Sprintf("%s: sources.%s is not at the commit %s, which the project file pins%s", locked.At, r.ID, r.Commit, holds)}
	}
	return nil
}

// withWholePath returns the source v, with r's absolute path if r is local: a dump is in no folder.
func (r Repo) withWholePath(v *yaml.Value) *yaml.Value {
	if r.URL != "" {
		return v
	}
	path := &yaml.Value{Kind: yaml.Text, Text: r.Path}
	local := &yaml.Value{Kind: yaml.Dict, Keys: []string{"path"}, Dict: map[string]*yaml.Value{"path": path}}
	return yaml.Merge(v, &yaml.Value{At: v.At, Kind: yaml.Dict, Keys: []string{"local"}, Dict: map[string]*yaml.Value{"local": local}})
}

// setupLockContent returns the lock file: every source, with the commits that Lock found by ID.
func (p Project) setupLockContent(commits map[string]string) ([]byte, error) {
	sources := map[string]any{}
	for id, source := range p.setup.toLock {
		plain := source.v.Plain().(map[string]any)
		if commits[id] != "" {
			plain["git-remote"].(map[string]any)["rev"] = commits[id]
		}
		sources[id] = plain
	}
	return yaml.PythonJSON(map[string]any{"sources": sources})
}

// dumpSetup returns the project as one bitbake-setup file with only the chosen configuration, the
// choices made and the commits of the lock file.
func (p Project) dumpSetup() ([]byte, error) {
	s := p.setup
	configuration := map[string]any{"name": chainName(s.chain), "description": s.description}
	for _, key := range setupKeys {
		v, err := mergeChain(s.chain, key)
		if err != nil {
			return nil, err
		}
		if v != nil {
			configuration[key] = v.Plain()
		}
	}
	delete(configuration, "oe-fragments-one-of")
	if dir, _ := configuration["setup-dir-name"].(string); strings.Contains(dir, "$") { // it names choices
		delete(configuration, "setup-dir-name")
	}
	if len(s.fragments) > 0 {
		configuration["oe-fragments"] = s.fragments
	}
	file := s.file.Plain().(map[string]any)
	file["sources"] = s.sources.Plain()
	file["bitbake-setup"] = map[string]any{"configurations": []any{configuration}}
	flat, err := yaml.PythonJSON(file)
	return append(flat, '\n'), err
}
