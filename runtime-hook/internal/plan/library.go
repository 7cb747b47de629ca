package plan

import (
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"slipway/runtime-hook/internal/elf"
)

// Library is a name that programs request from the linker, and its file's path in the container.
type Library struct {
	Name    string      `json:"name"`
	Path    string      `json:"path"`
	Machine elf.Machine `json:"machine"`
}

// maxFolderLibraries limits how many files of one folder are read.
const maxFolderLibraries = 4096

// findLibraries returns the libraries among p's files, links and folders, as ldconfig would find
// them on the board: a file by its soname, a link to a library by the link's name. It watches all.
func (c *compiler) findLibraries(p Plan) (out []Library) {
	for _, m := range p.Mounts {
		if m.Folder {
			out = append(out, c.folderLibraries(m)...)
		} else if lib, ok := c.libraryOf(m.Source); ok {
			out = append(out, Library{lib.Soname, m.Path, lib.Machine})
		}
	}
	for _, l := range p.Links {
		name := path.Base(l.Path)
		if lib, ok := c.libraryOf(l.File); ok && isLibraryName(name) && name != lib.Soname {
			out = append(out, Library{name, l.Path, lib.Machine})
		}
	}
	return out
}

// ProvidedLibraries returns those of libs at p's files and links, or directly in its folders.
func (p Plan) ProvidedLibraries(libs []Library) (out []Library) {
	paths := map[string]bool{}
	for _, m := range p.Mounts {
		paths[m.Path] = true
	}
	for _, l := range p.Links {
		paths[l.Path] = true
	}
	for _, l := range libs {
		if paths[l.Path] || paths[path.Dir(l.Path)] {
			out = append(out, l)
		}
	}
	return out
}

// libraryOf reads the board's file source as a library, watches it, and remembers the result.
func (c *compiler) libraryOf(source string) (elf.Library, bool) {
	lib, ok := c.libs[source]
	if !ok {
		c.watchPath(source)
		lib, _ = readLibrary(source)
		c.libs[source] = lib
	}
	return lib, lib != elf.Library{}
}

// isLibraryName reports whether ldconfig would look at a file of this name.
func isLibraryName(name string) bool {
	return strings.HasPrefix(name, "lib") && strings.Contains(name, ".so")
}

// readLibrary reads the board's library source, with its file name if it lacks a soname. It returns
// false if the name or the content is not a library's.
func readLibrary(source string) (elf.Library, bool) {
	if !isLibraryName(path.Base(source)) {
		return elf.Library{}, false
	}
	f, err := os.OpenFile(source, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return elf.Library{}, false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return elf.Library{}, false
	}
	lib, ok := elf.Read(f)
	if !ok {
		return elf.Library{}, false
	}
	if lib.Soname == "" {
		lib.Soname = path.Base(source)
	}
	return lib, true
}

// folderLibraries returns the libraries among up to maxFolderLibraries files directly in m, without
// links to other folders. It watches all of them.
func (c *compiler) folderLibraries(m Mount) (out []Library) {
	c.watchFolder(m.Source)
	dir, err := os.Open(m.Source)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxFolderLibraries)
	slices.Sort(names)
	for _, name := range names {
		at := m.Source + "/" + name
		c.watchPath(at)
		text, _ := os.Readlink(at)
		if strings.Contains(text, "/") {
			continue // its target may not be in the container
		}
		lib, ok := readLibrary(at)
		if text != "" {
			lib.Soname = name
		}
		if ok {
			out = append(out, Library{lib.Soname, m.Path + "/" + name, lib.Machine})
		}
	}
	return out
}
