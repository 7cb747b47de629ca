package layers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/yaml"
)

const (
	localConfNote = `#
# This file is intended for local configuration tweaks.
#
# If you would like to publish and share changes made to this file,
# it is recommended to put them into a distro config, or to create
# layer fragments from changes made here.
#
`
	toolConfNote = `# Automated config file controlled by tools
#
# Run 'bitbake-config-build enable-fragment <fragment-name>' to enable additional fragments
# or replace built-in ones (e.g. machine/<name> or distro/<name> to change MACHINE or DISTRO).
`
)

// toolConf is the file in conf/ where bitbake-config-build stores the enabled fragments.
const toolConf = "toolcfg.conf"

// configureSetup writes conf/ as bitbake-setup does. A file that the user or bitbake-config-build
// edited stays as it is, and is an error if the project file then asks for other content.
func (p Project) configureSetup(ws Workspace, build string) error {
	files, err := p.setupConf(ws)
	if err != nil {
		return err
	}
	conf := filepath.Join(build, "conf")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		return err
	}
	w, err := readConfRecord(conf)
	if err != nil {
		return err
	}
	changed := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		write, err := w.needsWrite(name, files[name])
		if err != nil {
			return fmt.Errorf("%w, and %s now asks for other content; move it away, build again, and put your changes back in", err, p.File)
		}
		if write {
			changed[name] = files[name]
		}
	}
	return w.applyChanges(files, changed)
}

// removeSetupConf removes the files that a bitbake-setup project wrote into conf/, and their
// record: in a kas project, old fragments would stay enabled. It refuses if the user edited one.
func removeSetupConf(conf string) error {
	w, err := readConfRecord(conf)
	if err != nil || len(w.digests) == 0 {
		return err
	}
	unwanted := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(w.digests)) {
		path := filepath.Join(conf, name)
		if remove, err := w.needsWrite(name, nil); err != nil {
			return err
		} else if remove {
			unwanted[name] = nil
		} else if localfile.Exists(path) {
			return fmt.Errorf("%s was edited, and the project file is now kas's, for which Slipway would rewrite it; move it away, build again, and put your changes into site.conf", path)
		}
	}
	if err := w.applyChanges(nil, unwanted); err != nil {
		return err
	}
	return os.Remove(filepath.Join(conf, writtenFile))
}

// setupConf returns the content of the files in conf/ by name, nil for a file that must not exist.
func (p Project) setupConf(ws Workspace) (map[string][]byte, error) {
	layers, err := p.setupLayersConf(ws)
	if err != nil {
		return nil, err
	}
	fragments, err := p.fragmentsConf(ws)
	if err != nil {
		return nil, err
	}
	notes := ""
	if p.setup.notes != "" {
		notes = p.setup.notes + "\n"
	}
	return map[string][]byte{
		"bblayers.conf":    layers,
		"local.conf":       []byte(localConfNote),
		"templateconf.cfg": {},
		"conf-summary.txt": []byte(p.setup.description + "\n"),
		"conf-notes.txt":   []byte(notes),
		toolConf:           fragments,
	}, nil
}

// setupLayersConf returns bblayers.conf as bitbake-setup writes it, with absolute paths. A layer
// beside the project file must exist in its repository. It refuses paths that bitbake cannot read.
func (p Project) setupLayersConf(ws Workspace) ([]byte, error) {
	file, _, _ := cutSetup(p.File)
	here, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, v := range p.setup.layers {
		path := ws.Dir + "/" + v.Text
		if i, rest := p.repoAround(v.Text); p.Repos[i].URL == "" {
			path = filepath.Join(p.Dir(ws, p.Repos[i]), rest)
		}
		paths = append(paths, path)
	}
	for _, v := range p.setup.beside {
		path := here + "/" + v.Text // not cleaned: a .. behind a link leads elsewhere
		if !localfile.Exists(path) {
			return nil, v.At.Errorf("bb-layers-file-relative: there is no %s", path)
		}
		if !isInside(p.Root, path) {
			return nil, v.At.Errorf("bb-layers-file-relative: %q leads out of the repository %s; name it as a local source", v.Text, p.Root)
		}
		paths = append(paths, path)
	}
	var b strings.Builder
	b.WriteString("BBLAYERS ?= \" \\\n")
	for _, path := range paths {
		if strings.ContainsAny(path, " \t\n\"\\$") {
			return nil, fmt.Errorf("%s: bitbake cannot read a layer from a folder with such a name; move it", path)
		}
		fmt.Fprintf(&b, "  %s \\\n", path)
	}
	b.WriteString("  \"\n")
	return []byte(b.String()), nil
}

// fragmentsConf returns the file that enables the project's fragments, nil for none. It returns an
// error for an OpenEmbedded that does not read the file, which would build for another machine.
func (p Project) fragmentsConf(ws Workspace) ([]byte, error) {
	if len(p.setup.fragments) == 0 {
		return nil, nil
	}
	for _, r := range p.Repos {
		data, err := readIn(p.Dir(ws, r), "meta/conf/bitbake.conf")
		if err == nil && !strings.Contains(string(data), "conf/"+toolConf) {
			return nil, r.At.Errorf("sources.%s: this OpenEmbedded does not read fragments from conf/%s; whinlatter and later do", r.ID, toolConf)
		}
	}
	return fmt.Appendf(nil, "%s\nOE_FRAGMENTS += \"%s\"\n", toolConfNote, strings.Join(p.setup.fragments, " ")), nil
}

// confRecord holds the digests of Slipway's files in conf/, by which it knows edited ones.
type confRecord struct {
	conf    string
	digests map[string]string // by name
}

const writtenFile = ".slipway-written.json"

// readConfRecord reads the digests of writtenFile in conf; none if the file does not exist.
func readConfRecord(conf string) (confRecord, error) {
	w := confRecord{conf: conf, digests: map[string]string{}}
	data, err := os.ReadFile(filepath.Join(conf, writtenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return w, err
	}
	if err := json.Unmarshal(data, &w.digests); err != nil {
		return w, fmt.Errorf("%s: %w; delete it", filepath.Join(conf, writtenFile), err)
	}
	return w, nil
}

// needsWrite reports whether a file must be written, or removed if content is nil. An edited file
// is never removed, and is an error if it would get other content than Slipway wrote last.
func (w confRecord) needsWrite(name string, content []byte) (bool, error) {
	path := filepath.Join(w.conf, name)
	old, err := os.ReadFile(path)
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	before := w.digests[name]
	switch {
	case !there:
		return content != nil, nil
	case content == nil:
		return before == hexDigest(old), nil
	case hexDigest(old) == hexDigest(content):
		return false, nil
	case before == hexDigest(old):
		return true, nil
	case before == hexDigest(content): // edited, and the project asks for nothing new
		return false, nil
	}
	return false, fmt.Errorf("%s was edited or made by something else", path)
}

func hexDigest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// applyChanges writes changed files, or removes those that are nil, and then records all files. The
// next run repeats a killed one.
func (w confRecord) applyChanges(files, changed map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		path := filepath.Join(w.conf, name)
		if changed[name] == nil {
			if err := os.Remove(path); err != nil {
				return err
			}
		} else if err := writeChanged(path, changed[name]); err != nil {
			return err
		}
	}
	now := map[string]string{}
	for name, content := range files {
		if content != nil {
			now[name] = hexDigest(content)
		}
	}
	data, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return err
	}
	return writeChanged(filepath.Join(w.conf, writtenFile), append(data, '\n'))
}

// readIn reads a file of a checkout, at most yaml.MaxFileBytes, and follows no link out of it.
func readIn(repo, path string) ([]byte, error) {
	f, err := os.OpenInRoot(repo, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return localfile.ReadAll(f, path, yaml.MaxFileBytes)
}
