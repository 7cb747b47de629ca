package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/fetch"
	"slipway/flash/source"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// A plain disk image is a layer of zstd, because most of it is holes. The layer's title ends in
// .zst, so that other tools write a file with the right ending.
const (
	packedType  = "application/octet-stream+zstd"
	unpackedKey = "vnd.slipway.unpacked" // the annotation with the digest of the file
	leastPacked = 1 << 20                // bytes of a file that is worth it
)

// isPlainDisk reports whether a file of the artifact is an uncompressed disk image of at least
// leastPacked bytes, and its name with .zst is free.
func isPlainDisk(a images.Artifact, f images.File) bool {
	taken := func(other images.File) bool { return other.Name == f.Name+fetch.PackedEnding }
	if f.Kind != images.DiskImage || f.SizeBytes < leastPacked || slices.ContainsFunc(a.Files, taken) {
		return false
	}
	in, err := localfile.Open(a.Path(f))
	if err != nil {
		return false // which is an error when it is put
	}
	defer in.Close()
	image, err := source.Open(in, f.Name)
	if err != nil {
		return false
	}
	return image.Form() == "raw"
}

// pack compresses the plain disk images once, to learn their compressed size and digest, and puts
// those into the manifest. It reuses the values of an image that the store has under one of the
// tags. It leaves out images that would hardly become smaller.
func (c *content) pack(ctx context.Context, s Store, tags []string) (err error) {
	if !slices.ContainsFunc(c.blobs, func(b blob) bool { return b.disk != "" }) {
		return nil
	}
	known := map[string]v1.Descriptor{}
	for _, tag := range tags {
		data, err := s.manifest(ctx, tag)
		m, err2 := parseManifest(data)
		for _, l := range m.Layers {
			file := cmp.Or(l.Annotations[unpackedKey], string(l.Digest))
			if there, err3 := s.has(ctx, l); there && errors.Join(err, err2, err3) == nil {
				known[file] = l
			}
		}
	}
	for i := range c.blobs {
		b := &c.blobs[i]
		if b.disk == "" {
			continue
		}
		path, file := b.disk, b.Descriptor
		d, ok := known[string(file.Digest)]
		if !ok || nameOf(d) != b.name && nameOf(d) != b.name+fetch.PackedEnding {
			if d, err = describePacked(ctx, path, b.name, file); err != nil {
				return err
			}
		}
		if nameOf(d) == b.name || d.Size > file.Size/8*7 {
			continue // it has no holes, and nothing that is worth packing
		}
		b.Descriptor, b.open = d, func() (io.ReadCloser, error) { return openPacked(path, file.Size) }
	}
	c.manifest, err = json.Marshal(manifestOf(c.artifact, c.blobs[:len(c.blobs)-1])) // the last one is the configuration
	return err
}

// describePacked compresses a file to learn its descriptor, and verifies the file's own digest.
func describePacked(ctx context.Context, path, name string, file v1.Descriptor) (d v1.Descriptor, err error) {
	step := progress.Start(ctx, "pack "+name, file.Size, progress.Bytes)
	defer func() { step.End(plaintext.SizeText(d.Size), err) }()
	in, err := openSized(path, file.Size)
	if err != nil {
		return d, err
	}
	defer in.Close()
	unpacked, packed, n := sha256.New(), sha256.New(), counter(0)
	err = writePacked(io.MultiWriter(packed, &n), io.TeeReader(localfile.WithContext(ctx, in, step.Add), unpacked), file.Size)
	if err == nil && hex.EncodeToString(unpacked.Sum(nil)) != file.Digest.Encoded() {
		err = fmt.Errorf("%s: %w", path, errChanged)
	}
	d = describe(name+fetch.PackedEnding, digest.NewDigest(digest.SHA256, packed), int64(n))
	d.MediaType, d.Annotations[unpackedKey] = packedType, string(file.Digest)
	return d, err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// writePacked compresses size bytes of in as zstd. The same input gives the same output.
func writePacked(to io.Writer, in io.Reader, size int64) error {
	e, err := zstd.NewWriter(nil)
	if err != nil {
		return err
	}
	e.ResetContentSize(to, size)
	n, err := io.CopyBuffer(struct{ io.Writer }{e}, io.LimitReader(in, size), make([]byte, 1<<20))
	if err == nil && n != size {
		err = errChanged
	}
	return errors.Join(err, e.Close())
}

// openPacked returns a reader that compresses a file while it is read.
func openPacked(path string, size int64) (io.ReadCloser, error) {
	in, err := openSized(path, size)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() {
		defer in.Close()
		w.CloseWithError(writePacked(w, in, size))
	}()
	return r, nil
}

// fileLayer returns a file's layer, and whether it is packed. ok is false if the file's size (not
// if packed) or digest differ.
func fileLayer(m v1.Manifest, f images.File) (l v1.Descriptor, packed, ok bool) {
	if l, ok = layerNamed(m, f.Name); ok {
		return l, false, l.Size == f.SizeBytes && l.Digest.Encoded() == f.SHA256
	}
	l, ok = layerNamed(m, f.Name+fetch.PackedEnding)
	return l, true, ok && l.MediaType == packedType && l.Annotations[unpackedKey] == "sha256:"+f.SHA256
}

// unpackLayers replaces compressed layers in the manifest by the files. p.packed keeps the layers.
func (p *pull) unpackLayers(a images.Artifact) {
	p.packed = map[string]v1.Descriptor{}
	for _, f := range a.Files {
		if l, packed, _ := fileLayer(p.manifest, f); packed {
			p.packed[f.Name] = l
			i := slices.IndexFunc(p.manifest.Layers, func(other v1.Descriptor) bool { return nameOf(other) == nameOf(l) })
			p.manifest.Layers[i] = describe(f.Name, digest.NewDigestFromEncoded(digest.SHA256, f.SHA256), f.SizeBytes)
		}
	}
}

// unpack decompresses the fetched file from, with holes for zeros, verifies size and digest, and
// returns the new path. It removes from, also if the content is wrong, but not after another error.
func (p *pull) unpack(ctx context.Context, from string, to v1.Descriptor) (path string, err error) {
	name := nameOf(to)
	step := progress.Start(ctx, "unpack "+name, to.Size, progress.Bytes)
	defer func() { step.End("sha256 "+to.Digest.Encoded(), err) }()
	in, err := localfile.Open(from)
	if err != nil {
		return "", err
	}
	defer in.Close()
	image, err := source.Open(in, name)
	if err != nil {
		return "", err
	}
	if image.SizeBytes() != to.Size { // without that, zeros would be unpacked up to their end
		return "", errors.Join(errOther, os.Remove(from))
	}
	part := filepath.Join(partName, to.Digest.Encoded()+".unpacked")
	out, err := p.root.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	end, sum := int64(0), sha256.New()
	for i := 0; i < len(image.Sections()) && err == nil; i++ {
		err = image.Decode(ctx, i, nil, func(piece source.Piece) (err error) {
			defer piece.Free()
			if piece.Off != end || piece.Len > to.Size-end {
				return errOther
			}
			if piece.Data != nil {
				_, err = out.WriteAt(piece.Data, piece.Off)
			}
			_, _ = sum.Write(piece.Data) // never fails
			source.WriteZeros(sum, piece.Len-int64(len(piece.Data)))
			end += piece.Len
			step.Set(end)
			return err
		})
	}
	if err == nil {
		err = image.CheckUnchanged()
	}
	if err == nil && (end != to.Size || hex.EncodeToString(sum.Sum(nil)) != to.Digest.Encoded()) {
		err = errOther
	}
	if err == nil {
		err = errors.Join(out.Truncate(end), out.Sync())
	}
	if err = errors.Join(err, out.Close()); err != nil {
		if errors.Is(err, errOther) { // what was fetched is of no use
			err = errors.Join(err, os.Remove(from))
		}
		return "", errors.Join(err, p.root.Remove(part))
	}
	return filepath.Join(p.Folder, part), os.Remove(from)
}
