// Package compat finds the CUDA driver libraries that an image brings itself, where they
// are of a newer CUDA than the board's driver (NVIDIA calls it forward compatibility).
// The image is hostile: nothing of these files is believed but what the container may see.
package compat

import (
	"encoding/json"
	"path"
	"strings"

	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/elf"
	"slipway/runtime-hook/internal/inject"
	"slipway/runtime-hook/internal/plan"
)

// Used are the libraries of an image that its programs get in the place of the board's.
type Used struct {
	Dir       string
	Libraries []plan.Library
}

// Find looks into the folder dir of the container, on a board whose driver has cuda. Used
// is nothing where the board's own libraries are to be found.
func Find(root *inject.Root, dir, cuda string) Used {
	if dir == "" || cuda == "" {
		return Used{}
	}
	names := root.Names(dir)
	driver, ok := driver(names)
	if !ok {
		return Used{}
	}
	if !choose.Newer(version(root, path.Join(dir, driver)), cuda) {
		return Used{}
	}
	return Used{dir, libraries(root, dir, names)}
}

// driver is the one libcuda of the folder. Of two, nothing says which is meant.
func driver(names []inject.Name) (driver string, ok bool) {
	for _, n := range names {
		if match, _ := path.Match("libcuda.so.*.*", n.Name); !match || n.Link != "" {
			continue
		}
		if driver != "" {
			return "", false
		}
		driver = n.Name
	}
	return driver, driver != ""
}

// version is the CUDA that the driver library at p says it is for, "" where it does not.
func version(root *inject.Root, p string) string {
	f, err := root.OpenFile(p)
	if err != nil {
		return ""
	}
	defer f.Close()
	return parse(elf.Note(f, ".note.cuda.fwd_compatibility", "NVIDIA Corporation"))
}

func parse(note []byte) string {
	var says struct {
		CUDA string `json:"CUDA Version"`
	}
	if json.Unmarshal(note, &says) != nil {
		return ""
	}
	return says.CUDA
}

// libraries are those in the folder, each by its soname, and each link by its own name.
func libraries(root *inject.Root, dir string, names []inject.Name) (libs []plan.Library) {
	for _, n := range names {
		if !strings.HasPrefix(n.Name, "lib") || !strings.Contains(n.Name, ".so") {
			continue
		}
		at := path.Join(dir, n.Name)
		f, err := root.OpenFile(at)
		if err != nil {
			continue
		}
		lib, ok := elf.Read(f)
		f.Close()
		if n.Link != "" || lib.Soname == "" {
			lib.Soname = n.Name
		}
		if ok {
			libs = append(libs, plan.Library{Name: lib.Soname, Path: at, Machine: lib.Machine})
		}
	}
	return libs
}
