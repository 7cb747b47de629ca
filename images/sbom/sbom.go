// Package sbom reads what an image is made of: bills of material in SPDX 2 and 3 and in
// CycloneDX, dpkg's list of packages, and what Yocto's CVE check found. It judges nothing.
package sbom

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Limits on a bill. Yocto's SPDX 3 names each file of an image, in some hundred MB.
const (
	maxBytes     = 4 << 30 // unpacked
	maxDocument  = 64 << 20
	maxDocuments = 100_000
	maxPackages  = 100_000
	maxFlaws     = 1_000_000
	maxText      = 500 // of a name, a version or a licence
)

// Bill lists the packages of an image and their known flaws, from one file or several.
type Bill struct {
	Forms    []string  `json:"forms"` // as "SPDX 2.2"
	Packages []Package `json:"packages"`
	Flaws    []Flaw    `json:"flaws"` // by package and identifier
	Checked  bool      `json:"-"`     // some file lists the known flaws, though the list may be empty
}

// Package is a package that is installed in the image.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Licence string `json:"licence,omitempty"` // an SPDX expression; "" is not said

	Source        string `json:"-"` // the Debian source package; empty for other packages
	SourceVersion string `json:"-"`
}

// The states of a flaw.
const (
	Open    = "open"    // nothing says that the package is safe
	Fixed   = "fixed"   // by a newer version or a patch
	Ignored = "ignored" // somebody judged that it does no harm here
)

// Flaw is a known vulnerability of a package.
type Flaw struct {
	ID      string  `json:"id"` // as CVE-2026-12345
	Package string  `json:"package"`
	Version string  `json:"version,omitempty"`
	State   string  `json:"state"`
	Score   float64 `json:"score,omitempty"` // of CVSS, the highest given; 0 is not said
	Why     string  `json:"why,omitempty"`
}

// Read decodes files and merges them into one sorted bill. A file in an unknown format is an error.
func Read(paths ...string) (Bill, error) {
	var all Bill
	for _, path := range paths {
		b, err := readFile(path)
		if err != nil {
			return Bill{}, fmt.Errorf("%s: %w", path, err)
		}
		all.add(b)
	}
	all.tidy()
	return all, nil
}

// readFile decodes the bill in one file. It refuses a folder.
func readFile(path string) (Bill, error) {
	f, err := localfile.Open(path)
	if err != nil {
		return Bill{}, localfile.ExplainUnreadable(path, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return Bill{}, cmp.Or(err, errors.New("it is a folder"))
	}
	return Decode(f)
}

// Decode reads one bill, and recognises its format by the content. It sorts nothing.
func Decode(r io.Reader) (Bill, error) {
	b := bufio.NewReaderSize(&limited{r: r, left: maxBytes}, 1<<16)
	begin, err := b.Peek(4)
	if err != nil && len(begin) == 0 {
		return Bill{}, errors.New("it is empty")
	}
	if bytes.Equal(begin, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return decodeArchive(b)
	}
	if string(begin) == "Pack" {
		return decodeStatus(b)
	}
	bill, err := decodeJSON(b)
	return bill, jsonError(err)
}

// jsonError rewords an error of decoding JSON for the user. nil stays nil.
func jsonError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return plaintext.JSONError(err)
}

// limited is like io.LimitReader, but returns an error instead of EOF at the limit.
type limited struct {
	r    io.Reader
	left int64
}

// Read returns an error, and not io.EOF, after the limit.
func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, fmt.Errorf("it has more than %d MiB", maxBytes>>20)
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left+1)])
	l.left -= int64(n)
	return n, err
}

// decodeJSON reads a JSON object key by key, and decodes it by the keys that it has. It reads the
// long list of SPDX 3 element by element, and refuses other values over maxDocument.
func decodeJSON(r io.Reader) (Bill, error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return Bill{}, cmp.Or(err, errors.New("it is no JSON object"))
	}
	kept := map[string]json.RawMessage{}
	var bill *Bill
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return Bill{}, err
		}
		key, _ := t.(string)
		if key == "@graph" && bill == nil {
			b, err := decodeGraph(d)
			if err != nil {
				return Bill{}, err
			}
			bill = &b
			continue
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return Bill{}, err
		}
		if len(value) > maxDocument {
			return Bill{}, fmt.Errorf("%q has more than %d MiB", plaintext.Clean(key, maxText), maxDocument>>20)
		}
		if slices.Contains(neededKeys, key) {
			kept[key] = value
		}
	}
	if _, err := d.Token(); err != nil {
		return Bill{}, err
	}
	if bill != nil {
		return *bill, nil
	}
	return decodeKeys(kept)
}

// neededKeys are the keys of all formats that decodeJSON keeps.
var neededKeys = []string{
	"spdxVersion", "name", "SPDXID", "documentNamespace", "packages", "relationships", "externalDocumentRefs",
	"bomFormat", "specVersion", "components", "vulnerabilities", "version", "package",
}

// decodeKeys recognises SPDX 2, CycloneDX or Yocto's CVE check by an object's keys, and decodes it.
func decodeKeys(keys map[string]json.RawMessage) (Bill, error) {
	whole, err := json.Marshal(keys)
	if err != nil {
		return Bill{}, err
	}
	switch {
	case keys["spdxVersion"] != nil:
		doc, err := parseDocument(whole)
		if err != nil {
			return Bill{}, err
		}
		return doc.bill()
	case string(keys["bomFormat"]) == `"CycloneDX"`:
		return decodeCycloneDX(whole)
	case keys["package"] != nil && keys["version"] != nil:
		return decodeCheck(whole)
	}
	return Bill{}, errors.New("it is neither SPDX 2 or 3, nor CycloneDX, nor of dpkg, nor of Yocto's CVE check")
}

// add appends the content of another bill, with duplicates.
func (b *Bill) add(other Bill) {
	b.Forms = append(b.Forms, other.Forms...)
	b.Packages = append(b.Packages, other.Packages...)
	b.Flaws = append(b.Flaws, other.Flaws...)
	b.Checked = b.Checked || other.Checked
}

// tidy sorts the bill and removes duplicates. Of two entries for a flaw, it keeps the worse state.
func (b *Bill) tidy() {
	slices.Sort(b.Forms)
	b.Forms = slices.Compact(b.Forms)
	slices.SortFunc(b.Packages, func(x, y Package) int {
		return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(x.Version, y.Version), -strings.Compare(x.Licence, y.Licence))
	})
	b.Packages = slices.CompactFunc(b.Packages, func(x, y Package) bool {
		return x.Name == y.Name && x.Version == y.Version && (x.Licence == y.Licence || y.Licence == "")
	})
	states := []string{Open, Ignored, Fixed} // of two answers the worse one counts
	slices.SortFunc(b.Flaws, func(x, y Flaw) int {
		return cmp.Or(strings.Compare(x.Package, y.Package), strings.Compare(x.ID, y.ID),
			slices.Index(states, x.State)-slices.Index(states, y.State), cmp.Compare(y.Score, x.Score))
	})
	b.Flaws = slices.CompactFunc(b.Flaws, func(x, y Flaw) bool { return x.Package == y.Package && x.ID == y.ID })
}

// Licences returns how many packages have each licence in their expressions, "" for none.
func (b Bill) Licences() map[string]int {
	all := map[string]int{}
	for _, p := range b.Packages {
		for _, name := range SplitLicence(p.Licence) {
			all[name]++
		}
	}
	return all
}

// SplitLicence returns the licences of an SPDX expression, or of a Yocto expression with & and |,
// once each and with any exception (WITH). If there are none, or NONE, it returns one empty text.
func SplitLicence(expression string) []string {
	words := strings.FieldsFunc(expression, func(r rune) bool { return strings.ContainsRune(" ()&|", r) })
	var names []string
	for i := 0; i < len(words); i++ {
		switch strings.ToUpper(words[i]) {
		case "AND", "OR", "NONE", "NOASSERTION":
		case "WITH": // the exception belongs to the licence
			if i++; i < len(words) && len(names) > 0 {
				names[len(names)-1] += " WITH " + words[i]
			}
		default:
			if !slices.Contains(names, words[i]) {
				names = append(names, words[i])
			}
		}
	}
	if names == nil {
		return []string{""}
	}
	return names
}

func text(s string) string { return plaintext.Clean(s, maxText) }

// addPackage adds a package with texts cut to maxText, but skips one without a name. More than
// maxPackages are an error.
func (b *Bill) addPackage(p Package) error {
	if p.Name == "" {
		return nil
	}
	if len(b.Packages) >= maxPackages {
		return fmt.Errorf("it names more than %d packages", maxPackages)
	}
	p.Name, p.Version, p.Licence = text(p.Name), text(p.Version), text(p.Licence)
	b.Packages = append(b.Packages, p)
	return nil
}

// addFlaw adds a flaw with texts cut to maxText, but skips one without an ID. More than maxFlaws
// are an error.
func (b *Bill) addFlaw(f Flaw) error {
	if f.ID == "" {
		return nil
	}
	if len(b.Flaws) >= maxFlaws {
		return fmt.Errorf("it names more than %d vulnerabilities", maxFlaws)
	}
	f.ID, f.Package, f.Version, f.Why = text(f.ID), text(f.Package), text(f.Version), text(f.Why)
	b.Flaws = append(b.Flaws, f)
	return nil
}
