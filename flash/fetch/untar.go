package fetch

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"slipway/flash/sealed"
	"slipway/layers/progress"
)

const (
	maxTarEntries = 64
	maxTailBytes  = 1 << 20 // zeros that fill a tar's last record
	maxWindow     = 64 << 20
)

// unpackLayer extracts the single file of a container's layer, as KubeVirt packs its
// images.
func (o *Origin) unpackLayer(ctx context.Context, layer File, digest string) (File, error) {
	step := progress.Start(ctx, "unpack "+layer.Name, layer.SizeBytes, progress.Bytes)
	file, err := o.extractLayer(ctx, layer, step.Add)
	if err == nil && digest != "" && file.SHA256 != digest {
		err = errors.Join(wrongDigest(file.SHA256, digest), os.Remove(file.Path))
	}
	step.End(file.Name, err)
	return file, err
}

// extractLayer extracts the layer's file into the cache.
func (o *Origin) extractLayer(ctx context.Context, layer File, count func(int64)) (File, error) {
	defer layer.Content.Close()
	in, done, err := decompressor(layer.Content.Reader(ctx, count), o.oci.blobs[0].packing)
	if err != nil {
		return File{}, err
	}
	defer done()
	p, err := openCacheEntry(ctx, o.opt.Dir, o.ref, layer.Name)
	if err != nil {
		return File{}, err
	}
	defer p.unlock()
	file, err := p.extractFile(in, layer.Reference)
	if err != nil {
		err = contextCause(ctx, err) // a person's interrupt is no damage
	}
	return file, err
}

// decompressor returns a reader of the unpacked tar, with the function that frees it.
func decompressor(in io.Reader, packing string) (io.Reader, func(), error) {
	switch packing {
	case "tar gzip":
		r, err := gzip.NewReader(in)
		return r, func() {}, err
	case "tar zstd":
		r, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	}
	return in, func() {}, nil
}

// extractFile writes the only regular file of a tar into the cache.
func (p *cacheEntry) extractFile(in io.Reader, reference string) (_ File, err error) {
	pending := p.filePath(".unpack") // at most a killed run left one
	to, err := os.OpenFile(pending, os.O_CREATE|os.O_TRUNC|os.O_RDWR|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return File{}, err
	}
	defer os.Remove(pending)
	defer func() {
		if err != nil {
			to.Close()
		}
	}()
	file, digest, err := p.copyOnlyFile(in, to)
	if err == nil {
		err = to.Sync()
	}
	if err != nil {
		return File{}, err
	}
	file.Reference, file.Listed = reference, true // the layer's digest was listed
	file.Path = (&cacheEntry{dir: p.dir, name: file.Name}).versionPath(file.SHA256)
	file.Content = sealed.Written(to, file.Path, digest)
	if err := os.MkdirAll(filepath.Dir(file.Path), 0o755); err != nil {
		return File{}, err
	}
	if err := os.Rename(pending, file.Path); err != nil {
		return File{}, err
	}
	return file, p.replaceUnpacked(file)
}

// replaceUnpacked records the extracted file and removes that of the former version.
func (p *cacheEntry) replaceUnpacked(file File) error {
	old := p.readRecord(".unpacked.json")
	if old != nil && old.SHA256 == file.SHA256 {
		return nil
	}
	if err := p.writeRecord(".unpacked.json", cacheRecord{Reference: file.Reference, SizeBytes: file.SizeBytes, SHA256: file.SHA256}); err != nil || old == nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(p.versionPath(old.SHA256)))
}

// copyOnlyFile copies the tar's only file, then checks the rest of the stream.
func (p *cacheEntry) copyOnlyFile(in io.Reader, to io.Writer) (file File, digest *sealed.Digest, err error) {
	t := tar.NewReader(in)
	for entries := 0; ; entries++ {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return file, nil, fmt.Errorf("the layer is not a whole tar: %w", err)
		}
		if entries >= maxTarEntries {
			return file, nil, fmt.Errorf("the layer has more than %d entries; one that holds a disk image has one file", maxTarEntries)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if err := checkEntry(h, file.Name); err != nil {
			return file, nil, err
		}
		file.Name, file.SizeBytes = SafeFileName(h.Name), h.Size
		if digest, err = p.copyEntry(t, h.Size, to); err != nil {
			return file, nil, err
		}
		file.SHA256 = hex.EncodeToString(digest.Sum(nil))
	}
	if file.Name == "" {
		return file, nil, errors.New("the layer holds no file")
	}
	// The compression's checksum comes after the tar's end.
	switch n, err := io.Copy(io.Discard, io.LimitReader(in, maxTailBytes+1)); {
	case err != nil:
		return file, nil, fmt.Errorf("the layer is damaged: %w", err)
	case n > maxTailBytes:
		return file, nil, fmt.Errorf("the layer holds more than %d MiB behind its tar", maxTailBytes>>20)
	}
	return file, digest, nil
}

// checkEntry accepts a regular file with a safe name that is the tar's only one.
func checkEntry(h *tar.Header, before string) error {
	switch {
	case h.Typeflag != tar.TypeReg:
		return fmt.Errorf("%q in the layer is neither a folder nor a file", printable(h.Name))
	case before != "":
		return fmt.Errorf("the layer holds %q besides %q; one that holds a disk image has one file", printable(h.Name), before)
	case SafeFileName(h.Name) == "":
		return fmt.Errorf("%q in the layer is no name of a file", printable(h.Name))
	}
	return nil
}

// copyEntry copies an entry's content and returns its digest.
func (p *cacheEntry) copyEntry(in io.Reader, size int64, to io.Writer) (*sealed.Digest, error) {
	if err := p.checkSpace(size); err != nil {
		return nil, err
	}
	h := sealed.NewDigest()
	_, err := io.Copy(to, layerReader{io.TeeReader(in, h)}) // fails on writing, where the layer is whole
	return h, err
}

// layerReader marks the read errors of a damaged layer, so that they differ from write
// errors.
type layerReader struct{ source io.Reader }

func (d layerReader) Read(p []byte) (int, error) {
	n, err := d.source.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("the layer is damaged: %w", err)
	}
	return n, err
}
