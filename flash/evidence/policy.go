package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/flash/trust"
	"slipway/images"
	"slipway/images/sbom"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// PolicyVariable names the environment variable with a policy for all boards, beside each board's.
const PolicyVariable = "SLIPWAY_POLICY"

// shownNames is how many packages or flaws a refusal lists.
const shownNames = 5

// Policy is a policy with the lists of keys that it names.
type Policy struct {
	images.Policy
	From    string      // the file and line
	signers trust.Lists // one, or none
	files   []string    // of the policy, if it has its own
}

// Verdict is a policy's decision on an artifact, with the reasons of a refusal.
type Verdict struct {
	Policy  string   `json:"policy"`
	Signed  bool     `json:"signed"`  // one of the policy's signers signed it
	Refused []string `json:"refused"` // empty: the policy admits it
}

// PoliciesOf reads the board's policy and that of SLIPWAY_POLICY, with the lists that they name.
func PoliciesOf(spec images.Spec) ([]Policy, error) {
	var all []Policy
	if spec.Policy != nil {
		p := Policy{Policy: *spec.Policy, From: spec.PlaceOf("policy")}
		if err := p.readSigners(filepath.Dir(spec.BoardFile()), spec.File); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if file := os.Getenv(PolicyVariable); file != "" {
		p, err := ReadPolicy(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", PolicyVariable, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// ReadPolicy reads a policy from a file of its own, with the list of signers that it names.
func ReadPolicy(file string) (Policy, error) {
	policy, err := images.ReadPolicy(file)
	if err != nil {
		return Policy{}, err
	}
	folder := filepath.Dir(file)
	p := Policy{Policy: policy, From: file, files: []string{file}}
	return p, p.readSigners(folder, func(name string) ([]byte, error) {
		return localfile.Read(pathIn(folder, name), maxDescription)
	})
}

// pathIn returns an absolute name as it is, and any other one below folder.
func pathIn(folder, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(folder, name)
}

// readSigners reads p's list of signers, if any, into p.signers. Relative names are in folder.
func (p *Policy) readSigners(folder string, read func(name string) ([]byte, error)) error {
	if p.Signers == "" {
		return nil
	}
	data, err := read(p.Signers)
	if err != nil {
		return fmt.Errorf("%s: signers: %w", p.From, err)
	}
	list, err := trust.Parse("the policy of "+p.From, pathIn(folder, p.Signers), data)
	if err != nil {
		return err
	}
	p.signers = trust.Lists{list}
	return nil
}

// judge returns the policy's verdict on the artifact of r: it verifies the signature, and checks
// the builder, sources, age, packages, licences and flaws. It refuses policy files beside the
// artifact, and records the signer in r. description is the text of the artifact.json.
func (p Policy) judge(ctx context.Context, r *Report, description []byte, bill *sbom.Bill) Verdict {
	v := Verdict{Policy: p.From, Refused: []string{}}
	refuse := func(err error) {
		if err != nil {
			v.Refused = append(v.Refused, plaintext.FirstLine(err.Error()))
		}
	}
	refuse(trust.RefuseBeside(r.Folder, p.files...))
	if len(p.signers) > 0 {
		signers, err := p.signers.Verify(ctx, trust.Folder(r.Folder), images.ArtifactPath(r.Folder), trust.Bytes(description))
		refuse(err)
		r.setSigner(signers, err)
		v.Signed = err == nil
		r.admittedBy = append(r.admittedBy, signers...)
	}
	refuse(p.judgeBuilder(r.Provenance))
	refuse(p.judgeSources(r.Artifact))
	refuse(p.judgeAge(r.Artifact))
	if p.Packages || len(p.Licences.Refuse) > 0 || p.Flaws.Below > 0 {
		if bill == nil {
			refuse(errors.New("it has no bill of material"))
			return v
		}
		if len(bill.Packages) == 0 {
			refuse(errors.New("its bill of material names no package"))
		}
		refuse(p.judgeLicences(*bill))
		refuse(p.judgeFlaws(*bill))
	}
	return v
}

// judgeBuilder returns an error if the policy names builders, and s is missing or by another one.
func (p Policy) judgeBuilder(s *images.Statement) error {
	switch {
	case len(p.Builders) == 0:
		return nil
	case s == nil:
		return errors.New("it has no provenance, and the policy names builders")
	case !matchAny(p.Builders, s.Builder):
		return fmt.Errorf("it was built by %s, whom the policy does not name", s.Builder)
	}
	return nil
}

// judgeSources refuses edited, local or unknown sources, if the policy wants committed ones.
func (p Policy) judgeSources(a images.Artifact) error {
	if !p.Committed {
		return nil
	}
	if a.Source == nil && len(a.Layers) == 0 {
		return errors.New("it does not say which commits it was built of")
	}
	if s := a.Source; s != nil && (s.Edited || s.Commit == "") {
		return errors.New("the project had changes that were not committed")
	}
	for _, l := range a.Layers {
		if l.Edited || l.Local != "" || l.Commit == "" {
			return fmt.Errorf("the layer repository %s had changes that were not committed, or was a local folder", l.Repo)
		}
	}
	return nil
}

// judgeAge returns an error for a build before the policy's date, or before the newest recorded.
func (p Policy) judgeAge(a images.Artifact) error {
	if p.Since != "" {
		since, err := p.ParseSince()
		if err != nil {
			return err
		}
		if a.Built.Before(since) {
			return fmt.Errorf("it was built %s, before %s", timeText(a.Built), timeText(since))
		}
	}
	if !p.Newest {
		return nil
	}
	last, err := readNewest(a.Board)
	switch {
	case err != nil:
		return err
	case a.Built.Before(last.Built):
		path, err := newestPath(a.Board)
		return cmp.Or(err, fmt.Errorf("it was built %s, and this machine has written a build of %s; to go back, remove %s", timeText(a.Built), timeText(last.Built), path))
	}
	return nil
}

func timeText(t time.Time) string { return t.UTC().Format(time.DateTime) }

// judgeLicences returns an error that names packages with a refused licence, also as one of
// several, or with none, unless excepted. A policy that refuses no licence accepts all packages.
func (p Policy) judgeLicences(b sbom.Bill) error {
	if len(p.Licences.Refuse) == 0 {
		return nil
	}
	var found []string
	for _, pkg := range b.Packages {
		if matchAny(p.Licences.Except, pkg.Name) {
			continue
		}
		for _, licence := range sbom.SplitLicence(pkg.Licence) {
			if licence == "" || matchAny(p.Licences.Refuse, licence) {
				found = append(found, fmt.Sprintf("%s (%s)", pkg.Name, cmp.Or(licence, "no licence is said")))
				break
			}
		}
	}
	return listError("refused licences", found)
}

// judgeFlaws returns an error that names open flaws without a score or of at least p.Flaws.Below,
// unless excepted. A bill without a search for flaws is an error too. A Below of 0 accepts all.
func (p Policy) judgeFlaws(b sbom.Bill) error {
	switch {
	case p.Flaws.Below == 0:
		return nil
	case !b.Checked:
		return errors.New("it does not say which flaws are known")
	}
	var found []string
	for _, f := range b.Flaws {
		bad := f.State == sbom.Open && (f.Score >= p.Flaws.Below || f.Score == 0)
		if bad && !matchAny(p.Flaws.Except, f.ID) {
			found = append(found, fmt.Sprintf("%s in %s (%.1f)", f.ID, f.Package, f.Score))
		}
	}
	return listError("open flaws", found)
}

// listError sorts found, and returns an error with their number and first five; nil without any.
func listError(what string, found []string) error {
	if len(found) == 0 {
		return nil
	}
	slices.Sort(found)
	text := fmt.Sprintf("%d %s: %s", len(found), what, strings.Join(found[:min(len(found), shownNames)], ", "))
	if len(found) > shownNames {
		text += ", …"
	}
	return errors.New(text)
}

// matchAny reports whether name matches a pattern of path.Match, ignoring case as SPDX does.
func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(strings.ToLower(p), strings.ToLower(name))
		return ok
	})
}
