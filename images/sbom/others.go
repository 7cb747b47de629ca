package sbom

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"strconv"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"slipway/layers/plaintext"
)

// decodeCycloneDX reads a bill in CycloneDX as JSON, with its vulnerabilities.
func decodeCycloneDX(data []byte) (Bill, error) {
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		return Bill{}, plaintext.JSONError(err)
	}
	b := Bill{Forms: []string{"CycloneDX " + text(bom.SpecVersion.String())}, Checked: bom.Vulnerabilities != nil}
	named := map[string]cdx.Component{}
	for _, c := range list(bom.Components) {
		named[c.BOMRef] = c
		if err := b.addPackage(Package{Name: c.Name, Version: c.Version, Licence: licenceOf(c)}); err != nil {
			return b, err
		}
	}
	for _, v := range list(bom.Vulnerabilities) {
		if err := b.addRated(v, named); err != nil {
			return b, err
		}
	}
	return b, nil
}

// list returns the slice behind a pointer, nil for a nil pointer.
func list[T any](of *[]T) []T {
	if of == nil {
		return nil
	}
	return *of
}

// licenceOf returns the licences of a CycloneDX component, joined with AND.
func licenceOf(c cdx.Component) string {
	var all []string
	if c.Licenses != nil {
		for _, l := range *c.Licenses {
			name := l.Expression
			if l.License != nil {
				name = cmp.Or(l.License.ID, l.License.Name, name)
			}
			if name != "" {
				all = append(all, name)
			}
		}
	}
	return strings.Join(all, " AND ")
}

// addRated adds a CycloneDX vulnerability for each affected component, with its highest score and
// the state that its analysis tells, or else Open.
func (b *Bill) addRated(v cdx.Vulnerability, named map[string]cdx.Component) error {
	f := Flaw{ID: v.ID, State: Open}
	for _, r := range list(v.Ratings) {
		if r.Score != nil {
			f.Score = max(f.Score, *r.Score)
		}
	}
	if a := v.Analysis; a != nil {
		f.Why = cmp.Or(a.Detail, string(a.Justification))
		switch a.State {
		case cdx.IASResolved, cdx.IASResolvedWithPedigree:
			f.State = Fixed
		case cdx.IASNotAffected, cdx.IASFalsePositive:
			f.State = Ignored
		}
	}
	for _, at := range list(v.Affects) {
		one := f
		one.Package, one.Version = cmp.Or(named[at.Ref].Name, at.Ref), named[at.Ref].Version
		if err := b.addFlaw(one); err != nil {
			return err
		}
	}
	return nil
}

// decodeCheck reads the JSON of cve-check.bbclass. A flaw of an unknown status is Open.
func decodeCheck(data []byte) (Bill, error) {
	var check struct {
		Version string `json:"version"`
		Package []struct {
			Name    string `json:"name"`
			Version string `json:"version"`
			Issue   []struct {
				ID, Status, Detail, Description string
				V2                              any `json:"scorev2"`
				V3                              any `json:"scorev3"`
				V4                              any `json:"scorev4"`
			} `json:"issue"`
		} `json:"package"`
	}
	if err := json.Unmarshal(data, &check); err != nil {
		return Bill{}, plaintext.JSONError(err)
	}
	b := Bill{Forms: []string{"Yocto's CVE check " + text(check.Version)}, Checked: true}
	for _, p := range check.Package {
		for _, i := range p.Issue {
			f := Flaw{ID: i.ID, Package: p.Name, Version: p.Version, State: checkStates[i.Status], Why: cmp.Or(i.Description, i.Detail)}
			if f.State == "" {
				f.State = Open
			}
			f.Score = max(scoreOf(i.V2), scoreOf(i.V3), scoreOf(i.V4))
			if err := b.addFlaw(f); err != nil {
				return b, err
			}
		}
	}
	return b, nil
}

var checkStates = map[string]string{"Unpatched": Open, "Patched": Fixed, "Ignored": Ignored}

// scoreOf returns a CVSS score, a text or a number by Yocto's release, 0 if it is out of range.
func scoreOf(v any) float64 {
	score, _ := v.(float64)
	if s, ok := v.(string); ok {
		score, _ = strconv.ParseFloat(s, 64)
	}
	if !(score > 0 && score <= 10) {
		return 0
	}
	return score
}

// LicenceField is the field that Slipway's builds add to dpkg's list of packages.
const LicenceField = "Slipway-Licence"

// decodeStatus reads dpkg's status file, and returns the packages that are installed.
func decodeStatus(r io.Reader) (Bill, error) {
	b := Bill{Forms: []string{"dpkg status"}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxStatusLine)
	var p Package
	source, installed := "", false
	end := func() (err error) {
		if installed {
			p.setSource(source)
			err = b.addPackage(p)
		}
		p, source, installed = Package{}, "", false
		return err
	}
	for lines.Scan() {
		line := lines.Text()
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "":
			if err := end(); err != nil {
				return b, err
			}
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Source":
			source = value
		case LicenceField:
			p.Licence = text(value)
		case "Status":
			installed = strings.HasSuffix(value, " installed")
		}
	}
	if err := lines.Err(); err != nil {
		return b, err
	}
	return b, end()
}

// maxStatusLine is more than any field of dpkg's list has.
const maxStatusLine = 1 << 20
