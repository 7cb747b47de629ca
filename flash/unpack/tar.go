package unpack

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

// windowLimit is the most memory that a .zst may ask for; zstd --long asks for that.
const windowLimit = 128 << 20

// tar unpacks a tar in any of its packings.
func (t *tree) tar(in *bufio.Reader, head []byte) error {
	raw := &counter{r: in}
	plain, end, err := unpacked(raw, head)
	if err != nil {
		return err
	}
	defer end()
	// archive/tar reads from out only, also what it skips.
	out := &counter{r: plain, before: raw, limits: t.limits}
	if err := t.entries(tar.NewReader(out)); err != nil {
		return err
	}
	// What follows must be read too: only then did the packing's checksum hold.
	if _, err := io.Copy(io.Discard, t.endable(out)); err != nil {
		return err
	}
	if !out.closed() {
		return fmt.Errorf("no end mark: %w", io.ErrUnexpectedEOF)
	}
	if _, err := io.Copy(io.Discard, t.endable(in)); err != nil { // for the digest
		return err
	}
	return nil
}

// unpacked tells the packing by its first bytes.
func unpacked(raw io.Reader, head []byte) (io.Reader, func(), error) {
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
	}
	return nil, nil, errors.New("neither a tar (.tar, .tar.gz, .tar.zst) nor a zip")
}

// counter counts what is read, which decoders do on goroutines of their own.
type counter struct {
	r      io.Reader
	n      atomic.Int64
	zeros  int64 // how many there were at the end
	before *counter
	limits Limits
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	all := c.n.Add(int64(n))
	if kept := bytes.TrimRight(p[:n], "\x00"); len(kept) > 0 {
		c.zeros = int64(n - len(kept))
	} else {
		c.zeros += int64(n)
	}
	if c.before != nil && c.limits.bomb(all, c.before.n.Load()) {
		return n, fmt.Errorf("more than %d bytes come out of %d: no image packs like that", all, c.before.n.Load())
	}
	return n, err
}

// closed says whether a tar ended as tars do, in two blocks of zeros.
func (c *counter) closed() bool { return c.zeros >= 1024 }

func (t *tree) entries(r *tar.Reader) error {
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
		if err := t.entry(h, r); err != nil {
			return err
		}
	}
}

// entry unpacks one. Extended attributes and owners are left out: the folder is this
// user's.
func (t *tree) entry(h *tar.Header, r io.Reader) error {
	name, err := t.place(h.Name)
	if err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return t.file(name, mode, h.Size, r)
	case tar.TypeDir:
		return t.folder(name, mode)
	case tar.TypeSymlink:
		return t.link(name, h.Linkname)
	case tar.TypeLink:
		return t.same(name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return fmt.Errorf("%q is a device or a pipe; no such archive is unpacked", path.Clean(name))
	}
	return fmt.Errorf("%q is of type %s, which is not known here", name, plaintext.OneLine(fmt.Sprintf("%q", h.Typeflag)))
}
