package source

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Notice is a licence or notice that must be distributed with a program that links its module.
type Notice struct {
	Module  string
	File    string // its path in the module
	Text    []byte
	Licence string // the terms of the whole module; "": of a part, or no licence
}

// Notices returns the legal texts of all modules that a program links on any architecture, sorted.
func Notices(ctx context.Context, dir, program string) ([]Notice, error) {
	found := map[string]Notice{}
	for _, arch := range architectures {
		linked, err := linkedBy(ctx, dir, []string{"GOOS=linux", "GOARCH=" + arch, "CGO_ENABLED=0", "GOFLAGS=-mod=readonly"}, program)
		if err != nil {
			return nil, err
		}
		for _, p := range linked {
			files, err := legalFiles(p)
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				if found[file], err = readNotice(p.Module, file); err != nil {
					return nil, err
				}
			}
		}
	}
	byModule := func(a, b Notice) int { return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(a.File, b.File)) }
	return slices.SortedFunc(maps.Values(found), byModule), nil
}

// readNotice reads a text. One in the module's own folder and not in otherTexts gets its Licence.
func readNotice(m *goModule, path string) (Notice, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Notice{}, err
	}
	name, err := filepath.Rel(m.Dir, path)
	n := Notice{Module: m.Path, File: name, Text: text}
	if _, other := otherTexts[m.Path+"/"+name]; !other && filepath.Dir(path) == m.Dir {
		n.Licence = licenceNames(text)
	}
	return n, err
}
