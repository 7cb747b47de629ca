package source

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/licensecheck"

	"slipway/layers/plaintext"
)

// allowedLicences are the licences of modules that our programs may link and are distributed with,
// and their terms.
var allowedLicences = map[string]string{
	"Apache-2.0":   "ours",
	"MIT":          "keep the notice",
	"BSD-2-Clause": "keep the notice",
	"BSD-3-Clause": "keep the notice, no endorsement",
	"ISC":          "keep the notice",
	"MPL-2.0":      "binds the files that carry it, which we link unchanged and whose source is public",
	"Unlicense":    "public domain",
}

// otherTexts are files that look like licences and are none of the code that we link. Add one only
// if other files of its module are the licence.
var otherTexts = map[string]string{
	"github.com/opencontainers/go-digest/LICENSE.docs": "covers its documentation only",
	"github.com/cyphar/filepath-securejoin/COPYING.md": "says which file is under LICENSE.BSD, and which under LICENSE.MPL-2.0",
}

// noticeFile is a file that the Apache License wants to be passed on beside itself.
var (
	licenceFile = plaintext.Regexp(`(?i)^(un)?(licen[cs]e|copying)`)
	noticeFile  = plaintext.Regexp(`(?i)^notice`)
)

// The boards are arm64, the hosts mostly amd64. A file may be built for one only.
var architectures = []string{"amd64", "arm64"}

// checkLicences finds modules in our programs whose licence is unknown or not allowed.
func checkLicences(ctx context.Context, t tree) ([]string, error) {
	found := map[string]bool{}
	for _, dir := range t.modules {
		for _, arch := range architectures {
			linked, err := linkedPackages(ctx, dir, []string{"GOARCH=" + arch})
			if err != nil {
				return nil, err
			}
			for _, p := range linked {
				for _, finding := range licencesOf(p) {
					found[finding] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// linkedPackages returns the packages of other modules in the programs of the module in dir.
func linkedPackages(ctx context.Context, dir string, env []string) ([]goPackage, error) {
	own, err := goList(ctx, dir, env, "./...")
	if err != nil {
		return nil, err
	}
	var programs []string
	for _, p := range own {
		if p.Name == "main" {
			programs = append(programs, p.ImportPath)
		}
	}
	if len(programs) == 0 {
		return nil, nil
	}
	return linkedBy(ctx, dir, env, programs...)
}

// linkedBy returns the packages of other modules in programs.
func linkedBy(ctx context.Context, dir string, env []string, programs ...string) ([]goPackage, error) {
	all, err := goList(ctx, dir, env, append([]string{"-deps"}, programs...)...)
	return slices.DeleteFunc(all, func(p goPackage) bool { return p.Standard || p.Module == nil || p.Module.Main }), err
}

// licencesOf returns the findings about the licences of a package and its module, which needs one.
func licencesOf(p goPackage) []string {
	files, err := legalFiles(p)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	has := false
	for _, file := range files {
		dir, name := filepath.Split(file)
		if !licenceFile().MatchString(name) {
			continue
		}
		has = has || filepath.Clean(dir) == p.Module.Dir
		if _, other := otherTexts[p.Module.Path+"/"+name]; other {
			continue
		}
		if finding := checkLicence(file); finding != "" {
			found = append(found, p.Module.Path+": "+finding)
		}
	}
	if !has {
		found = append(found, p.Module.Path+": no licence in "+p.Module.Dir)
	}
	return found
}

// legalFiles returns the licences and notices from the package's folder up to its module's.
// Code that was copied from elsewhere may have a licence of its own in between.
func legalFiles(p goPackage) (files []string, err error) {
	for dir := p.Dir; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Module.Path, err)
		}
		for _, e := range entries {
			if e.Type().IsRegular() && filepath.Ext(e.Name()) != ".go" && (licenceFile().MatchString(e.Name()) || noticeFile().MatchString(e.Name())) {
				files = append(files, filepath.Join(dir, e.Name()))
			}
		}
		if dir == p.Module.Dir || dir == filepath.Dir(dir) {
			return files, nil
		}
	}
}

// checkLicence returns the finding about the licence in the file at path, or "".
func checkLicence(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	names := licenceNames(data)
	if names == "" {
		return fmt.Sprintf("unknown licence: read %s; a module with terms of its own is not linked, see otherTexts", path)
	}
	for name := range strings.SplitSeq(names, " AND ") {
		if _, ok := allowedLicences[name]; !ok {
			return fmt.Sprintf("%s is not among the allowed licences (%s)", name, path)
		}
	}
	return ""
}

// titleLine matches a line beside the text of a licence: its title, a holder, or what it is for.
var titleLine = plaintext.Regexp(`(?i)^(copyright\b.*|(the )?mit license( \(mit\))?|go-toml v2|files:.*|[-=]*)$`)

// licenceNames returns the SPDX identifiers of the licences in a file, joined by " AND ". It
// returns "" for a file with any other text, which could be further terms.
func licenceNames(data []byte) string {
	var names []string
	rest, at := "", 0
	for _, m := range licensecheck.Scan(data).Match {
		if !slices.Contains(names, m.ID) {
			names = append(names, m.ID)
		}
		rest += string(data[at:max(at, m.Start)]) + "\n"
		at = max(at, m.End)
	}
	for line := range strings.Lines(rest + string(data[at:])) {
		if !titleLine().MatchString(strings.TrimSpace(line)) {
			return ""
		}
	}
	return strings.Join(names, " AND ")
}
