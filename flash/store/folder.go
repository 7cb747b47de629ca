package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/oci"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// folder is an OCI image layout as a store.
type folder struct {
	dir  string
	lock *os.File // nil while the store is only read
}

const (
	lockName = "slipway.lock" // OCI allows other files in a layout
	blobsDir = "blobs/sha256"
)

var hexPattern = plaintext.Regexp(`^[0-9a-f]{64}$`)

// openFolder opens an OCI layout for toPull, toPush or toClean, or creates one for toPush in a new
// or empty folder. It refuses other folders. Except for toPull it takes the lock, or fails at once.
func openFolder(dir, actions string) (*folder, error) {
	f := &folder{dir: dir}
	entries, err := os.ReadDir(dir)
	isNew := errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
	switch {
	case isNew && actions == toPush:
	case isNew:
		return nil, fmt.Errorf("%s: nothing is kept there\nnext: ls -l %[1]s  # or push an artifact first", dir)
	case err != nil:
		return nil, err
	case !hasEntry(entries, v1.ImageLayoutFile) && !hasEntry(entries, lockName):
		return nil, fmt.Errorf("%s: not an OCI image layout, and not empty; name a new folder", dir)
	}
	if actions == toPull {
		return f, nil
	}
	if err := localfile.MkdirAll(filepath.Join(dir, blobsDir)); err != nil {
		return nil, err
	}
	if f.lock, err = localfile.LockNow(filepath.Join(dir, lockName), 0o644); errors.Is(err, localfile.ErrLocked) {
		err = fmt.Errorf("%s: another slipway writes there; wait for it", dir)
	}
	if err == nil && !hasEntry(entries, v1.ImageLayoutFile) {
		err = f.writeLayout()
	}
	if err != nil {
		f.lock.Close()
	}
	return f, err
}

func hasEntry(entries []fs.DirEntry, name string) bool {
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == name })
}

// close releases the lock of a push or a clean.
func (f *folder) close() {
	if f.lock != nil {
		f.lock.Close()
	}
}

// writeLayout writes oci-layout and an empty index.json.
func (f *folder) writeLayout() error {
	if err := f.saveIndex(v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{}}); err != nil {
		return err
	}
	return f.saveJSON(v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion})
}

// saveIndex writes index.json. More than oci.MaxManifests entries are an error.
func (f *folder) saveIndex(index v1.Index) error {
	if len(index.Manifests) > oci.MaxManifests {
		return fmt.Errorf("%s: more than %d tags\nnext: store clean %[1]s --keep=20", f.dir, oci.MaxManifests)
	}
	return f.saveJSON(v1.ImageIndexFile, index)
}

func (f *folder) saveJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(f.dir, name), data, 0o644)
}

// index reads index.json of the folder, which must be an OCI layout.
func (f *folder) index() (v1.Index, error) {
	source, err := oci.Open(f.dir)
	if err != nil {
		return v1.Index{}, err
	}
	defer source.Close()
	index, err := source.Index()
	if err != nil {
		err = fmt.Errorf("%s: %w", f.dir, err)
	}
	return index, err
}

func (f *folder) path(sum digest.Digest) string {
	return filepath.Join(f.dir, blobsDir, sum.Encoded())
}

// has reports whether the folder has a blob of the right size. It does not read the blob.
func (f *folder) has(_ context.Context, d v1.Descriptor) (bool, error) {
	info, err := os.Stat(f.path(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode().IsRegular() && info.Size() == d.Size, err
}

// put copies a blob into the folder; nothing, and errChanged, if its size or digest differs.
func (f *folder) put(ctx context.Context, b blob, sent func(int64)) error {
	in, err := b.open()
	if err != nil {
		return err
	}
	defer in.Close()
	err = copyProved(ctx, f.path(b.Digest), in, b.Descriptor, sent)
	if errors.Is(err, errOther) {
		err = fmt.Errorf("%s: %w", b.name, errChanged)
	}
	return err
}

var errOther = errors.New("its content has another digest or size: it is damaged, or another file")

// copyProved copies in to the file to. If size or digest are not d's, it returns errOther instead.
func copyProved(ctx context.Context, to string, in io.Reader, d v1.Descriptor, count func(int64)) error {
	out, err := renameio.TempFile(filepath.Dir(to), to)
	if err != nil {
		return err
	}
	defer out.Cleanup()
	h := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(out, h), localfile.WithContext(ctx, io.LimitReader(in, d.Size+1), count), make([]byte, 1<<20))
	switch {
	case err != nil:
		return err
	case n != d.Size || hex.EncodeToString(h.Sum(nil)) != d.Digest.Encoded():
		return errOther
	}
	if err := out.Chmod(0o644); err != nil {
		return err
	}
	return out.CloseAtomicallyReplace()
}

// tag writes the manifest as a blob, and moves the tags to it in index.json.
func (f *folder) tag(_ context.Context, manifest []byte, tags []string) error {
	d := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, ArtifactType: ArtifactType, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	if err := renameio.WriteFile(f.path(d.Digest), manifest, 0o644); err != nil {
		return err
	}
	index, err := f.index()
	if err != nil {
		return err
	}
	for _, tag := range tags {
		index.Manifests = slices.DeleteFunc(index.Manifests, func(m v1.Descriptor) bool { return m.Annotations[v1.AnnotationRefName] == tag })
		d.Annotations = map[string]string{v1.AnnotationRefName: tag}
		index.Manifests = append(index.Manifests, d)
	}
	return f.saveIndex(index)
}

// manifest reads the manifest that index.json lists with a tag or digest, and verifies it.
func (f *folder) manifest(ctx context.Context, name string) ([]byte, error) {
	index, err := f.index()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(index.Manifests, func(m v1.Descriptor) bool {
		return m.Annotations[v1.AnnotationRefName] == name || string(m.Digest) == name
	})
	if i < 0 {
		return nil, fmt.Errorf("%s: %w\nnext: store list %s", name, fs.ErrNotExist, f.dir)
	}
	return f.read(ctx, index.Manifests[i])
}

// read reads a blob of up to oci.MaxDocumentBytes and verifies its digest.
func (f *folder) read(_ context.Context, d v1.Descriptor) ([]byte, error) {
	data, err := localfile.Read(f.path(d.Digest), oci.MaxDocumentBytes)
	if err == nil && digest.FromBytes(data) != d.Digest {
		err = fmt.Errorf("%s: %w", f.path(d.Digest), errOther)
	}
	return data, err
}

// get copies a blob to a file below dir, called as its digest, and verifies it. name is only shown.
func (f *folder) get(ctx context.Context, d v1.Descriptor, name, dir string) (string, error) {
	in, err := localfile.Open(f.path(d.Digest))
	if err != nil {
		return "", err
	}
	defer in.Close()
	if err := localfile.MkdirAll(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, d.Digest.Encoded())
	step := progress.Start(ctx, "fetch "+name, d.Size, progress.Bytes)
	if err = copyProved(ctx, path, in, d, step.Add); err != nil {
		err = fmt.Errorf("%s: %w", f.path(d.Digest), err)
	}
	step.End("sha256 "+d.Digest.Encoded(), err)
	return path, err
}

// tags returns an entry for each manifest in index.json, also for those without a tag.
func (f *folder) tags(context.Context) ([]tagged, error) {
	index, err := f.index()
	var all []tagged
	for _, m := range index.Manifests {
		all = append(all, tagged{m.Annotations[v1.AnnotationRefName], string(m.Digest)})
	}
	return all, err
}

// remove removes manifests from the index, and then all blobs that no other manifest needs. It
// returns their size. With dry it removes nothing.
func (f *folder) remove(ctx context.Context, digests []string, dry bool) (freed int64, err error) {
	index, err := f.index()
	if err != nil {
		return 0, err
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(m v1.Descriptor) bool { return slices.Contains(digests, string(m.Digest)) })
	needed := map[string]bool{}
	for _, m := range index.Manifests {
		if err := f.markNeeded(ctx, m, needed, 0); err != nil {
			return 0, fmt.Errorf("%w; nothing is removed", err)
		}
	}
	if !dry && len(digests) > 0 {
		if err := f.saveIndex(index); err != nil {
			return 0, err
		}
	}
	return f.removeUnneeded(needed, dry)
}

const maxDepth = 4 // of an index inside an index

// markNeeded adds to needed a manifest or index and all that it names. Over maxDepth is an error.
func (f *folder) markNeeded(ctx context.Context, d v1.Descriptor, needed map[string]bool, depth int) error {
	if needed[d.Digest.Encoded()] {
		return nil
	}
	if depth > maxDepth {
		return fmt.Errorf("%s: more than %d indexes inside one another", d.Digest, maxDepth)
	}
	needed[d.Digest.Encoded()] = true
	data, err := f.read(ctx, d)
	if err != nil {
		return err
	}
	doc, err := oci.ParseDocument(data)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Digest, err)
	}
	var more struct {
		Subject v1.Descriptor   `json:"subject"`
		Blobs   []v1.Descriptor `json:"blobs"` // of the older artifact manifest
	}
	if err := json.Unmarshal(data, &more); err != nil {
		return fmt.Errorf("%s: %w", d.Digest, err)
	}
	for _, b := range slices.Concat(doc.Layers, more.Blobs, []v1.Descriptor{doc.Config, more.Subject}) {
		if b.Digest.Validate() == nil {
			needed[b.Digest.Encoded()] = true
		}
	}
	for _, m := range doc.Manifests {
		if err := f.markNeeded(ctx, m, needed, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// removeUnneeded removes the blobs that are not needed, and temporary files of interrupted pushes. It
// returns their size. With dry it removes nothing.
func (f *folder) removeUnneeded(needed map[string]bool, dry bool) (freed int64, err error) {
	dir := filepath.Join(f.dir, blobsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		isBlob := hexPattern().MatchString(e.Name())
		if needed[e.Name()] || !isBlob && !strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		freed += info.Size()
		if dry {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return freed, err
		}
	}
	return freed, nil
}
