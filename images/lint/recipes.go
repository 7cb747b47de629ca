package lint

import (
	"embed"
	"fmt"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// names holds, for each of the layers that people build boards with, which names its
// branches have: recipes, packages, and machines as "machine:NAME". TestNames writes
// these files.
//
//go:embed names/*.txt
var names embed.FS

// table is the names of one layer's branches. A name that ends in -* stands for all
// that begin so.
type table struct {
	layer    string
	branches []string // the oldest first
	has      map[string]uint64
}

var tables = sync.OnceValue(func() []table {
	entries, err := names.ReadDir("names")
	if err != nil {
		panic(err)
	}
	var all []table
	for _, e := range entries {
		text, err := names.ReadFile(path.Join("names", e.Name()))
		if err != nil {
			panic(err)
		}
		t, err := readTable(strings.TrimSuffix(e.Name(), ".txt"), string(text))
		if err != nil {
			panic(err) // it is our own, and tests read it
		}
		all = append(all, t)
	}
	return all
})

const branchesMark = "branches "

// readTable reads a line "branches ..." and then lines of a name and a hexadecimal
// number whose bits are the branches that have it.
func readTable(layer, text string) (table, error) {
	t := table{layer: layer, has: map[string]uint64{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if list, ok := strings.CutPrefix(line, branchesMark); ok {
			t.branches = strings.Fields(list)
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, mask, _ := strings.Cut(line, " ")
		n, err := strconv.ParseUint(mask, 16, 64)
		if err != nil || bits.Len64(n) > len(t.branches) {
			return table{}, fmt.Errorf("names/%s.txt: %q", layer, line)
		}
		t.has[name] = n
	}
	return t, nil
}

// branch returns the bit of a branch, or 0.
func (t table) branch(name string) uint64 {
	i := slices.Index(t.branches, name)
	if i < 0 {
		return 0
	}
	return 1 << i
}

// written returns the branches that have a name as itself, or as the recipe whose -dev
// or -dbg it is.
func (t table) written(name string) uint64 { return t.has[name] | t.has[stem(name)] }

// find returns the branches that have a name as written, or as one of those that a
// recipe splits off when it is built. Branches before may name such a package one by
// one, in a table that has no packages.
func (t table) find(name string) uint64 {
	found := t.written(name)
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '-' {
			found |= t.has[name[:i]+"-*"]
		}
	}
	return found
}

// last is the newest branch of a set that t has, as a person would name it.
func (t table) last(set uint64) string {
	if set == 0 {
		return ""
	}
	branch, _, _ := strings.Cut(t.branches[bits.Len64(set)-1], "@")
	return branch
}

// first is the oldest.
func (t table) first(set uint64) string {
	if set == 0 {
		return ""
	}
	branch, _, _ := strings.Cut(t.branches[bits.TrailingZeros64(set)], "@")
	return branch
}

// stem is the name of the recipe that bitbake makes a package of by itself.
func stem(name string) string {
	for _, suffix := range []string{"-dev", "-dbg", "-doc", "-src", "-staticdev", "-locale", "-ptest", "-bin", "-lic"} {
		if s, ok := strings.CutSuffix(name, suffix); ok {
			return s
		}
	}
	return name
}

// series are Yocto's releases, the oldest first.
var series = []string{
	"thud", "warrior", "zeus", "dunfell", "gatesgarth", "hardknott", "honister", "kirkstone", "langdale", "mickledore",
	"nanbield", "scarthgap", "styhead", "walnascar", "whinlatter", "wrynose", "master",
}

// seriesOf is the release that a branch is for: its name up to a dash.
func seriesOf(branch string) string {
	name, _, _ := strings.Cut(branch, "-")
	if !slices.Contains(series, name) {
		return ""
	}
	return name
}

// since is true where a branch is of a release, or of a later one. Of an unknown branch
// it is false, so that nothing is said of it.
func since(branch, release string) bool {
	s := seriesOf(branch)
	return s != "" && slices.Index(series, s) >= slices.Index(series, release)
}

// Before is true for a branch of a release older than another; false for an unknown one.
func Before(branch, release string) bool {
	s := seriesOf(branch)
	return s != "" && slices.Index(series, s) < slices.Index(series, release)
}
