// Package ldcache lets the programs of a container find the board's libraries. It edits the file of
// glibc's dynamic linker, /etc/ld.so.cache. It runs no program of the container, not even ldconfig.
// It keeps the image's entries, without trust. It replaces a broken file, but no unknown one.
package ldcache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/elf"
	"slipway/runtime-hook/internal/inject"
	"slipway/runtime-hook/internal/plan"
)

const (
	cachePath = "/etc/ld.so.cache"
	confPath  = "/etc/ld.so.conf.d/00-slipway.conf"
)

// Update adds libs to the container's ld.so.cache and ld.so.conf.d, for machines whose glibc linker
// it has. It returns notes, no error, as a container may find libraries by paths of its own.
func Update(root *inject.Root, libs []plan.Library) (notes []string) {
	note := func(file string, err error) {
		switch {
		case errors.Is(err, errBroken):
			notes = append(notes, fmt.Sprintf("the image's %s: %v; it was replaced", file, err))
		case err != nil:
			notes = append(notes, fmt.Sprintf("%s: %v; programs may need LD_LIBRARY_PATH", file, err))
		}
	}
	libs = loadable(root, libs)
	note(cachePath, updateCache(root, libs))
	if len(libs) > 0 {
		note(confPath, updateConf(root, libs))
	}
	return notes
}

// loadable returns those of libs for whose machine the container has glibc's linker.
func loadable(root *inject.Root, libs []plan.Library) []plan.Library {
	has := map[elf.Machine]bool{}
	for _, l := range libs {
		if _, asked := has[l.Machine]; !asked {
			has[l.Machine] = slices.ContainsFunc(linkers[l.Machine].glibc, root.Has)
		}
	}
	return slices.DeleteFunc(slices.Clone(libs), func(l plan.Library) bool { return !has[l.Machine] })
}

// canBeListed reports whether a linker's configuration file can name the folder.
func canBeListed(dir string) bool { return !strings.ContainsAny(dir, "\n#= \t\r") }

// compatDir is where images have CUDA libraries. The cache has them only if newer than the board's.
const compatDir = "/usr/local/cuda/compat"

// updateCache adds libs to the container's ld.so.cache. It removes an earlier hook's entries in
// compatDir, and entries that now lead to empty files, because the board had more libraries then.
// It replaces a broken cache, and returns errBroken. Without libs, it ignores a bad cache.
func updateCache(root *inject.Root, libs []plan.Library) error {
	data, err := root.ReadFile(cachePath, maxBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, inject.ErrNoFile) {
		return errorIfAny(libs, err)
	}
	c, err := parseCache(data)
	if errors.Is(err, errUnknown) || err != nil && len(libs) == 0 {
		return errorIfAny(libs, err)
	}
	if err != nil {
		c = &cache{}
	}
	before := c.entries
	if c.ours || root.HadBlanks() {
		c.removeEntries(func(p string) bool { return strings.HasPrefix(p, compatDir) || root.IsBlank(p) })
	}
	if len(libs) > 0 {
		c.addEntries(newEntries(libs))
	}
	if slices.Equal(c.entries, before) {
		return nil
	}
	c.ours = true
	return cmp.Or(root.WriteFile(cachePath, c.encode()), err)
}

// errorIfAny returns err, or nil if libs is empty, because then err concerns no library.
func errorIfAny(libs []plan.Library, err error) error {
	if len(libs) == 0 {
		return nil
	}
	return err
}

// newEntries returns the cache's entry for each of libs, with the flags of its machine.
func newEntries(libs []plan.Library) []entry {
	out := make([]entry, len(libs))
	for i, l := range libs {
		out[i] = entry{flags: linkers[l.Machine].flags, name: l.Name, path: l.Path}
	}
	return out
}

// updateConf writes folders of libs that ldconfig lacks into a file in ld.so.conf.d, for one that
// runs in the container later. It skips an image without configuration of ldconfig, or read-only.
func updateConf(root *inject.Root, libs []plan.Library) error {
	if !root.Has(path.Dir(confPath)) && !root.Has("/etc/ld.so.conf") {
		return nil
	}
	var text string
	seen := map[string]bool{}
	for _, l := range libs {
		dir := path.Dir(l.Path)
		if !seen[dir] && canBeListed(dir) && !knowsFolder(root, dir) {
			text += dir + "\n"
		}
		seen[dir] = true
	}
	old, err := root.ReadFile(confPath, maxBytes)
	if string(old) == text && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		return nil
	}
	err = root.WriteFile(confPath, []byte(text))
	if errors.Is(err, unix.EROFS) {
		return nil // an ldconfig could not write its cache either
	}
	return err
}

// knowsFolder reports whether dir is a usual folder that the image's ldconfig reads anyway. Naming
// such a folder first would change which of the image's own libraries ldconfig prefers.
func knowsFolder(root *inject.Root, dir string) bool {
	switch dir {
	case "/lib", "/lib64", "/usr/lib", "/usr/lib64":
		return true
	}
	for _, l := range linkers {
		if dir == "/lib/"+l.dir || dir == "/usr/lib/"+l.dir {
			return root.Has("/etc/ld.so.conf.d/" + l.dir + ".conf")
		}
	}
	return false
}
