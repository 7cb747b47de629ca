package source

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"slipway/layers/lazy"
)

// Notice is a text that goes along with a program, since the owner of a linked module wants it.
type Notice struct {
	Module  string
	File    string // its path in the module
	Text    []byte
	Licence string // the terms of the whole module; "": of a part, or no licence
}

// noticeFile is a file that the Apache License wants to be passed on beside itself.
var noticeFile = lazy.Regexp(`(?i)^notice`)

// Notices returns the texts of all that a program links, on each architecture.
func Notices(ctx context.Context, dir, program string) ([]Notice, error) {
	found := map[string]Notice{}
	for _, arch := range architectures {
		linked, err := linkedBy(ctx, dir, []string{"GOOS=linux", "GOARCH=" + arch, "CGO_ENABLED=0", "GOFLAGS=-mod=readonly"}, program)
		if err != nil {
			return nil, err
		}
		for _, p := range linked {
			if err := addNotices(found, p); err != nil {
				return nil, err
			}
		}
	}
	all := make([]Notice, 0, len(found))
	for _, n := range found {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b Notice) int { return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(a.File, b.File)) })
	return all, nil
}

// addNotices adds the texts from the package's folder up to its module's.
func addNotices(found map[string]Notice, p goPackage) error {
	for dir := p.Dir; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Module.Path, err)
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || filepath.Ext(e.Name()) == ".go" || !licenceFile().MatchString(e.Name()) && !noticeFile().MatchString(e.Name()) {
				continue
			}
			if err := addNotice(found, p.Module, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
		if dir == p.Module.Dir || dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func addNotice(found map[string]Notice, m *goModule, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(m.Dir, path)
	n := Notice{Module: m.Path, File: name, Text: text}
	if filepath.Dir(path) == m.Dir {
		n.Licence = licenceTexts[licenceDigest(string(text))]
	}
	found[path] = n
	return err
}
