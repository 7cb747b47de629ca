package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/layers"
)

// keyKinds says what a key of board.yml is for. A key that is not here is for the build.
var keyKinds = map[string]string{
	"board": "", "description": "", "default": "", "extends": "", // what it inherits is compared
	"build":  "", // what a build needs of a machine
	"suites": forTest, "flash": forTest, "policy": forTest, "deploy": forTest, "ssh": forTest, "dpu": forTest, "machine": forTest,
}

const forTest = "test"

// compareBoards returns the differences in board.yml's keys for a build, in the files of the
// board's folder and in the resolved project. Files of layers are not compared here.
func (p *planner) compareBoards(before, after boardState) []string {
	var why []string
	for _, key := range changedKeys(before.keys, after.keys) {
		if _, known := keyKinds[key]; !known {
			why = append(why, "board.yml: "+key+" differs")
		}
	}
	why = append(why, p.compareFiles(before, after)...)
	why = append(why, compareProjects(before, after)...)
	return why
}

// changedKeys returns the sorted keys whose values differ between a and b.
func changedKeys(a, b map[string]json.RawMessage) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.DeleteFunc(slices.Compact(keys), func(key string) bool { return bytes.Equal(a[key], b[key]) })
}

// compareFiles returns a reason for each differing file of the board's folder. It skips project
// files, compared by value, and suites and signers' keys, which only tests and flashes read.
func (p *planner) compareFiles(before, after boardState) (why []string) {
	names := slices.Concat(before.spec.FileNames(), after.spec.FileNames())
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if p.isProjectFile(before, after, name) || isTestFile(before.spec, name) && isTestFile(after.spec, name) {
			continue
		}
		was, wasErr := before.spec.File(name)
		is, isErr := after.spec.File(name)
		if !bytes.Equal(was, is) || (wasErr == nil) != (isErr == nil) {
			why = append(why, p.pathOf(after, name)+describeChange(wasErr == nil, isErr == nil))
		}
	}
	return why
}

// describeChange returns " is new", " is gone" or " differs", by whether a file existed and exists.
func describeChange(was, is bool) string {
	switch {
	case !was:
		return " is new"
	case !is:
		return " is gone"
	}
	return " differs"
}

// isProjectFile reports whether a file is board.yml or a project file: compared by value, not byte.
func (p *planner) isProjectFile(before, after boardState, name string) bool {
	if name == "board.yml" {
		return true
	}
	read := slices.Concat(before.parts.Files, after.parts.Files)
	return slices.ContainsFunc(slices.Concat(before.spec.Lineage(), after.spec.Lineage()), func(board string) bool {
		return slices.Contains(read, filepath.Join(p.boards, board, name))
	})
}

// isTestFile reports whether board.yml names the file only for tests or for flashes.
func isTestFile(spec images.Spec, name string) bool {
	return name == spec.Flash.Signers || name == spec.SSH.HostCA ||
		spec.Policy != nil && name == spec.Policy.Signers ||
		slices.ContainsFunc(spec.Suites, func(s string) bool { return strings.HasSuffix(s, "/"+name) })
}

// pathOf returns a file's path in the folder of the board, or of a board that it extends, if the
// file changed there. If it changed in none, it is the path in the board's own folder.
func (p *planner) pathOf(m boardState, name string) string {
	for _, board := range slices.Backward(m.spec.Lineage()) {
		path := filepath.Join(p.boards, board, name)
		if slices.ContainsFunc(p.changes, func(c change) bool { return c.path == path }) {
			return path
		}
	}
	return filepath.Join(p.boards, m.spec.Board, name)
}

// compareProjects returns the differences in the values of two resolved projects. It skips the
// key header, and the key overrides after an earlier difference. Comments are no difference.
func compareProjects(before, after boardState) (why []string) {
	moved := map[string]bool{}
	for _, m := range layers.Moves(before.project, after.project) {
		switch {
		case m.To == "" && m.From == "":
			continue // the key of a repository without a pin says it, below
		case m.From == "":
			why = append(why, fmt.Sprintf("repository %s is new, at %.12s", m.ID, m.To))
		case m.To == "":
			why = append(why, fmt.Sprintf("repository %s is no longer at %.12s", m.ID, m.From))
		default:
			why = append(why, fmt.Sprintf("repository %s moves from %.12s to %.12s", m.ID, m.From, m.To))
		}
		moved[m.ID] = true
	}
	for _, key := range changedKeys(before.dump, after.dump) {
		if key == "header" || len(why) > 0 && key == "overrides" {
			continue
		}
		for _, below := range keysBelow(before.dump[key], after.dump[key]) {
			if key != "repos" || !moved[below] {
				why = append(why, "project: "+strings.TrimSuffix(key+"."+below, ".")+" differs")
			}
		}
	}
	return why
}

// keysBelow returns the keys that differ between two JSON objects. It returns one "" if they are no
// objects, or differ only in the order of keys.
func keysBelow(a, b json.RawMessage) []string {
	var was, is map[string]json.RawMessage
	_, _ = json.Unmarshal(a, &was), json.Unmarshal(b, &is) // what is no object stays nil
	if keys := changedKeys(was, is); len(keys) > 0 {
		return keys
	}
	return []string{""}
}

// testReasons returns why a board must be tested again: changed keys of board.yml that are only for
// tests, changed suites or files beside them, and changed files that only tests read.
func (p *planner) testReasons(before, after boardState) (why []string) {
	for _, key := range changedKeys(before.keys, after.keys) {
		if keyKinds[key] == forTest && before.keys != nil {
			why = append(why, "board.yml: "+key+" differs")
		}
	}
	own := p.ownSuites(after.spec)
	for _, c := range p.changes {
		named := slices.Contains(own, c.path)
		switch {
		case named:
			why = append(why, "suite "+c.path+describeChange(c.status != 'A', c.status != 'D'))
		case len(own) > 0 && isBelow(c.path, p.suites) && !p.isNamedSuite(c.path):
			why = append(why, c.path+" is beside its suites, which may include it")
		}
		for _, board := range after.spec.Lineage() {
			name, err := filepath.Rel(filepath.Join(p.boards, board), c.path)
			if err == nil && !named && isTestFile(after.spec, name) {
				why = append(why, c.path+" differs")
			}
		}
	}
	return why
}

// ownSuites returns the paths that the board's suites may have in the repository.
func (p *planner) ownSuites(spec images.Spec) (paths []string) {
	for _, suite := range spec.Suites {
		if !images.IsSuiteFile(suite) {
			for _, ext := range []string{".yml", ".yaml"} {
				paths = append(paths, filepath.Join(p.suites, suite+ext))
			}
		} else if rel, err := filepath.Rel(p.after.root, suite); err == nil && filepath.IsLocal(rel) {
			paths = append(paths, rel)
		}
	}
	return paths
}

// isNamedSuite reports whether any board names the file as a suite.
func (p *planner) isNamedSuite(path string) bool {
	for _, m := range p.after.boards {
		if slices.Contains(p.ownSuites(m.spec), path) {
			return true
		}
	}
	return false
}

// layerReasons returns a reason for each changed file of a board's layers, patches and submodules
// that its build reads, and for layers outside of the repository. It skips files that are compared
// by their values, or that a reason in said begins with.
func (p *planner) layerReasons(ctx context.Context, name string, before, after boardState, said []string) (why []string) {
	if after.spec.Debian != nil && before.spec.Debian != nil {
		return nil
	}
	for _, dir := range after.parts.Outside {
		why = append(why, dir+" is not in this repository, so nothing says what changed there")
	}
	patches := slices.Concat(before.parts.Patches, after.parts.Patches)
	areas := slices.Concat(before.areas, after.areas)
	parts := slices.Concat(before.parts.Files, after.parts.Files, patches)
	for _, board := range after.spec.Lineage() {
		parts = append(parts, filepath.Join(p.boards, board))
	}
	in, unknown := p.inputsOf(ctx, name, areas, parts)
	for _, c := range p.changes {
		if slices.ContainsFunc(patches, func(patch string) bool { return isBelow(c.path, patch) || isBelow(patch, c.path) }) {
			why = append(why, "patch "+c.path+describeChange(c.status != 'A', c.status != 'D'))
			continue
		}
		var data *bitbake.Inputs
		if unknown == "" {
			data = &in
		}
		if slices.Contains(parts, c.path) || slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, c.path+" ") }) {
			continue // compared by its values
		}
		if reason := reasonOf(c, areas, data, p.isDescription); reason != "" {
			if data == nil && !c.linked {
				reason += " (" + unknown + ")"
			}
			why = append(why, reason)
		}
	}
	return why
}

// reasonOf returns why a changed file makes a build necessary, or "" if it does not. in lists the
// files that the last build read; nil means that they are unknown. Files outside of the areas, and
// those of isDescription, which others compare by value, count only if they were read.
func reasonOf(c change, areas []area, in *bitbake.Inputs, isDescription func(string) bool) string {
	if in != nil {
		if recipe := readBy(c, *in); recipe != "" {
			return c.path + ": " + recipe + " reads it"
		}
	}
	i := slices.IndexFunc(areas, func(a area) bool { return a.has(c.path) })
	switch {
	case i < 0 || isDescription(c.path):
		return ""
	case c.linked:
		return fmt.Sprintf("submodule %s moves from %.12s to %.12s", c.path, c.was, c.is)
	case isRemark(c.path, areas):
		return ""
	case c.status != 'M':
		return c.path + describeChange(c.status != 'A', c.status != 'D') + " in " + areas[i].why
	case isForAll(c.path):
		return c.path + ": every recipe may use it"
	case in == nil:
		return c.path + " is in " + areas[i].why
	case slices.Contains(in.Unread, c.path):
		return ""
	}
	return c.path + ": no recipe of the last build names it, so nothing is known of it"
}

// readBy returns the recipe that reads a file or its folder, or looked for the missing file, or "".
func readBy(c change, in bitbake.Inputs) string {
	if recipe := in.Read[c.path]; recipe != "" {
		return recipe
	}
	for _, dir := range slices.Sorted(maps.Keys(in.Folders)) {
		if isBelow(c.path, dir) || c.linked && isBelow(dir, c.path) {
			return in.Folders[dir]
		}
	}
	if c.status != 'D' {
		return in.Missing[c.path]
	}
	return ""
}

// isRemark reports whether bitbake ignores a file: README or .gitignore atop an area or repository.
func isRemark(path string, areas []area) bool {
	base := filepath.Base(path)
	if !strings.HasPrefix(base, "README") && base != ".gitignore" {
		return false
	}
	dir := filepath.Dir(path)
	return dir == "." || slices.ContainsFunc(areas, func(a area) bool { return a.dir == dir })
}

// isForAll reports whether a file is configuration, a class or code, by its folder. Recipes use
// these without naming them.
func isForAll(path string) bool {
	return slices.ContainsFunc(strings.Split(filepath.Dir(path), "/"), func(part string) bool {
		return part == "conf" || part == "lib" || part == "classes" || strings.HasPrefix(part, "classes-")
	})
}
