package layers

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
)

// Configure writes conf/local.conf, conf/bblayers.conf and CACHEDIR.TAG of a build folder for
// checkouts in ws, byte for byte as kas 5 does, or a bitbake-setup project's files. It writes only
// files that differ, because a rewritten file makes bitbake parse everything again. For kas it
// removes old files of bitbake-setup and templateconf.cfg. The user's site.conf and auto.conf stay.
func Configure(p Project, ws Workspace, build string) error {
	var err error
	if ws.Dir, err = filepath.Abs(ws.Dir); err != nil {
		return err
	}
	if build, err = filepath.Abs(build); err != nil {
		return err
	}
	if p.setup != nil {
		return p.configureSetup(ws, build)
	}
	conf := filepath.Join(build, "conf")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		return err
	}
	if err := writeChanged(filepath.Join(build, "CACHEDIR.TAG"), []byte(cacheTag)); err != nil {
		return err
	}
	bblayers, err := p.bblayersConf(ws, build)
	if err != nil {
		return err
	}
	if err := removeSetupConf(conf); err != nil {
		return err
	}
	// It names the template of the release that was built last. A newer
	// oe-init-build-env refuses an older one's, although it needs none.
	if err := localfile.Remove(filepath.Join(conf, "templateconf.cfg")); err != nil {
		return err
	}
	if err := writeChanged(filepath.Join(conf, "bblayers.conf"), bblayers); err != nil {
		return err
	}
	return writeChanged(filepath.Join(conf, "local.conf"), p.localConf())
}

// cacheTag tells backup programs to skip the folder, which can be built again.
const cacheTag = "Signature: 8a477f597d28d172789f06886806bc55\n# bitbake builds here.\n"

// writeChanged writes a file unless it has that content already.
func writeChanged(path string, content []byte) error {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return localfile.Replace(path, content)
}

// localConf returns local.conf as kas writes it: the project's blocks, then its other settings.
func (p Project) localConf() []byte {
	var b bytes.Buffer
	writeBlocks(&b, p.LocalConf)
	fmt.Fprintf(&b, "MACHINE ??= \"%s\"\n", p.Machine)
	fmt.Fprintf(&b, "DISTRO ??= \"%s\"\n", p.Distro)
	fmt.Fprintf(&b, "BBMULTICONFIG ?= \"%s\"\n", strings.Join(p.multiconfigs(), " "))
	if p.BuildSystem == "isar-rootless" {
		b.WriteString("ISAR_ROOTLESS ?= \"1\"\n")
	}
	return b.Bytes()
}

// multiconfigs returns each NAME of the targets mc:NAME:RECIPE once, in the order of the targets.
// kas writes them in an order that changes from run to run.
func (p Project) multiconfigs() []string {
	var names []string
	for _, target := range p.Targets {
		parts := strings.Split(target, ":")
		if len(parts) < 2 || (parts[0] != "mc" && parts[0] != "multiconfig") {
			continue
		}
		if !slices.Contains(names, parts[1]) {
			names = append(names, parts[1])
		}
	}
	return names
}

// bblayersConf returns kas's bblayers.conf: the project's blocks, and the layers' paths from build.
func (p Project) bblayersConf(ws Workspace, build string) ([]byte, error) {
	var b bytes.Buffer
	writeBlocks(&b, p.BBLayersConf)
	b.WriteString("BBLAYERS ?= \" \\\n    ")
	for i, l := range p.sortedLayers(ws) {
		path, err := bblayersPath(build, l.path)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString(" \\\n    ")
		}
		b.WriteString(path)
	}
	b.WriteString("\"\nBBPATH ?= \"${TOPDIR}\"\nBBFILES ??= \"\"\n")
	return b.Bytes(), nil
}

// bblayersPath returns a layer's path for bblayers.conf: relative to TOPDIR as kas writes it, or
// absolute if the build folder is behind a symbolic link, so that ../ leads elsewhere.
func bblayersPath(build, layer string) (string, error) {
	rel, err := filepath.Rel(build, layer)
	if err != nil {
		return "", err
	}
	want, err := os.Stat(layer)
	if err != nil { // bitbake says that it is missing
		return "${TOPDIR}/" + rel, nil
	}
	if found, err := os.Stat(build + "/" + rel); err != nil || !os.SameFile(found, want) {
		return layer, nil
	}
	return "${TOPDIR}/" + rel, nil
}

// writeBlocks writes the blocks, sorted by name, each below a comment with its name.
func writeBlocks(b *bytes.Buffer, blocks map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(blocks)) {
		fmt.Fprintf(b, "# %s\n%s\n", name, blocks[name])
	}
}

type placedLayer struct {
	Layer
	repo, path string
}

// sortedLayers returns bblayers.conf's layers: by falling priority, then by repository and name.
func (p Project) sortedLayers(ws Workspace) []placedLayer {
	var all []placedLayer
	for _, r := range p.Repos {
		for _, l := range r.Layers {
			all = append(all, placedLayer{l, r.Name, filepath.Join(p.Dir(ws, r), l.Name)})
		}
	}
	slices.SortStableFunc(all, func(a, b placedLayer) int {
		return cmp.Or(-cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.repo, b.repo), cmp.Compare(a.Name, b.Name))
	})
	return all
}
