// Package source turns an image file of any form (compressed or plain)
// into pieces of the unpacked image. It verifies the whole file, even where a block map
// has holes. Its memory is bounded by the limits on a file.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/flash/probe"
	"slipway/flash/sealed"
	"slipway/layers/plaintext"
)

// maxImageBytes keeps every sum of offsets far from overflow.
const maxImageBytes = 1 << 50

// Section is a part of the unpacked image that can be decoded by itself.
type Section struct {
	Off, Len int64 // Len is -1 if only decoding tells; then it is the only section
}

// Span is a part of the unpacked image.
type Span struct {
	Off, Len int64
}

// Image is an image in a file, and the decoder that unpacks it.
type Image struct {
	file    packedFile
	form    string
	decoder decoder
}

// decoder decodes one form of packing.
type decoder interface {
	sections() []Section // at least one
	// decodeSection decodes section i into the cutter. It returns an error if any byte, wanted or
	// not, fails the form's checks. Goroutines may decode other sections.
	decodeSection(i int, to *cutter) error
}

// File is an open file: *os.File, or *sealed.File, which returns only the sealed content.
type File interface {
	io.ReaderAt
	Stat() (os.FileInfo, error)
}

// packedFile is an open file with its name and size.
type packedFile struct {
	File
	name      string
	sizeBytes int64
}

// form is a way to pack an image. Each has its own source file and an entry in forms.
type form struct {
	name  string
	magic func(head []byte) bool
	open  func(f packedFile) (decoder, error)
	ends  []string // endings of names in this form
}

// headBytes is how much of a file is read to recognize its form: up to the magic of tar.
const headBytes = 512

// forms are tried in this order. A file that matches none is a plain image.
var forms = []form{
	{name: "zst", magic: isZst, open: openZst, ends: []string{".zst", ".zstd"}},
	{name: "gz", magic: hasMagic("\x1f\x8b\x08"), open: openGz, ends: []string{".gz", ".tgz"}},
	{name: "bz2", magic: hasMagic("BZh"), open: openBz2, ends: []string{".bz2"}},
	{name: "zip", magic: hasMagic("PK\x03\x04", zipEnd), open: openZip, ends: []string{".zip"}},
	{name: "xz", magic: hasMagic("\xfd7zXZ\x00"), open: openXz, ends: []string{".xz", ".txz"}},
}

// FormNames returns the names of the packed forms.
func FormNames() (names []string) {
	for _, f := range forms {
		names = append(names, f.name)
	}
	return names
}

// hasMagic returns a function that reports whether head begins with any of the magics.
func hasMagic(magic ...string) func([]byte) bool {
	return func(head []byte) bool {
		return slices.ContainsFunc(magic, func(m string) bool { return strings.HasPrefix(string(head), m) })
	}
}

// Open recognizes the form of f by its content. It refuses an empty file, a format that it cannot
// unpack, a packed file in another, and a packed form's name on other content. The caller closes f.
func Open(f File, name string) (*Image, error) {
	m, err := openImage(f, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, explainEOF(name, err))
	}
	return m, nil
}

// openImage is Open without the file's name in errors. Content of no known form is a plain image.
func openImage(f File, name string) (*Image, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is a %s, not a file with an image; copy it into one first", plaintext.Either(info.IsDir(), "folder", "device or a pipe"))
	}
	if info.Size() == 0 {
		return nil, errors.New("the file is empty; fetch or build it again")
	}
	head := make([]byte, min(headBytes, info.Size()))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, err
	}
	p := packedFile{File: f, name: name, sizeBytes: info.Size()}
	k := findForm(head)
	if k == nil {
		if err := checkPlain(head, name); err != nil {
			return nil, err
		}
		return &Image{file: p, form: "raw", decoder: &raw{p, splitSections(p.sizeBytes)}}, nil
	}
	d, err := k.open(p)
	if err != nil {
		return nil, err
	}
	if err := checkInside(d, k.name); err != nil {
		return nil, err
	}
	return &Image{file: p, form: k.name, decoder: d}, nil
}

// findForm returns the packed form whose magic begins head; nil if there is none.
func findForm(head []byte) *form {
	for i := range forms {
		if forms[i].magic(head) {
			return &forms[i]
		}
	}
	return nil
}

// checkPlain returns an error if a plain image begins like another packed format, or has the name
// of a packed form. Such a file may be a failed download.
func checkPlain(head []byte, name string) error {
	if err := checkNotPacked(head); err != nil {
		return err
	}
	if IsPackedName(name) {
		return fmt.Errorf("it is called %s, and its content is not that; fetch it again, or rename it if it is a plain image\nnext: file IMAGE", strings.ToLower(filepath.Ext(name)))
	}
	return nil
}

// IsPackedName reports whether a name has the ending of a packed form, in upper or lower case.
func IsPackedName(name string) bool {
	ending := strings.ToLower(filepath.Ext(name))
	return slices.ContainsFunc(forms, func(k form) bool { return slices.Contains(k.ends, ending) })
}

// checkNotPacked returns an error with advice if head is of a format to unpack or convert first.
func checkNotPacked(head []byte) error {
	f := probe.FindOtherFormat(head)
	if f == nil || !f.Packed {
		return nil
	}
	return fmt.Errorf("it is %s%s", f.What, plaintext.Either(f.Next == "", "", "\nnext: "+f.Next))
}

// isZst recognizes frames of zstd, and the skippable frames with which some programs begin.
func isZst(head []byte) bool {
	return strings.HasPrefix(string(head), frameMagic) || len(head) > 4 && string(head[1:4]) == "\x2a\x4d\x18" && head[0]&0xf0 == 0x50
}

// Form returns "raw", or the name of the packed form.
func (m *Image) Form() string { return m.form }

// SizeBytes returns the unpacked size, or -1 if only decoding tells.
func (m *Image) SizeBytes() int64 {
	parts := m.decoder.sections()
	last := parts[len(parts)-1]
	if last.Len < 0 {
		return -1
	}
	return last.Off + last.Len
}

// LeastBytes returns a lower bound of the unpacked size: 0 if nothing is known.
func (m *Image) LeastBytes() int64 {
	if d, ok := m.decoder.(interface{ leastBytes() int64 }); ok {
		return d.leastBytes()
	}
	return max(0, m.SizeBytes())
}

// Sections returns the sections, which ascend and cover the image.
func (m *Image) Sections() []Section { return m.decoder.sections() }

// Parallel returns how many sections may be decoded at once: all, or fewer to limit the memory.
func (m *Image) Parallel() int {
	if d, ok := m.decoder.(interface{ parallel() int }); ok {
		return d.parallel()
	}
	return len(m.Sections())
}

// Decode decodes all of section i and sends its pieces in ascending order. If want is not nil, it
// sends only bytes in these spans, which ascend and do not overlap. It decodes and verifies all
// other bytes, but does not read them in a plain image. Goroutines may decode other sections. The
// sink owns the pieces, even if it returns an error, which ends the decoding.
func (m *Image) Decode(ctx context.Context, i int, want []Span, sink func(Piece) error) error {
	to := newCutter(ctx, m.decoder.sections()[i], want, sink)
	defer to.freePiece()
	err := m.decoder.decodeSection(i, to)
	if err == nil {
		err = to.finishSection()
	}
	switch {
	case err == nil, to.failed != nil:
		return to.failed // the sink's error
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: byte %d of the image: %w", m.file.name, to.off, explainEOF(m.file.name, err))
}

// CheckUnchanged returns an error if the file's size changed while the sections were decoded.
func (m *Image) CheckUnchanged() error {
	info, err := m.file.Stat()
	if err == nil && info.Size() != m.file.sizeBytes {
		err = errChanged
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", m.file.name, err)
	}
	return err
}

// explainEOF replaces an early end of the file by an error with advice. Other errors stay. An error
// that wraps ErrChanged becomes ErrChanged.
func explainEOF(name string, err error) error {
	if errors.Is(err, sealed.ErrChanged) {
		return sealed.ErrChanged
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the file is cut off\nnext: ls -l %s  # then fetch or build it again", plaintext.Quote(name))
	}
	return err
}

var errDamaged = errors.New("the file is damaged; fetch or build it again")

// damagedError returns errDamaged with err, if any. An early end of the file keeps its own error.
func damagedError(err error) error {
	switch {
	case err == nil:
		return errDamaged
	case errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	return fmt.Errorf("%w (%w)", errDamaged, err)
}
