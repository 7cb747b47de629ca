package main

import (
	"encoding/json"
	"path"
	"strings"

	"slipway/runtime-hook/internal/elf"
	"slipway/runtime-hook/internal/inject"
	"slipway/runtime-hook/internal/plan"
)

// This file finds CUDA driver libraries in an image whose CUDA is newer than that of the board's
// driver (NVIDIA: forward compatibility). A hostile image decides only what its own container sees.

// findImageDriver returns the only libcuda.so.*.* among names that is no link. With none or two, ok
// is false, because nothing says which of two is meant.
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

// driverCUDA returns the CUDA version in the JSON of the driver library's ELF note, "" without one.
func driverCUDA(root *inject.Root, p string) string {
	f, err := root.OpenFile(p)
	if err != nil {
		return ""
	}
	defer f.Close()
	var says struct {
		CUDA string `json:"CUDA Version"`
	}
	_ = json.Unmarshal(elf.Note(f, ".note.cuda.fwd_compatibility", "NVIDIA Corporation"), &says) // no version without JSON
	return says.CUDA
}

// listLibraries returns the shared libraries among names, the files of dir. A library's name is its
// soname, or the file name of a link or a file without soname.
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
