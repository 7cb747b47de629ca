package sbom

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"slipway/layers/plaintext"
)

// document is a document of SPDX 2.
type document struct {
	Version   string `json:"spdxVersion"`
	Name      string `json:"name"`
	ID        string `json:"SPDXID"`
	Namespace string `json:"documentNamespace"`
	Packages  []struct {
		ID        string `json:"SPDXID"`
		Name      string `json:"name"`
		Version   string `json:"versionInfo"`
		Declared  string `json:"licenseDeclared"`
		Concluded string `json:"licenseConcluded"`
	} `json:"packages"`
	Relationships []struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	} `json:"relationships"`
	Others []struct {
		ID        string `json:"externalDocumentId"`
		Namespace string `json:"spdxDocument"`
	} `json:"externalDocumentRefs"`
}

// parseDocument parses a document of SPDX 2, and refuses other versions.
func parseDocument(data []byte) (d document, err error) {
	if err := json.Unmarshal(data, &d); err != nil {
		return d, plaintext.JSONError(err)
	}
	if !strings.HasPrefix(d.Version, "SPDX-2.") {
		return d, fmt.Errorf("spdxVersion is %q; want SPDX-2.2 or SPDX-2.3", text(d.Version))
	}
	return d, nil
}

func (d document) form() string { return "SPDX " + text(strings.TrimPrefix(d.Version, "SPDX-")) }

// bill returns the packages of a document that refers to no other document. It leaves out the one
// package that the document describes, which is the image itself.
func (d document) bill() (Bill, error) {
	b := Bill{Forms: []string{d.form()}}
	whole := map[string]bool{}
	for _, r := range d.Relationships {
		if r.Type == "DESCRIBES" && len(d.Packages) > 1 {
			whole[r.To] = true
		}
	}
	for _, p := range d.Packages {
		if whole[p.ID] && len(whole) == 1 {
			continue
		}
		if err := b.addPackage(Package{Name: p.Name, Version: p.Version, Licence: firstLicence(p.Concluded, p.Declared)}); err != nil {
			return Bill{}, err
		}
	}
	return b, nil
}

// firstLicence returns the first text that is a licence, not empty and not NOASSERTION, or "".
func firstLicence(texts ...string) string {
	for _, t := range texts {
		if t != "" && t != "NOASSERTION" {
			return t
		}
	}
	return ""
}

// decodeArchive reads Yocto's SPDX 2 archive of an image, a tar.zst of at most maxBytes unpacked,
// with a document for each package. It skips the index of digests: artifact.json has the SHA-256.
func decodeArchive(r io.Reader) (Bill, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxMemory(maxBytes), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return Bill{}, err
	}
	defer z.Close()
	a := archive{byName: map[string]*document{}, byNamespace: map[string]*document{}}
	t := tar.NewReader(&limited{r: z, left: maxBytes})
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return a.bill()
		}
		if err != nil {
			return Bill{}, fmt.Errorf("the archive is damaged: %w", err)
		}
		if err := a.read(h, t); err != nil {
			return Bill{}, fmt.Errorf("%s: %w", text(h.Name), err)
		}
	}
}

type archive struct {
	byName, byNamespace map[string]*document
}

// read adds a document of the tar, but skips index.json. It refuses a large one, too many, and one
// with a known name or namespace. It drops the relationships of all but images.
func (a *archive) read(h *tar.Header, r io.Reader) error {
	if h.Size > maxDocument || len(a.byName) >= maxDocuments {
		return errors.New("too large an archive of SPDX")
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if h.Name == "index.json" {
		return nil
	}
	d, err := parseDocument(data)
	if err != nil {
		return err
	}
	if a.byName[h.Name] != nil || a.byNamespace[d.Namespace] != nil {
		return errors.New("it occurs twice")
	}
	if !d.isImage() {
		d.Relationships, d.Others = nil, nil // of thousands of files, and not needed
	}
	a.byName[h.Name], a.byNamespace[d.Namespace] = &d, &d
	return nil
}

// bill returns the packages of the images, and an error if the archive has no image's document.
func (a *archive) bill() (Bill, error) {
	var b Bill
	for _, d := range a.byName {
		if err := a.addImage(&b, d); err != nil {
			return Bill{}, err
		}
	}
	if len(b.Forms) == 0 {
		return Bill{}, errors.New("no document of an image is in it")
	}
	return b, nil
}

// imagePrefix begins the identifier of an image in Yocto's documents.
const imagePrefix = "SPDXRef-Image-"

// isImage reports whether a package of the document is an image of Yocto's.
func (d *document) isImage() bool {
	for _, p := range d.Packages {
		if strings.HasPrefix(p.ID, imagePrefix) {
			return true
		}
	}
	return false
}

// addImage adds the packages that an image's document contains. It ignores documents of packages.
func (a *archive) addImage(b *Bill, d *document) error {
	if !d.isImage() {
		return nil
	}
	b.Forms = append(b.Forms, d.form())
	others := map[string]*document{}
	for _, o := range d.Others {
		others[o.ID] = a.byNamespace[o.Namespace]
	}
	for _, r := range d.Relationships {
		if r.Type != "CONTAINS" || !strings.HasPrefix(r.From, imagePrefix) {
			continue
		}
		name, id, _ := strings.Cut(r.To, ":")
		if err := addNamed(b, others[name], id); err != nil {
			return fmt.Errorf("%s contains %s: %w", text(d.Name), text(r.To), err)
		}
	}
	return nil
}

// addNamed adds the package with an identifier in a document, or returns an error without one.
func addNamed(b *Bill, d *document, id string) error {
	if d == nil {
		return errors.New("no such document")
	}
	for _, p := range d.Packages {
		if p.ID == id {
			return b.addPackage(Package{Name: p.Name, Version: p.Version, Licence: firstLicence(p.Concluded, p.Declared)})
		}
	}
	return errors.New("no such package")
}
