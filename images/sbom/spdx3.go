package sbom

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// element is an element of SPDX 3, with the keys that Slipway reads.
type element struct {
	Type        string       `json:"type"`
	ID          string       `json:"spdxId"`
	Name        string       `json:"name"`
	Spec        string       `json:"specVersion"`
	Version     string       `json:"software_packageVersion"`
	Purpose     string       `json:"software_primaryPurpose"`
	Expression  string       `json:"simplelicensing_licenseExpression"`
	From        reference    `json:"from"`
	To          []reference  `json:"to"`
	Relation    string       `json:"relationshipType"`
	Impact      string       `json:"security_impactStatement"`
	Score       float64      `json:"security_score"`
	Identifiers []identifier `json:"externalIdentifier"`
}

type identifier struct {
	Type  string `json:"externalIdentifierType"`
	Value string `json:"identifier"`
}

// reference is the identifier of an element. JSON-LD may have the element in its place.
type reference string

// UnmarshalJSON reads an identifier, or that of an element in its place.
func (r *reference) UnmarshalJSON(data []byte) error {
	if data[0] != '{' {
		return json.Unmarshal(data, (*string)(r))
	}
	var e element
	err := json.Unmarshal(data, &e)
	*r = reference(e.ID)
	return err
}

// graph collects the elements of SPDX 3 that a bill is made of.
type graph struct {
	spec      string
	packages  map[string]element // by identifier
	licences  map[string]string
	concluded map[string]string // the licence of a package
	declared  map[string]string
	flaws     map[string]string // CVEs
	verdicts  []element         // relationships between a flaw and packages
	order     []string
	edges     int
}

// decodeGraph reads the elements of SPDX 3's @graph, one at a time, and returns their bill.
func decodeGraph(d *json.Decoder) (Bill, error) {
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return Bill{}, cmp.Or(err, errors.New("@graph is no list"))
	}
	g := graph{packages: map[string]element{}, licences: map[string]string{}, concluded: map[string]string{}, declared: map[string]string{}, flaws: map[string]string{}}
	for d.More() {
		var e element
		if err := d.Decode(&e); err != nil {
			return Bill{}, err
		}
		if err := g.add(e); err != nil {
			return Bill{}, err
		}
	}
	if _, err := d.Token(); err != nil {
		return Bill{}, err
	}
	return g.bill()
}

// add puts a package, a licence, a flaw or a relationship into the graph. It ignores other
// elements, and refuses more than the limits.
func (g *graph) add(e element) error {
	if len(g.packages) > maxPackages || len(g.verdicts) > maxFlaws || len(g.flaws) > maxFlaws || len(g.licences) > maxPackages || g.edges > maxFlaws {
		return errors.New("it has too many packages, licences or vulnerabilities")
	}
	switch {
	case e.Type == "CreationInfo":
		g.spec = cmp.Or(g.spec, e.Spec)
	case e.Type == "software_Package":
		if _, twice := g.packages[e.ID]; !twice {
			g.order = append(g.order, e.ID)
		}
		g.packages[e.ID] = e
	case e.Type == "simplelicensing_LicenseExpression":
		g.licences[e.ID] = e.Expression
	case e.Type == "security_Vulnerability":
		g.flaws[e.ID] = e.Name
		if i := slices.IndexFunc(e.Identifiers, func(x identifier) bool { return x.Type == "cve" }); i >= 0 {
			g.flaws[e.ID] = e.Identifiers[i].Value
		}
	case strings.HasPrefix(e.Type, "security_Vex"):
		g.verdicts = append(g.verdicts, e)
		g.edges += len(e.To)
	case len(e.To) == 0:
	case e.Relation == "hasConcludedLicense":
		g.edges++
		g.concluded[string(e.From)] = string(e.To[0])
	case e.Relation == "hasDeclaredLicense":
		g.edges++
		g.declared[string(e.From)] = string(e.To[0])
	}
	return nil
}

// bill returns the installed packages, not sources, recipes and images, with licences and flaws.
func (g *graph) bill() (Bill, error) {
	if g.spec == "" {
		return Bill{}, errors.New("no element says a version of SPDX")
	}
	b := Bill{Forms: []string{"SPDX " + text(g.spec)}, Checked: len(g.flaws) > 0}
	for _, id := range g.order {
		p := g.packages[id]
		if p.Purpose != "install" {
			continue
		}
		licence := firstLicence(g.licences[g.concluded[id]], g.licences[g.declared[id]])
		if err := b.addPackage(Package{Name: p.Name, Version: p.Version, Licence: licence}); err != nil {
			return b, err
		}
	}
	for _, v := range g.verdicts {
		for _, to := range v.To {
			p := g.packages[string(to)]
			f := Flaw{ID: g.flaws[string(v.From)], Package: cmp.Or(p.Name, string(to)), Version: p.Version, State: vexStates[v.Relation], Why: v.Impact}
			if f.State == "" {
				f.State = Open // such as underInvestigationFor
			}
			if err := b.addFlaw(f); err != nil {
				return b, err
			}
		}
	}
	return b, nil
}

var vexStates = map[string]string{"affects": Open, "fixedIn": Fixed, "doesNotAffect": Ignored}
