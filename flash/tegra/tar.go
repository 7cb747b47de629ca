package tegra

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"slipway/layers/plaintext"
)

// windowLimit is the most memory that decoding a .zst may need, the same as for zstd --long.
const windowLimit = 128 << 20

// unpackTar extracts a tar, plain or compressed with gzip or zstd, as its first bytes, head, show.
// It returns an error without an end mark. It reads in to the end, so that its digest is known.
func (t *extraction) unpackTar(in *bufio.Reader, head []byte) error {
	raw := &countingReader{r: in}
	plain, end, err := decompress(raw, head)
	if err != nil {
		return err
	}
	defer end()
	// archive/tar reads only through out, even what it skips.
	out := &countingReader{r: plain, before: raw, limits: t.limits}
	if err := t.unpackEntries(tar.NewReader(out)); err != nil {
		return err
	}
	// The rest must be read too, since the compression's checksum comes last.
	if _, err := io.Copy(io.Discard, t.cancellable(out)); err != nil {
		return err
	}
	if !out.hasEndMark() {
		return fmt.Errorf("no end mark: %w", io.ErrUnexpectedEOF)
	}
	if _, err := io.Copy(io.Discard, t.cancellable(in)); err != nil { // for the digest
		return err
	}
	return nil
}

// decompress returns a reader of the tar, which head shows to be plain, gzip or zstd, and a
// function that frees the reader. It returns an error for any other head.
func decompress(raw io.Reader, head []byte) (io.Reader, func(), error) {
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		r, err := gzip.NewReader(raw)
		return r, func() {}, err
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		r, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(windowLimit), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	case len(head) == 512 && bytes.HasPrefix(head[257:], []byte("ustar")):
		return raw, func() {}, nil
	case bytes.HasPrefix(head, []byte("PK")):
		return nil, nil, errors.New("a zip, which Slipway does not unpack: build it with TEGRAFLASH_PACKAGE_FORMAT = \"tar\"")
	}
	return nil, nil, errors.New("no tar (.tar, .tar.gz, .tar.zst)")
}

// countingReader counts bytes read, also on a decoder's own goroutine, and the zeros at the end.
type countingReader struct {
	r      io.Reader
	n      atomic.Int64
	zeros  int64           // zero bytes at the end so far
	before *countingReader // of the packed bytes, to compare; nil: no limits
	limits archiveLimits
}

// Read counts bytes, and zeros at the end. With c.before, it fails if the archive expands too much.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	all := c.n.Add(int64(n))
	if kept := bytes.TrimRight(p[:n], "\x00"); len(kept) > 0 {
		c.zeros = int64(n - len(kept))
	} else {
		c.zeros += int64(n)
	}
	if c.before != nil && c.limits.isBomb(all, c.before.n.Load()) {
		return n, fmt.Errorf("more than %d bytes come out of %d: no image packs like that", all, c.before.n.Load())
	}
	return n, err
}

// hasEndMark reports whether the tar ended with two blocks of zeros.
func (c *countingReader) hasEndMark() bool { return c.zeros >= 1024 }

// unpackEntries extracts all entries of a tar.
func (t *extraction) unpackEntries(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d entries: %w", len(t.made)-1, err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := t.unpackEntry(h, r); err != nil {
			return err
		}
	}
}

// unpackEntry extracts a file, folder or link, without owner and xattrs. It refuses other types.
func (t *extraction) unpackEntry(h *tar.Header, r io.Reader) error {
	name, err := t.prepareEntry(h.Name)
	if err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return t.writeFile(name, mode, h.Size, r)
	case tar.TypeDir:
		return t.makeFolder(name, mode)
	case tar.TypeSymlink:
		return t.makeSymlink(name, h.Linkname)
	case tar.TypeLink:
		return t.makeHardLink(name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return fmt.Errorf("%q is a device or a pipe; no such archive is unpacked", path.Clean(name))
	}
	return fmt.Errorf("%q is of type %s, which is not known here", name, plaintext.OneLine(fmt.Sprintf("%q", h.Typeflag)))
}
