package tegra

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/klauspost/compress/flate"

	"slipway/flash/sealed"
)

func isZip(head []byte) bool {
	return bytes.HasPrefix(head, []byte("PK\x03\x04")) || bytes.HasPrefix(head, []byte("PK\x05\x06"))
}

// unpackZip extracts a zip. It checks the sizes in the directory against the limits before it
// writes a file.
func (t *extraction) unpackZip(f *sealed.File) error {
	r, err := zip.NewReader(f, f.SizeBytes())
	if err != nil {
		return err
	}
	r.RegisterDecompressor(zip.Deflate, func(in io.Reader) io.ReadCloser { return flate.NewReader(in) })
	if len(r.File) > t.limits.Entries {
		return fmt.Errorf("more than %d entries", t.limits.Entries)
	}
	var all uint64
	for _, e := range r.File {
		all += min(e.UncompressedSize64, uint64(t.limits.Bytes)+1)
		if all > uint64(t.limits.Bytes) {
			return fmt.Errorf("its files have more than %d bytes together", t.limits.Bytes)
		}
		if t.limits.isBomb(int64(e.UncompressedSize64), int64(min(e.CompressedSize64, math.MaxInt64))) {
			return fmt.Errorf("%q: %d bytes come out of %d: no image packs like that", e.Name, e.UncompressedSize64, e.CompressedSize64)
		}
	}
	if t.limits.isBomb(int64(all), f.SizeBytes()) { // entries may overlap
		return fmt.Errorf("%d bytes come out of %d: no image packs like that", all, f.SizeBytes())
	}
	for _, e := range r.File {
		if err := t.unpackMember(e); err != nil {
			return err
		}
	}
	return nil
}

// unpackMember extracts one file, folder or symbolic link of a zip. It refuses devices and pipes.
func (t *extraction) unpackMember(e *zip.File) error {
	name, err := t.prepareEntry(e.Name)
	if err != nil {
		return err
	}
	mode := e.Mode()
	if strings.HasSuffix(e.Name, "/") || mode.IsDir() {
		return t.makeFolder(name, mode)
	}
	if mode.Type() != 0 && mode.Type() != fs.ModeSymlink {
		return fmt.Errorf("%q is a device or a pipe; no such archive is unpacked", name)
	}
	r, err := e.Open()
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	defer r.Close()
	if mode.Type() == fs.ModeSymlink {
		to, err := io.ReadAll(io.LimitReader(r, int64(t.limits.NameBytes)+1))
		if err != nil {
			return fmt.Errorf("link %q: %w", name, err)
		}
		return t.makeSymlink(name, string(to))
	}
	return t.writeFile(name, mode, int64(e.UncompressedSize64), r)
}
