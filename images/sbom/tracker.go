package sbom

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// codenames are Debian's names of releases in its security tracker, by the number with which
// the version of the package base-files begins.
var codenames = map[string]string{"10": "buster", "11": "bullseye", "12": "bookworm", "13": "trixie", "14": "forky", "15": "duke"}

// trackedFlaw is a flaw of a source package in the JSON of Debian's security tracker.
type trackedFlaw struct {
	Releases map[string]struct {
		Status       string `json:"status"`        // resolved, open or undetermined
		FixedVersion string `json:"fixed_version"` // "0": the release never had the flaw
		Urgency      string `json:"urgency"`
		NoAdvisory   string `json:"nodsa"` // why the flaw gets no security update
	} `json:"releases"`
}

// AddTracked adds the flaws of the Debian packages in the bill from a JSON file of the Debian
// security tracker: an object of source packages, each an object of flaws by identifier. It sorts
// the bill. It returns an error if the image's Debian release is unknown or not in the file.
func (b *Bill) AddTracked(r io.Reader) error {
	release, sources, err := b.debianSources()
	if err != nil {
		return err
	}
	d := json.NewDecoder(&limited{r: r, left: maxBytes})
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return cmp.Or(jsonError(err), errors.New("it is no JSON object"))
	}
	known := false
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return jsonError(err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return jsonError(err)
		}
		known = known || bytes.Contains(value, []byte(`"`+release+`"`))
		name, _ := t.(string)
		if len(sources[name]) == 0 {
			continue
		}
		var flaws map[string]trackedFlaw
		if err := json.Unmarshal(value, &flaws); err != nil {
			return fmt.Errorf("package %s: %w", text(name), jsonError(err))
		}
		if err := b.addTracked(release, name, sources[name], flaws); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return jsonError(err)
	}
	if !known {
		return fmt.Errorf("it says nothing of Debian's release %s, which the image is of", release)
	}
	b.Forms, b.Checked = append(b.Forms, "Debian's security tracker for "+release), true
	b.tidy()
	return nil
}

// debianSources returns the image's Debian release, and the versions of each source package.
func (b *Bill) debianSources() (release string, sources map[string][]string, err error) {
	sources = map[string][]string{}
	base := ""
	for _, p := range b.Packages {
		if p.Name == "base-files" {
			base = p.Version
		}
		if p.Source != "" && !slices.Contains(sources[p.Source], p.SourceVersion) {
			sources[p.Source] = append(sources[p.Source], p.SourceVersion)
		}
	}
	number, _, _ := strings.Cut(base, ".")
	number, _, _ = strings.Cut(number, "+")
	if release = codenames[number]; release == "" {
		err = fmt.Errorf("the image's release of Debian is not known: its package base-files has version %q", text(base))
	}
	return release, sources, err
}

// addTracked adds the tracker's flaws of one source package for this release, each with its state.
// It skips those that the release never had.
func (b *Bill) addTracked(release, name string, versions []string, flaws map[string]trackedFlaw) error {
	for id, flaw := range flaws {
		at, affected := flaw.Releases[release]
		if !affected || at.Status == "resolved" && at.FixedVersion == "0" {
			continue
		}
		for _, version := range versions {
			f := Flaw{ID: id, Package: name, Version: version, State: Open, Why: at.NoAdvisory}
			switch {
			case at.Status == "resolved" && CompareVersions(version, at.FixedVersion) >= 0:
				f.State, f.Why = Fixed, "since "+at.FixedVersion
			case at.Status == "resolved":
				f.Why = "fixed in " + at.FixedVersion
			case at.Urgency == "unimportant":
				f.State, f.Why = Ignored, "Debian: unimportant"
			}
			if err := b.addFlaw(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// setSource sets a package's source from dpkg's field Source: "NAME", "NAME (VERSION)" or "" for
// its own name. A signed kernel gets the source linux, under which the tracker has it.
func (p *Package) setSource(field string) {
	name, rest, _ := strings.Cut(field, " ")
	p.Source = cmp.Or(name, p.Name)
	p.SourceVersion = cmp.Or(strings.Trim(rest, "()"), p.Version)
	if i := strings.LastIndex(p.SourceVersion, "+"); i > 0 && strings.HasPrefix(p.Source, "linux-signed-") {
		p.Source, p.SourceVersion = "linux", p.SourceVersion[:i]+"-"+p.SourceVersion[i+1:]
	}
}

// CompareVersions orders two versions as dpkg does.
func CompareVersions(a, b string) int {
	epochA, upstreamA, revisionA := splitVersion(a)
	epochB, upstreamB, revisionB := splitVersion(b)
	return cmp.Or(cmp.Compare(epochA, epochB), comparePart(upstreamA, upstreamB), comparePart(revisionA, revisionB))
}

// splitVersion splits a Debian version: [EPOCH:]UPSTREAM[-REVISION]. The epoch is 0 by default.
func splitVersion(v string) (epoch int, upstream, revision string) {
	if number, rest, ok := strings.Cut(v, ":"); ok {
		epoch, _ = strconv.Atoi(number) // one that is no number is 0
		v = rest
	}
	if i := strings.LastIndex(v, "-"); i >= 0 {
		v, revision = v[:i], v[i+1:]
	}
	return epoch, v, revision
}

// comparePart compares two versions without epoch as dpkg does: words and numbers alternately.
func comparePart(a, b string) int {
	for a != "" || b != "" {
		var wordA, wordB, numberA, numberB string
		wordA, a = splitAt(a, isDigit)
		wordB, b = splitAt(b, isDigit)
		numberA, a = splitAt(a, func(c byte) bool { return !isDigit(c) })
		numberB, b = splitAt(b, func(c byte) bool { return !isDigit(c) })
		numberA, numberB = strings.TrimLeft(numberA, "0"), strings.TrimLeft(numberB, "0")
		if c := cmp.Or(compareWord(wordA, wordB), cmp.Compare(len(numberA), len(numberB)), strings.Compare(numberA, numberB)); c != 0 {
			return c
		}
	}
	return 0
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// splitAt splits a text before its first byte for which end is true.
func splitAt(s string, end func(byte) bool) (before, after string) {
	i := 0
	for i < len(s) && !end(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// compareWord compares parts without digits: "~" sorts before the end, letters before other signs.
func compareWord(a, b string) int {
	weight := func(s string, i int) int {
		switch {
		case i >= len(s):
			return 0
		case s[i] == '~':
			return -1
		case s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z':
			return int(s[i])
		}
		return int(s[i]) + 256
	}
	for i := range max(len(a), len(b)) {
		if c := cmp.Compare(weight(a, i), weight(b, i)); c != 0 {
			return c
		}
	}
	return 0
}
