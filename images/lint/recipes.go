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

// nameFiles holds, for each of the layers that people build boards with, the names that
// its branches have: recipes, packages, and machines as "machine:NAME". TestNames
// writes these files.
//
//go:embed names/*.txt
var nameFiles embed.FS

// table holds the names that the branches of one layer have. A name that ends in -* is a prefix.
type table struct {
	layer    string
	branches []string // the oldest first
	has      map[string]uint64
}

var tables = sync.OnceValue(func() []table {
	entries, err := nameFiles.ReadDir("names")
	if err != nil {
		panic(err)
	}
	var all []table
	for _, e := range entries {
		text, err := nameFiles.ReadFile(path.Join("names", e.Name()))
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

// readTable parses a table: a line "branches ...", then names with a hexadecimal set of branches.
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

// branchBit returns the bit of a branch, or 0.
func (t table) branchBit(name string) uint64 {
	i := slices.Index(t.branches, name)
	if i < 0 {
		return 0
	}
	return 1 << i
}

// exactBranches returns, as bits, the branches with a name, or its recipe if it is a -dev or -dbg.
func (t table) exactBranches(name string) uint64 { return t.has[name] | t.has[recipeStem(name)] }

// findBranches returns, as bits, the branches with a name, or a prefix (NAME-*) of split packages.
func (t table) findBranches(name string) uint64 {
	found := t.exactBranches(name)
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '-' {
			found |= t.has[name[:i]+"-*"]
		}
	}
	return found
}

// branchRange returns the oldest and the newest branch in a set of bits, without their commits, ""
// for no bits.
func (t table) branchRange(set uint64) (oldest, newest string) {
	if set == 0 {
		return "", ""
	}
	oldest, _, _ = strings.Cut(t.branches[bits.TrailingZeros64(set)], "@")
	newest, _, _ = strings.Cut(t.branches[bits.Len64(set)-1], "@")
	return oldest, newest
}

// recipeStem returns a package's name without a suffix such as -dev that bitbake adds by itself.
func recipeStem(name string) string {
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

// seriesOf returns the Yocto release that a branch is for: its name up to a dash, "" if unknown.
func seriesOf(branch string) string {
	name, _, _ := strings.Cut(branch, "-")
	if !slices.Contains(series, name) {
		return ""
	}
	return name
}

// fromRelease reports whether a branch is known and of this release or a later one.
func fromRelease(branch, release string) bool {
	s := seriesOf(branch)
	return s != "" && slices.Index(series, s) >= slices.Index(series, release)
}

// Before reports whether a branch is known and of an older release than this one.
func Before(branch, release string) bool {
	s := seriesOf(branch)
	return s != "" && slices.Index(series, s) < slices.Index(series, release)
}
