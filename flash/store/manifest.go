package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/fetch"
	"slipway/flash/oci"
	"slipway/images"
	"slipway/images/bitbake"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// ArtifactType is the type of the manifests that Slipway writes.
const ArtifactType = "application/vnd.slipway.artifact.v1+json"

// orasType is the type that ORAS writes if the user names none.
const orasType = "application/vnd.unknown.artifact.v1"

// The annotations of a manifest that OCI has no name for.
const (
	boardKey = "vnd.slipway.board"
	archKey  = "vnd.slipway.arch"
	keyKey   = "vnd.slipway.key"
)

const (
	reportName     = "report.json" // ci/report's
	maxExtraBytes  = 64 << 20      // of a report, or of what a build read
	maxDescription = 1 << 20       // of artifact.json, and of a signature
)

// extraNames returns the names of an artifact's files that artifact.json does not list.
func extraNames() []string {
	names := []string{reportName, bitbake.InputsName}
	for _, ending := range images.SignatureEndings {
		names = append(names, images.ArtifactName+ending)
	}
	return names
}

// maxBytesOf returns the size limit for artifact.json, or for a file that it does not list.
func maxBytesOf(name string) int64 {
	if name == reportName || name == bitbake.InputsName {
		return maxExtraBytes
	}
	return maxDescription
}

// content is an artifact in the form in which a store keeps it.
type content struct {
	artifact images.Artifact
	manifest []byte
	blobs    []blob
}

// readContent reads the artifact in dir with its signatures, and its report below reports unless
// that is of another build. It makes the manifest and the blobs. Only put reads the files that
// artifact.json lists, and verifies them by its digests.
func readContent(dir, reports string) (content, error) {
	var c content
	var err error
	if c.artifact, err = images.OpenArtifact(dir); err != nil {
		return c, err
	}
	described, err := memoryBlob(dir, images.ArtifactName)
	if err != nil {
		return c, err
	}
	c.blobs = []blob{described}
	for _, f := range c.artifact.Files {
		if fetch.SafeFileName(f.Name) != f.Name {
			return c, fmt.Errorf("%s: %q is no name that a store keeps", images.ArtifactPath(dir), f.Name)
		}
		b := blob{name: f.Name, Descriptor: describe(f.Name, digest.NewDigestFromEncoded(digest.SHA256, f.SHA256), f.SizeBytes)}
		if isPlainDisk(c.artifact, f) {
			b.disk = c.artifact.Path(f)
		}
		b.open = func() (io.ReadCloser, error) { return openSized(c.artifact.Path(f), f.SizeBytes) }
		c.blobs = append(c.blobs, b)
	}
	for _, name := range extraNames() {
		from := dir
		if name == reportName {
			from = filepath.Join(reports, c.artifact.Board)
		}
		b, err := memoryBlob(from, name)
		if err == nil && name == reportName && !isReportOf(b, c.artifact) {
			continue
		}
		if err == nil {
			c.blobs = append(c.blobs, b)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
	}
	if c.manifest, err = json.Marshal(manifestOf(c.artifact, c.blobs)); err != nil {
		return c, err
	}
	c.blobs = append(c.blobs, bytesBlob("", v1.DescriptorEmptyJSON, v1.DescriptorEmptyJSON.Data))
	_, err = parseManifest(c.manifest)
	return c, err
}

// isReportOf reports whether a report names the artifact's key, or none, as without a deploy.
func isReportOf(b blob, a images.Artifact) bool {
	var report struct {
		Identity struct {
			ImageKey string `json:"imageKey"`
		} `json:"identity"`
	}
	in, err := b.open()
	if err == nil {
		err = json.NewDecoder(in).Decode(&report)
	}
	return err == nil && (report.Identity.ImageKey == "" || report.Identity.ImageKey == a.Key)
}

func memoryBlob(dir, name string) (blob, error) {
	data, err := localfile.Read(filepath.Join(dir, name), maxBytesOf(name))
	return bytesBlob(name, describe(name, digest.FromBytes(data), int64(len(data))), data), err
}

func bytesBlob(name string, d v1.Descriptor, data []byte) blob {
	return blob{Descriptor: d, name: name, open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
}

// errChanged is the error of a file that differs from its digest or size in artifact.json.
var errChanged = errors.New("it is not what artifact.json says: it was changed after the build, or while it was read")

// openSized opens a file, and returns errChanged if it is not regular or does not have the size.
func openSized(path string, size int64) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != size) {
		err = fmt.Errorf("%s: %w", path, errChanged)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// describe returns the descriptor of a file, with the file's name as the title.
func describe(name string, sum digest.Digest, size int64) v1.Descriptor {
	kind := plaintext.Either(filepath.Ext(name) == ".json", "application/json", "application/octet-stream")
	return v1.Descriptor{MediaType: kind, Digest: sum, Size: size, Annotations: map[string]string{v1.AnnotationTitle: name}}
}

// manifestOf returns the manifest of an artifact. It contains nothing but the artifact's data, so
// that the same artifact has the same digest everywhere.
func manifestOf(a images.Artifact, blobs []blob) v1.Manifest {
	m := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		ArtifactType: ArtifactType, Config: v1.DescriptorEmptyJSON,
		Annotations: map[string]string{boardKey: a.Board, archKey: a.Arch, keyKey: a.Key, v1.AnnotationCreated: a.Built.UTC().Format(time.RFC3339)},
	}
	if a.Source != nil {
		m.Annotations[v1.AnnotationRevision] = a.Source.Commit + plaintext.Either(a.Source.Edited, "+edited", "")
		m.Annotations[v1.AnnotationSource] = plaintext.HideSecrets(a.Source.URL)
	}
	for _, b := range blobs {
		m.Layers = append(m.Layers, b.Descriptor)
	}
	return m
}

// parseManifest parses and checks a manifest from a store, which anybody may have written.
func parseManifest(data []byte) (v1.Manifest, error) {
	var m v1.Manifest
	if len(data) > oci.MaxDocumentBytes {
		return m, fmt.Errorf("a manifest of more than %d MiB", oci.MaxDocumentBytes>>20)
	}
	doc, err := oci.ParseDocument(data)
	if err != nil {
		return m, err
	}
	if doc.IsIndex() {
		return m, errors.New("it is an index of several manifests, not an artifact; name one of them by its digest")
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("the manifest is not one: %w", plaintext.JSONError(err))
	}
	if !slices.Contains([]string{ArtifactType, orasType, ""}, m.ArtifactType) {
		return m, fmt.Errorf("it is a %s, not an artifact of Slipway", plaintext.OneLine(m.ArtifactType))
	}
	return m, checkTitles(m.Layers)
}

// checkTitles returns an error for unsafe or duplicate names, without artifact.json, or if that or
// one of extraNames is oversized.
func checkTitles(layers []v1.Descriptor) error {
	seen := map[string]bool{}
	for _, l := range layers {
		name := l.Annotations[v1.AnnotationTitle]
		switch {
		case name == "" || fetch.SafeFileName(name) != name:
			return fmt.Errorf("%q in the manifest is no name of an artifact's file", plaintext.OneLine(name))
		case seen[name]:
			return fmt.Errorf("the manifest has two files with the name %q", name)
		}
		seen[name] = true
		if isExtra := name == images.ArtifactName || slices.Contains(extraNames(), name); isExtra && l.Size > maxBytesOf(name) {
			return fmt.Errorf("%s of %d bytes in the manifest; at most %d make sense", name, l.Size, maxBytesOf(name))
		}
	}
	if !seen[images.ArtifactName] {
		return fmt.Errorf("it has no %s, so it is not an artifact of Slipway", images.ArtifactName)
	}
	return nil
}

// layerNamed returns the layer with a title.
func layerNamed(m v1.Manifest, name string) (v1.Descriptor, bool) {
	i := slices.IndexFunc(m.Layers, func(l v1.Descriptor) bool { return l.Annotations[v1.AnnotationTitle] == name })
	if i < 0 {
		return v1.Descriptor{}, false
	}
	return m.Layers[i], true
}

// parseArtifact parses artifact.json, which must name the manifest's files with their digests.
func parseArtifact(data []byte, m v1.Manifest) (images.Artifact, error) {
	a, err := images.ParseArtifact(data)
	if err != nil {
		return a, fmt.Errorf("%s: %w", images.ArtifactName, err)
	}
	listed := map[string]bool{images.ArtifactName: true}
	for _, f := range a.Files {
		l, _, ok := fileLayer(m, f)
		if !ok {
			return a, fmt.Errorf("%s lists %q, and the manifest has no such file with its size and digest", images.ArtifactName, plaintext.OneLine(f.Name))
		}
		if listed[nameOf(l)] {
			return a, fmt.Errorf("%s lists %q twice", images.ArtifactName, f.Name)
		}
		listed[nameOf(l)] = true
	}
	for _, l := range m.Layers {
		if name := l.Annotations[v1.AnnotationTitle]; !listed[name] && !slices.Contains(extraNames(), name) {
			return a, fmt.Errorf("the manifest has the file %q, which %s does not list", name, images.ArtifactName)
		}
	}
	return a, nil
}

// defaultTag returns the tag for an artifact that the user did not tag: BOARD-KEY, with - for what
// tags cannot contain, and the key's first 12 characters.
func defaultTag(board, key string) string {
	clean := strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("._-", r)) {
			return r
		}
		return '-'
	}, board)
	return strings.TrimLeft(clean, ".-") + "-" + key[:min(len(key), 12)]
}
