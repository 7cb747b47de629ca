package fetch

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"slipway/layers/progress"
)

const (
	maxTarEntries = 64
	maxTailBytes  = 1 << 20 // zeros that fill the last of a tar's records
	maxWindow     = 64 << 20
)

// unpack takes the one file out of a container's layer, such as the images of
// KubeVirt have it.
func (o *Origin) unpack(ctx context.Context, layer File, digest string) (File, error) {
	step := progress.Start(ctx, "unpack "+layer.Name, layer.SizeBytes, progress.Bytes)
	file, err := o.unpackOne(ctx, layer, step.Add)
	if err == nil && digest != "" && file.SHA256 != digest {
		err = errors.Join(wrongDigest(file.SHA256, digest), os.Remove(file.Path))
	}
	step.End(file.Name, err)
	return file, err
}

func (o *Origin) unpackOne(ctx context.Context, layer File, count func(int64)) (File, error) {
	f, err := os.Open(layer.Path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	in, done, err := unpacked(&counter{ctx, f, count}, o.oci.blobs[0].packing)
	if err != nil {
		return File{}, err
	}
	defer done()
	p, err := openPlace(ctx, o.opt.Dir, o.ref, layer.Name)
	if err != nil {
		return File{}, err
	}
	defer p.close()
	file, err := p.extract(in, layer.Reference)
	if err != nil {
		err = cause(ctx, err) // where a person stopped it, nothing is damaged
	}
	return file, err
}

func unpacked(in io.Reader, packing string) (io.Reader, func(), error) {
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

// extract writes the only regular file of a tar into the cache.
func (p *place) extract(in io.Reader, reference string) (File, error) {
	pending := p.path(".unpack") // one that was killed left it, at the most
	to, err := os.OpenFile(pending, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return File{}, err
	}
	defer os.Remove(pending)
	defer to.Close()
	file, err := p.onlyFile(in, to)
	if err == nil {
		err = to.Sync()
	}
	if err != nil {
		return File{}, err
	}
	file.Reference, file.Listed = reference, true // its layer's was
	file.Path = (&place{dir: p.dir, name: file.Name}).version(file.SHA256)
	if err := os.MkdirAll(filepath.Dir(file.Path), 0o755); err != nil {
		return File{}, err
	}
	if err := os.Rename(pending, file.Path); err != nil {
		return File{}, err
	}
	return file, p.replace(file)
}

// replace takes away what the former version of the layer was unpacked to.
func (p *place) replace(file File) error {
	old := p.read(".unpacked.json")
	if old != nil && old.SHA256 == file.SHA256 {
		return nil
	}
	if err := p.write(".unpacked.json", record{Reference: file.Reference, SizeBytes: file.SizeBytes, SHA256: file.SHA256}); err != nil || old == nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(p.version(old.SHA256)))
}

func (p *place) onlyFile(in io.Reader, to io.Writer) (file File, err error) {
	t := tar.NewReader(in)
	for entries := 0; ; entries++ {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return file, fmt.Errorf("the layer is not a whole tar: %w", err)
		}
		if entries >= maxTarEntries {
			return file, fmt.Errorf("the layer has more than %d entries; one that holds a disk image has one file", maxTarEntries)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if err := acceptEntry(h, file.Name); err != nil {
			return file, err
		}
		file.Name, file.SizeBytes = fileName(h.Name), h.Size
		if file.SHA256, err = p.copyEntry(t, h.Size, to); err != nil {
			return file, err
		}
	}
	if file.Name == "" {
		return file, errors.New("the layer holds no file")
	}
	// The packing's own checksum stands behind the tar's end.
	switch n, err := io.Copy(io.Discard, io.LimitReader(in, maxTailBytes+1)); {
	case err != nil:
		return file, fmt.Errorf("the layer is damaged: %w", err)
	case n > maxTailBytes:
		return file, fmt.Errorf("the layer holds more than %d MiB behind its tar", maxTailBytes>>20)
	}
	return file, nil
}

func acceptEntry(h *tar.Header, before string) error {
	switch {
	case h.Typeflag != tar.TypeReg:
		return fmt.Errorf("%q in the layer is neither a folder nor a file", printable(h.Name))
	case before != "":
		return fmt.Errorf("the layer holds %q besides %q; one that holds a disk image has one file", printable(h.Name), before)
	case fileName(h.Name) == "":
		return fmt.Errorf("%q in the layer is no name of a file", printable(h.Name))
	}
	return nil
}

func (p *place) copyEntry(in io.Reader, size int64, to io.Writer) (string, error) {
	if err := p.checkSpace(size); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(to, damage{io.TeeReader(in, h)}); err != nil {
		return "", err // of the disk, where the layer is whole
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// damage tells faults of a layer from those of what it is written to.
type damage struct{ in io.Reader }

func (d damage) Read(p []byte) (int, error) {
	n, err := d.in.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("the layer is damaged: %w", err)
	}
	return n, err
}
