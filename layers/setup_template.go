package layers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
)

// template is a folder of samples for conf/ in one of a project's layers.
type template struct {
	name string
	repo string // where its repository lies
	path string // of its folder, in that
	core string // OpenEmbedded's folder, for the samples to name layers from
}

// findTemplate finds the template that the project names, as OpenEmbedded's
// oe-setup-build does. It returns nil if the project names none.
func (p Project) findTemplate(ws Workspace) (*template, error) {
	name := p.setup.template
	if name == "" {
		return nil, nil
	}
	at := p.setup.chain[len(p.setup.chain)-1].at
	core := ""
	for _, r := range p.Repos { // of several, bitbake-setup takes the last
		if dir := p.Dir(ws, r); exists(filepath.Join(dir, "scripts/oe-setup-build")) {
			core = dir
		}
	}
	if core == "" {
		return nil, at.errorf("oe-template %q: no source holds OpenEmbedded's scripts/oe-setup-build; add openembedded-core", name)
	}
	core, err := filepath.EvalSymlinks(core)
	if err != nil {
		return nil, err
	}
	var found []*template
	var names []string
	for _, r := range p.Repos {
		if p.setup.sources.get(r.ID) == nil {
			continue // the repository that the project file is in
		}
		all, err := listTemplates(p.Dir(ws, r), r.Name)
		if err != nil {
			return nil, err
		}
		for _, t := range all {
			names = append(names, t.name)
			if t.core = core; t.name == name {
				found = append(found, t)
			}
		}
	}
	slices.Sort(names)
	switch len(found) {
	case 0:
		return nil, at.errorf("oe-template %q is in none of the layers (have %q)", name, slices.Compact(names))
	case 1:
		return found[0], nil
	}
	return nil, at.errorf("oe-template %q is in %s and in %s, and bitbake-setup takes whichever the disk lists first; rename a layer", name, found[0].dir(), found[1].dir())
}

func (t *template) dir() string { return filepath.Join(t.repo, t.path) }

// listTemplates lists a repository's templates. A name consists of the layer's folder
// and the template's. folder is the repository's own.
func listTemplates(repo, folder string) ([]*template, error) {
	root, err := filepath.EvalSymlinks(repo)
	if err != nil {
		return nil, err
	}
	var found []*template
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return filepath.SkipDir
		case d.Name() != "layer.conf" || filepath.Base(filepath.Dir(file)) != "conf":
			return nil
		}
		conf, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		layer := path.Base(path.Join(folder, path.Dir(filepath.ToSlash(conf))))
		samples, err := filepath.Glob(filepath.Join(quoteGlob(root), quoteGlob(conf), "templates/*/local.conf.sample"))
		for _, sample := range samples {
			name := filepath.Base(filepath.Dir(sample))
			found = append(found, &template{
				name: strings.TrimPrefix(layer, "meta-") + "-" + name,
				repo: root,
				path: filepath.Join(conf, "templates", name),
			})
		}
		return err
	})
	return found, err
}

// quoteGlob returns a path as a pattern that matches only it.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// readFiles returns the template's files for conf/, by name. Its texts about itself may
// be missing. Those of OpenEmbedded's default template are then used.
func (t *template) readFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	if t == nil {
		return files, nil
	}
	samples := map[string]string{
		"local.conf":       "local.conf.sample",
		"bblayers.conf":    "bblayers.conf.sample",
		"conf-summary.txt": "conf-summary.txt",
		"conf-notes.txt":   "conf-notes.txt",
	}
	for name, sample := range samples {
		content, err := readIn(t.repo, filepath.Join(t.path, sample))
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(name, ".txt") {
			content, err = readIn(t.core, filepath.Join("meta/conf/templates/default", sample))
		}
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(name, ".txt") {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", t.dir(), err)
		}
		files[name] = content
	}
	for _, mark := range []string{"##OEROOT##", "##COREBASE##"} {
		files["bblayers.conf"] = bytes.ReplaceAll(files["bblayers.conf"], []byte(mark), []byte(t.core))
	}
	files["templateconf.cfg"] = []byte(t.dir() + "\n")
	return files, nil
}

// readIn reads a file of a checkout. It may be a link, but not to outside its repository.
func readIn(repo, path string) ([]byte, error) {
	f, err := os.OpenInRoot(repo, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return localfile.ReadAll(f, path, maxFileBytes)
}
