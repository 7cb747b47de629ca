package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// projectState is the project at one state: before the change, or after it.
type projectState struct {
	root   string // of its files
	boards map[string]boardState
}

// boardState is all that Slipway knows of one board at one state: board.yml, project, layers.
type boardState struct {
	spec    images.Spec
	keys    map[string]json.RawMessage // of board.yml, with inherited keys
	project layers.Project
	dump    map[string]json.RawMessage // of the project; nil for a board of Debian packages
	areas   []area
	parts   layers.Parts
	err     error // why nothing more is known
}

// area is a folder of which bitbake may read all files.
type area struct {
	dir string // from the root; "." is the whole repository
	why string
}

// has reports whether a path is in the area, or is a folder (such as a submodule) that contains it.
func (a area) has(path string) bool {
	return isBelow(path, a.dir) || isBelow(a.dir, path)
}

// isBelow reports whether a path is a folder or below it.
func isBelow(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// loadState loads all boards below root/boards. If a board cannot be loaded, its err says why.
func loadState(ctx context.Context, root, boards string, opt images.Options) projectState {
	s := projectState{root: root, boards: map[string]boardState{}}
	folder := filepath.Join(root, boards)
	for _, name := range images.BoardsIn(folder) {
		s.boards[name] = s.loadBoard(ctx, folder, name, opt)
	}
	return s
}

// loadBoard loads board.yml, for bitbake also project, layers and areas. m.err is the first error.
func (s projectState) loadBoard(ctx context.Context, folder, name string, opt images.Options) (m boardState) {
	if m.spec, m.err = images.LoadIn(folder, name); m.err != nil {
		return m
	}
	text, err := json.Marshal(m.spec)
	if err == nil {
		// Suites of the board's folder have whole paths.
		err = json.Unmarshal(bytes.ReplaceAll(text, []byte(s.root+"/"), nil), &m.keys)
	}
	if m.err = err; err != nil || m.spec.Debian != nil {
		return m
	}
	var ws layers.Workspace
	if m.project, ws, m.err = images.Project(ctx, m.spec, opt); m.err != nil {
		return m
	}
	text, m.err = layers.DumpJSON(m.project)
	if m.err == nil {
		m.err = json.Unmarshal(text, &m.dump)
	}
	m.parts = m.project.Parts(ws)
	m.areas = s.areasOf(m)
	return m
}

// outward matches a path with .. after a bitbake variable, which may leave the file's folder.
var outward = plaintext.Regexp(`(LAYERDIR|THISDIR|FILE_DIRNAME|TOPDIR|COREBASE|BBPATH)[^\n]*/\.\.`)

// areasOf returns the folders of the board's layers as areas. If local.conf, or a file of a layer
// in no submodule, names files outside of its folder, it adds the whole repository.
func (s projectState) areasOf(m boardState) []area {
	var areas []area
	for _, layer := range m.parts.Layers {
		areas = append(areas, area{layer, "layer " + layer})
	}
	for _, block := range m.project.LocalConfBlocks() {
		if outward().MatchString(block.Text) {
			return append(areas, area{".", block.Name + " in local.conf names files outside of its folder"})
		}
	}
	for _, layer := range m.parts.Layers {
		if s.inOtherRepository(layer) {
			continue // what others wrote knows nothing of the repository around it
		}
		if file := findOutward(filepath.Join(s.root, layer)); file != "" {
			rel, err := filepath.Rel(s.root, file)
			if err != nil {
				rel = file
			}
			return append(areas, area{".", rel + " names files outside of its layer"})
		}
	}
	return areas
}

// inOtherRepository reports whether a folder is in a submodule, or in another clone below the root.
func (s projectState) inOtherRepository(dir string) bool {
	for ; dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(s.root, dir, ".git")); err == nil {
			return true
		}
	}
	return false
}

// metadata are the endings of files that bitbake itself reads.
var metadata = []string{".bb", ".bbappend", ".bbclass", ".conf", ".inc"}

const maxMetadataBytes = 1 << 20

// findOutward returns a layer's first file of metadata that names files outside or is unreadable,
// the layer itself if one of its folders is unreadable, or "".
func findOutward(layer string) (found string) {
	err := filepath.WalkDir(layer, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains(metadata, filepath.Ext(path)) {
			return err
		}
		text, err := localfile.Read(path, maxMetadataBytes)
		if err != nil || leadsOut(layer, path, string(text)) {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		return layer
	}
	return found
}

// leadsOut reports whether a file names a path outside of its layer. From the file's folder, that
// is a path with more .. than the file is deep; from any other folder, each path with .. counts.
func leadsOut(layer, path, text string) bool {
	below, err := filepath.Rel(layer, filepath.Dir(path))
	if err != nil {
		return true
	}
	depth := len(strings.Split(below, "/"))
	if below == "." {
		depth = 0
	}
	for _, line := range outward().FindAllString(text, -1) {
		if beside := strings.HasPrefix(line, "THISDIR") || strings.HasPrefix(line, "FILE_DIRNAME"); !beside || strings.Count(line, "..") > depth {
			return true
		}
	}
	return false
}
