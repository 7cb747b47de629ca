package bench

import (
	"os"
	"path/filepath"
	"strings"

	"slipway/ci/tinyboard"
)

// askFloor names the floor as the hook, and writes what it is to do.
func (b *hookBench) askFloor(c *tinyboard.Container) error {
	plan := filepath.Join(b.board.Dir, "floor.plan")
	c.CreateRuntime(b.floor, plan)
	return os.WriteFile(plan, []byte(b.floorPlan()), 0o644)
}

// floorPlan is the list for the floor: the folders, the outer ones first, and what is in
// each.
func (b *hookBench) floorPlan() string {
	lines := []string{"cache\t" + b.cache}
	var folders []string
	in := map[string][]string{"/": nil, "/dev": nil} // which every container has
	var folder func(dir string)
	folder = func(dir string) {
		if _, ok := in[dir]; !ok {
			folder(filepath.Dir(dir))
			in[dir] = nil
			folders = append(folders, dir)
			lines = append(lines, "make\t"+dir)
		}
	}
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
	for _, dir := range folders {
		if len(in[dir]) > 0 {
			lines = append(append(lines, "in\t"+dir), in[dir]...)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}
