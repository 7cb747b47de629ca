package bench

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/ci/dev/tinyboard"
)

// configureFloor sets the floor as the hook, and writes its plan.
func (b *hookBench) configureFloor(c *tinyboard.Container) error {
	plan := filepath.Join(b.board.Dir, "floor.plan")
	c.CreateRuntime(b.floor, plan)
	return os.WriteFile(plan, []byte(b.floorPlan()), 0o644)
}

// floorPlan returns the plan for the floor: the folders that the image lacks, the outer
// ones first, and the files of each.
func (b *hookBench) floorPlan() string {
	lines := []string{"cache\t" + b.cache}
	there := map[string]bool{"/": true, "/dev": true}
	for dir := b.board.Shared(); dir != "/"; dir = filepath.Dir(dir) {
		there[dir] = true
	}
	var folder func(dir string)
	folder = func(dir string) {
		if !there[dir] {
			there[dir] = true
			folder(filepath.Dir(dir))
			lines = append(lines, "make\t"+dir)
		}
	}
	in := map[string][]string{}
	put := func(kind, path string, more ...string) {
		dir, name := filepath.Split(path)
		dir = filepath.Clean(dir)
		folder(dir)
		in[dir] = append(in[dir], strings.Join(append([]string{kind, name}, more...), "\t"))
	}
	for i := range hookSize.Libraries {
		path, _ := b.board.Library(i)
		put("file", path)
	}
	for i := range hookSize.Links {
		path, _ := b.board.Library(i)
		put("link", b.board.Link(i), filepath.Base(path))
	}
	for i := range hookSize.Folders {
		put("folder", b.board.Folder(i))
	}
	for i := range hookSize.Devices {
		put("null", b.board.Device(i))
	}
	for _, dir := range slices.Sorted(maps.Keys(in)) {
		lines = append(append(lines, "in\t"+dir), in[dir]...)
	}
	return strings.Join(lines, "\n") + "\n"
}
