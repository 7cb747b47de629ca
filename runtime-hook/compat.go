package main

import (
	"encoding/json"
	"path"
	"strings"

	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/elf"
	"slipway/runtime-hook/internal/inject"
	"slipway/runtime-hook/internal/plan"
)

// This file finds CUDA driver libraries in an image whose CUDA is newer than that of the board's
// driver (NVIDIA: forward compatibility). A hostile image decides only what its own container sees.

// compatLibraries are the libraries of an image that replace the board's.
type compatLibraries struct {
	Dir       string
	Libraries []plan.Library
}

// findCompat looks for CUDA driver libraries in the container's folder dir. It returns none unless
// they are newer than cuda, the version of the board's driver.
func findCompat(root *inject.Root, dir, cuda string) compatLibraries {
	if dir == "" || cuda == "" {
		return compatLibraries{}
	}
	names := root.Names(dir)
	driver, ok := findImageDriver(names)
	if !ok {
		return compatLibraries{}
	}
	if !choose.Newer(driverCUDA(root, path.Join(dir, driver)), cuda) {
		return compatLibraries{}
	}
	return compatLibraries{dir, listLibraries(root, dir, names)}
}

// findImageDriver returns the only file libcuda.so.*.* in the folder. With none or two, ok is
// false, because nothing says which of two is meant.
func findImageDriver(names []inject.Name) (driver string, ok bool) {
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

// driverCUDA reads the CUDA version from the driver library's ELF note, "" if it has none.
func driverCUDA(root *inject.Root, p string) string {
	f, err := root.OpenFile(p)
	if err != nil {
		return ""
	}
	defer f.Close()
	return parseNote(elf.Note(f, ".note.cuda.fwd_compatibility", "NVIDIA Corporation"))
}

// parseNote returns the CUDA version in the JSON text of a note; "" if it has none.
func parseNote(note []byte) string {
	var says struct {
		CUDA string `json:"CUDA Version"`
	}
	if json.Unmarshal(note, &says) != nil {
		return ""
	}
	return says.CUDA
}

// listLibraries returns the folder's shared libraries by soname; links, or without one, by name.
func listLibraries(root *inject.Root, dir string, names []inject.Name) (libs []plan.Library) {
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
