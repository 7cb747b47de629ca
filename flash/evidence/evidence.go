// Package evidence verifies an artifact and reports who signed it, who built it from which
// sources, and which flaws its packages have. Policies admit or refuse the artifact.
package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"slipway/flash/trust"
	"slipway/images"
	"slipway/images/sbom"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

const (
	maxDescription = 1 << 20
	shownLicences  = 10
	shownFlaws     = 20
)

// Report is what the evidence of an artifact says.
type Report struct {
	Folder     string            `json:"folder"`
	Artifact   images.Artifact   `json:"artifact"`
	Files      []File            `json:"files"`
	Signer     *trust.Signer     `json:"signer,omitempty"`
	Signature  string            `json:"signature"` // signed, unsigned, unverified or wrong
	Why        string            `json:"why,omitempty"`
	Provenance *images.Statement `json:"provenance,omitempty"`
	Bill       *Bill             `json:"bill,omitempty"`
	Wrong      []string          `json:"wrong"`              // what does not belong together
	Verdicts   []Verdict         `json:"verdicts,omitempty"` // of the policies
	admittedBy []trust.Signer    // those whom policies with signers found
	mustSign   bool              // signers are named
	signers    trust.Signers     // those of the first list that is named
}

// The states of a signature.
const (
	Signed     = "signed"
	Unsigned   = "unsigned"   // there is no signature
	Unverified = "unverified" // there is one, and nobody says whom to trust
	Bad        = "wrong"
)

// File is a file of the artifact.
type File struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Error string `json:"error,omitempty"`
}

// Bill summarises what the image is made of.
type Bill struct {
	Forms    []string       `json:"forms"`
	Packages int            `json:"packages"`
	Licences map[string]int `json:"licences"` // packages by licence; "" is not said
	Checked  bool           `json:"checked"`  // some file lists the known flaws
	Open     int            `json:"open"`
	Fixed    int            `json:"fixed"`
	Ignored  int            `json:"ignored"`
	Worst    float64        `json:"worst"`           // the highest score of an open flaw
	Flaws    []sbom.Flaw    `json:"flaws,omitempty"` // the open ones
}

// Options are the inputs of an examination, besides the artifact.
type Options struct {
	Signers  string   // a file of allowed signers; "" is that of the environment or the user's own
	Tracker  string   // a JSON file of the Debian security tracker; may be empty
	Policies []Policy // that judge the artifact

	skipSignature bool // no list counts but those of the policies
}

// Examine reads and verifies the evidence of the artifact in a folder. It returns an error if it
// cannot read artifact.json, a list of signers or the tracker's file. r.Wrong has all other faults.
func Examine(ctx context.Context, folder string, opt Options) (Report, error) {
	a, err := images.ReadArtifact(folder)
	if err != nil {
		return Report{}, err
	}
	path := images.ArtifactPath(folder)
	description, err := localfile.Read(path, maxDescription)
	if err == nil {
		err = CheckSame(path, description, a)
	}
	if err != nil {
		return Report{}, err
	}
	return examine(ctx, a, description, opt)
}

// examine verifies the artifact's files, signature, provenance and packages, and asks each policy
// for its verdict. description is the text of the artifact.json.
func examine(ctx context.Context, a images.Artifact, description []byte, opt Options) (Report, error) {
	r := Report{Folder: a.Dir(), Artifact: a, Wrong: []string{}}
	if err := r.proveFiles(ctx); err != nil {
		return r, err
	}
	if err := r.readSignature(ctx, description, opt); err != nil {
		return r, err
	}
	r.readProvenance()
	bill, err := readBill(a)
	if err != nil {
		r.Wrong = append(r.Wrong, err.Error())
	} else if err := addTracked(bill, opt.Tracker); err != nil {
		return r, err
	}
	if bill != nil {
		r.Bill = summarise(*bill)
	}
	for _, p := range opt.Policies {
		r.Verdicts = append(r.Verdicts, p.judge(ctx, &r, description, bill))
	}
	return r, nil
}

// proveFiles verifies all files' digests, and adds to r.Files and r.Wrong. It fails if ctx ends.
func (r *Report) proveFiles(ctx context.Context) error {
	var total int64
	for _, f := range r.Artifact.Files {
		total += f.SizeBytes
	}
	step := progress.Start(ctx, "verify files", total, progress.Bytes)
	for _, f := range r.Artifact.Files {
		one := File{Name: f.Name, Kind: f.Kind}
		if err := r.Artifact.VerifyFile(ctx, f, step.Add); err != nil {
			if ctx.Err() != nil {
				step.End("", context.Cause(ctx))
				return context.Cause(ctx)
			}
			one.Error = err.Error()
			r.Wrong = append(r.Wrong, one.Error)
		}
		r.Files = append(r.Files, one)
	}
	step.End(fmt.Sprintf("%d files", len(r.Files)), nil)
	return nil
}

// readSignature verifies the signature of artifact.json and sets the report's Signature and Signer.
// If the user named signers, an unsigned artifact is wrong. Otherwise the policies' signers count,
// or else the user's own list. A list beside the artifact is an error, a bad signature a fault in
// r.Wrong. With opt.skipSignature it only looks whether there is a signature.
func (r *Report) readSignature(ctx context.Context, description []byte, opt Options) error {
	path := images.ArtifactPath(r.Folder)
	r.Signature = Unsigned
	if slices.ContainsFunc(images.SignatureEndings, func(e string) bool { _, err := os.Lstat(path + e); return err == nil }) {
		r.Signature = Unverified
	}
	if opt.skipSignature {
		return nil
	}
	lists, err := trust.Named(opt.Signers)
	for _, l := range lists {
		err = cmp.Or(err, trust.RefuseBeside(r.Folder, l.File))
	}
	if err != nil {
		return err
	}
	bySigners := slices.ContainsFunc(opt.Policies, func(p Policy) bool { return len(p.signers) > 0 })
	r.mustSign = len(lists) > 0 || bySigners
	if len(lists) > 0 {
		r.signers = lists[0].Signers
	}
	if !r.mustSign && r.Signature == Unverified {
		if lists, err = trust.Own(); err != nil {
			r.Why = plaintext.FirstLine(err.Error())
		}
	}
	if len(lists) == 0 {
		return nil
	}
	signers, err := lists.Verify(ctx, trust.Folder(r.Folder), path, trust.Bytes(description))
	if r.setSigner(signers, err); err != nil {
		r.Wrong = append(r.Wrong, r.Why)
	}
	return nil
}

// setSigner sets the signature's state and signer by Verify's results, unless an earlier list did.
func (r *Report) setSigner(signers []trust.Signer, err error) {
	switch {
	case err != nil && r.Signature == Unsigned:
		r.Why = plaintext.FirstLine(err.Error())
	case r.Signature != Unverified:
	case err != nil:
		r.Signature, r.Why = Bad, plaintext.FirstLine(err.Error())
	default:
		r.Signature, r.Why, r.Signer = Signed, "", &signers[0]
	}
}

// readProvenance sets r.Provenance, if the artifact has one. It adds a fault to r.Wrong.
func (r *Report) readProvenance() {
	if _, err := r.Artifact.File(images.Provenance); err != nil {
		return // an older Slipway made it
	}
	s, err := r.Artifact.ReadStatement()
	if err != nil {
		r.Wrong = append(r.Wrong, err.Error())
		return
	}
	r.Provenance = &s
}

// readBill reads the artifact's SBOM and CVE files. It returns nil if there are none.
func readBill(a images.Artifact) (*sbom.Bill, error) {
	var paths []string
	for _, f := range a.Files {
		if f.Kind == images.SBOM || f.Kind == images.CVEs {
			paths = append(paths, a.Path(f))
		}
	}
	if len(paths) == 0 {
		return nil, nil
	}
	b, err := sbom.Read(paths...)
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// addTracked adds a Debian security tracker's flaws of the packages, if tracker names its JSON.
// Then a nil b is an error.
func addTracked(b *sbom.Bill, tracker string) error {
	switch {
	case tracker == "":
		return nil
	case b == nil:
		return errors.New("--tracker: the artifact has no list of packages")
	}
	f, err := localfile.Open(tracker)
	if err != nil {
		return localfile.ExplainUnreadable(tracker, err)
	}
	defer f.Close()
	if err := b.AddTracked(f); err != nil {
		return fmt.Errorf("%s: %w", tracker, err)
	}
	return nil
}

// summarise counts packages, licences and flaws, finds the worst score, and lists the open flaws.
func summarise(b sbom.Bill) *Bill {
	s := &Bill{Forms: b.Forms, Packages: len(b.Packages), Licences: b.Licences(), Checked: b.Checked}
	for _, f := range b.Flaws {
		switch f.State {
		case sbom.Open:
			s.Open++
			s.Worst = max(s.Worst, f.Score)
			s.Flaws = append(s.Flaws, f)
		case sbom.Fixed:
			s.Fixed++
		default:
			s.Ignored++
		}
	}
	return s
}

// Err returns an error with the first objection and the number of the others; nil without any.
func (r Report) Err() error {
	all := r.objections()
	if len(all) == 0 {
		return nil
	}
	text := fmt.Sprintf("%s: %s", r.Folder, all[0])
	if n := len(all) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return fmt.Errorf("%s\nnext: %s", text, r.next())
}

// next returns a command to resolve the objections: one that signs only if the files are intact.
func (r Report) next() string {
	filesHold := !slices.ContainsFunc(r.Wrong, func(text string) bool { return text != r.Why })
	switch {
	case r.Signature == Unsigned && r.mustSign && filesHold:
		return r.signers.SignCommand(images.ArtifactPath(r.Folder))
	case r.Signature != Unsigned && len(r.Wrong) > 0 && filesHold:
		return fmt.Sprintf("evidence %s --json  # then look at the key that signed, and at the list of signers", plaintext.Quote(r.Folder))
	case len(r.Wrong) > 0:
		return fmt.Sprintf("sha256sum %s/*  # compare with where the artifact comes from; then copy it again, or build %s", plaintext.Quote(r.Folder), r.Artifact.Board)
	}
	return "build " + r.Artifact.Board + "  # after changing what the policy refuses"
}

// objections returns a line for each fault of the evidence and each refusal of a policy.
func (r Report) objections() (all []string) {
	for _, text := range r.Wrong {
		all = append(all, plaintext.FirstLine(text))
	}
	for _, v := range r.Verdicts {
		for _, why := range v.Refused {
			all = append(all, fmt.Sprintf("%s (policy of %s)", why, v.Policy))
		}
	}
	return all
}

// Show prints the report for a person.
func (r Report) Show(w io.Writer) {
	a := r.Artifact
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s  %s\n", name, plaintext.OneLine(fmt.Sprintf(format, args...)))
	}
	line("artifact", "%s for %s, built %s, key %.12s", a.Board, a.Arch, a.Built.UTC().Format(time.DateTime), a.Key)
	line("made by", "slipway %s", a.Slipway)
	if a.Source != nil {
		line("source", "%s%s", strings.TrimSpace(a.Source.URL+" "+a.Source.Commit), plaintext.Either(a.Source.Edited, ", edited", ""))
	}
	for _, l := range a.Layers {
		line("layer", "%s %s%s", l.Repo, strings.TrimSpace(l.URL+" "+l.Commit), plaintext.Either(l.Edited || l.Local != "", ", edited", ""))
	}
	for _, f := range a.Files {
		line("file", "%s  %s, %d bytes, sha256:%s", f.Name, f.Kind, f.SizeBytes, f.SHA256)
	}
	switch r.Signature {
	case Signed:
		line("signature", "by %s", r.Signer)
	case Unsigned:
		line("signature", "none")
	case Unverified:
		line("signature", "nobody verified it: %s", r.Why)
	default:
		line("signature", "%s%s", r.Signature, plaintext.Either(slices.Contains(r.Wrong, r.Why), "", ": "+r.Why))
	}
	if p := r.Provenance; p != nil {
		line("provenance", "built by %s", strings.TrimSpace(p.Builder+" "+p.Run))
	} else if len(r.Wrong) == 0 {
		line("provenance", "none")
	}
	r.showBill(line)
	for _, text := range r.Wrong {
		line("WRONG", "%s", plaintext.FirstLine(text))
	}
	for _, v := range r.Verdicts {
		for _, why := range v.Refused {
			line("REFUSED", "%s (policy of %s)", why, v.Policy)
		}
		switch {
		case len(v.Refused) > 0:
		case v.Signed:
			line("policy", "%s admits it", v.Policy)
		default:
			line("policy", "%s names no signers, so it does not check the signature", v.Policy)
		}
	}
}

// showBill prints the bill: counts of packages, licences and flaws, 10 licences and 20 open flaws.
// Without a bill, or a search for flaws, it says so.
func (r Report) showBill(line func(name, format string, args ...any)) {
	b := r.Bill
	if b == nil {
		line("packages", "no bill of material")
		return
	}
	line("packages", "%d, by %s", b.Packages, strings.Join(b.Forms, ", "))
	names := slices.SortedFunc(maps.Keys(b.Licences), func(x, y string) int {
		return cmp.Or(b.Licences[y]-b.Licences[x], strings.Compare(x, y))
	})
	var texts []string
	for _, name := range names[:min(len(names), shownLicences)] {
		texts = append(texts, fmt.Sprintf("%s %d", cmp.Or(name, "not said"), b.Licences[name]))
	}
	if n := len(names) - len(texts); n > 0 {
		texts = append(texts, fmt.Sprintf("%d more", n))
	}
	line("licences", "%s", strings.Join(texts, ", "))
	if !b.Checked {
		line("flaws", "nobody looked for them")
		return
	}
	worst := plaintext.Either(b.Worst > 0, fmt.Sprintf(" (the worst %.1f)", b.Worst), "")
	line("flaws", "%d open%s, %d fixed, %d ignored", b.Open, worst, b.Fixed, b.Ignored)
	for _, f := range b.Flaws[:min(len(b.Flaws), shownFlaws)] {
		about := plaintext.Either(f.Score > 0, fmt.Sprintf("%.1f", f.Score), cmp.Or(f.Why, "no score"))
		line("open", "%s in %s %s, %s", f.ID, f.Package, f.Version, about)
	}
	if n := len(b.Flaws) - shownFlaws; n > 0 {
		line("open", "%d more: --json has all", n)
	}
}
