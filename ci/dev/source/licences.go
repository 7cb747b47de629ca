package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"slipway/layers/plaintext"
)

// Our programs are distributed with the modules that they link, so the licence of each must
// allow that. A text is identified by the digest of its words, without copyright lines.
// Whoever adds a dependency with a new text reads the text and adds its digest.
var licenceTexts = map[string]string{
	"95f35d79ea3bab75": "Apache-2.0",
	"e87dea5078ce2faa": "Apache-2.0", // its appendix filled in
	"f6de8e6c7eaa9954": "Apache-2.0", // its appendix filled in, CycloneDX
	"a1842c9877d84457": "Apache-2.0", // without its appendix, https
	"a695632dae7eddc4": "Apache-2.0", // without its appendix, http
	"37599287c15c2f2e": "Apache-2.0", // without its appendix, cobra
	"7a46cf4a5d56898d": "Apache-2.0", // only its notice, in-toto
	"35a446201226de6b": "MIT",
	"6c833965e9ca4cf8": "MIT", // "The MIT License (MIT)"
	"6ad3654379e72bbd": "MIT", // "The MIT License"
	"0cf21bdfd1964a97": "MIT", // without a title
	"c1ebbf30401272f9": "MIT", // "The MIT License (MIT)", go-toml v2
	"986c3c3199a93b91": "BSD-2-Clause",
	"a56fee4b2f66331e": "BSD-2-Clause", // godbus
	"cb1ce31a60c2422f": "BSD-3-Clause", // Google LLC
	"526279aa5ce65fb2": "BSD-3-Clause", // Google Inc.
	"4ada7914b7de1358": "BSD-3-Clause", // fsnotify
	"7a4d92cdb11d2549": "Unlicense",
	"9eab7902f21bef03": "MPL-2.0",
	"4b65446dc65c9d3c": "Apache-2.0 AND BSD-3-Clause",         // OpenTelemetry
	"ff93da6e29b4d964": "BSD-3-Clause AND Apache-2.0 AND MIT", // klauspost/compress, by folder
	"1083d3dcf348b543": "MIT AND Apache-2.0",                  // yaml/v3, by file
	"538ecc70c08e4b1a": "BSD-3-Clause AND MPL-2.0",            // filepath-securejoin, by file
}

// The licences that allow us to link and distribute, with their terms.
var allowedLicences = map[string]string{
	"Apache-2.0":   "ours",
	"MIT":          "keep the notice",
	"BSD-2-Clause": "keep the notice",
	"BSD-3-Clause": "keep the notice, no endorsement",
	"ISC":          "keep the notice",
	"MPL-2.0":      "binds the files that carry it, which we link unchanged and whose source is public",
	"Unlicense":    "public domain",
}

// Files that look like licences but do not cover code that we link.
var otherTexts = map[string]string{
	"github.com/opencontainers/go-digest/LICENSE.docs": "covers its documentation only",
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
	digest := licenceDigest(string(data))
	names, known := licenceTexts[digest]
	if !known {
		return fmt.Sprintf("unknown licence: read %s; if we may hand it on, add its digest %s", path, digest)
	}
	for name := range strings.SplitSeq(names, " AND ") {
		if _, ok := allowedLicences[name]; !ok {
			return fmt.Sprintf("%s is not among the allowed licences (%s)", name, path)
		}
	}
	return ""
}

var holderLine = plaintext.Regexp(`^copyright (c )?(\d{4}|the |docker )|^all rights reserved$`)

// licenceDigest returns a digest of a licence's words, without copyright holder and line breaks.
func licenceDigest(text string) string {
	var words []string
	for line := range strings.Lines(strings.ToLower(text)) {
		w := strings.FieldsFunc(line, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if holderLine().MatchString(strings.Join(w, " ")) {
			continue
		}
		words = append(words, w...)
	}
	sum := sha256.Sum256([]byte(strings.Join(words, " ")))
	return hex.EncodeToString(sum[:8])
}
