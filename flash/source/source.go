// Package source turns an image file of any form into pieces of the unpacked image:
// packed files, Android's sparse ones, plain ones. It proves the whole file, also
// what a block map leaves out, and takes no more memory than a file's limits allow.
// Where the pieces go is flash's.
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
)

// maxImageBytes keeps every sum of offsets far from overflow.
const maxImageBytes = 1 << 50

// Section is a part of the unpacked image that can be decoded by itself.
type Section struct {
	Off, Len int64 // Len is -1 where only decoding tells; then it is the only section
}

// Span is a part of the unpacked image.
type Span struct {
	Off, Len int64
}

// Image is a file that an image can be unpacked from.
type Image struct {
	name    string
	form    string
	decoder decoder
}

// decoder is what each form is read by.
type decoder interface {
	// unpackedBytes is -1 where only decoding tells.
	unpackedBytes() int64
	sections() []Section
	// decode hands section i to the cutter, and returns an error where any byte of it,
	// wanted or not, is not what it was when it was packed. It is called by several
	// goroutines at once, for different sections.
	decode(i int, to *cutter) error
	// finish proves what is outside of all sections.
	finish() error
	close()
}

// packed is a file as the forms see it.
type packed struct {
	*os.File
	name      string
	sizeBytes int64
}

// form is one way to pack an image. A form is a file, and an entry in forms.
type form struct {
	name  string
	magic func(head []byte) bool
	open  func(f packed) (decoder, error)
	ends  []string // names that promise this form
	plain bool     // it packs images alone
}

// headBytes is what forms are told by: up to the name of the tar format.
const headBytes = 512

// forms are tried in this order; what none of them claims is a plain image.
var forms = []form{
	{name: "zst", magic: isZst, open: openZst, ends: []string{".zst", ".zstd"}},
	{name: "gz", magic: begins("\x1f\x8b\x08"), open: openGz, ends: []string{".gz", ".tgz"}},
	{name: "sparse", magic: begins(sparseMagic), open: openSparse, ends: []string{".simg"}, plain: true},
	{name: "bz2", magic: begins("BZh"), open: openBz2, ends: []string{".bz2"}},
	{name: "zip", magic: begins("PK\x03\x04", zipEnd), open: openZip, ends: []string{".zip"}},
	{name: "xz", magic: begins("\xfd7zXZ\x00"), open: openXz, ends: []string{".xz", ".txz"}},
}

func begins(magic ...string) func([]byte) bool {
	return func(head []byte) bool {
		return slices.ContainsFunc(magic, func(m string) bool { return strings.HasPrefix(string(head), m) })
	}
}

// Open tells by its content what f is. The file stays the caller's, who closes it
// after the image; name is what errors call it by.
func Open(f *os.File, name string) (*Image, error) {
	m, err := open(f, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, cut(err))
	}
	return m, nil
}

func open(f *os.File, name string) (*Image, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s, not a file with an image; copy it into one first", kindOf(info.Mode()))
	}
	if info.Size() == 0 {
		return nil, errors.New("the file is empty; fetch or build it again")
	}
	head := make([]byte, min(headBytes, info.Size()))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, err
	}
	p := packed{File: f, name: name, sizeBytes: info.Size()}
	k := formOf(head)
	if k == nil {
		if err := foreign(head, name); err != nil {
			return nil, err
		}
		return &Image{name: name, form: "raw", decoder: newRaw(p)}, nil
	}
	d, err := k.open(p)
	if err != nil {
		return nil, err
	}
	m := &Image{name: name, form: k.name, decoder: d}
	if !k.plain {
		if m.decoder, err = lookInside(d, k.name, name); err != nil {
			d.close()
			return nil, err
		}
	}
	if special, ok := m.decoder.(interface{ form() string }); ok {
		m.form = special.form()
	}
	return m, nil
}

func formOf(head []byte) *form {
	for i := range forms {
		if forms[i].magic(head) {
			return &forms[i]
		}
	}
	return nil
}

func kindOf(m os.FileMode) string {
	if m.IsDir() {
		return "it is a folder"
	}
	return "it is a device or a pipe"
}

// notImages are files that people take for images, and what to do with them.
var notImages = []struct {
	at          int
	magic, what string
}{
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it and give the image in it"},
	{0, "Rar!\x1a\x07", "a RAR archive; unpack it and give the image in it"},
	{0, "\x04\x22\x4d\x18", "packed by lz4; unpack it with lz4 -d"},
	{0, "\x02\x21\x4c\x18", "packed by lz4, in its legacy form; unpack it with lz4 -d"},
	{0, "\x89LZO\x00\r\n\x1a\n", "packed by lzop; unpack it with lzop -d"},
	{0, "LRZI", "packed by lrzip; unpack it with lrzip -d"},
	{0, "\x1f\x9d", "packed by compress; unpack it with gzip -d"},
	{0, "LZIP", "packed by lzip; unpack it with lzip -d"},
	{0, "\x5d\x00\x00", "packed by lzma; unpack it with xz -d"},
	{0, "QFI\xfb", "a qcow2 disk; make a plain one with qemu-img convert -O raw"},
	{0, "KDMV", "a VMware disk; make a plain one with qemu-img convert -O raw"},
	{0, "COWD", "a VMware disk; make a plain one with qemu-img convert -O raw"},
	{0, "# Disk DescriptorFile", "a VMware disk's description; make a plain disk with qemu-img convert -O raw"},
	{64, "\x7f\x10\xda\xbe", "a VirtualBox disk (VDI); make a plain one with qemu-img convert -O raw"},
	{0, "conectix", "a VHD disk; make a plain one with qemu-img convert -f vpc -O raw"},
	{0, "vhdxfile", "a Hyper-V disk (VHDX); make a plain one with qemu-img convert -O raw"},
	{0, "version https://git-lfs", "a pointer of Git LFS; run git lfs pull where it lies"},
	{0, "<!DOCTYPE", "a web page; the server sent this instead of the image"},
	{0, "<!doctype", "a web page; the server sent this instead of the image"},
	{0, "<html", "a web page; the server sent this instead of the image"},
	{0, "<?xml", "XML; a block map is given beside the image, not as the image"},
	{257, "ustar", "a tar archive; unpack it and give the image in it"},
}

// foreign refuses a file that is no plain image: by its content, or because its name
// promises another form, as of a packed file whose download was something else.
func foreign(head []byte, name string) error {
	if err := notImage(head); err != nil {
		return err
	}
	ending := strings.ToLower(filepath.Ext(name))
	for _, k := range forms {
		if slices.Contains(k.ends, ending) {
			return fmt.Errorf("it is called %s, and its content is not that; fetch it again, or rename it if it is a plain image", ending)
		}
	}
	return nil
}

func notImage(head []byte) error {
	for _, n := range notImages {
		if len(head) > n.at && strings.HasPrefix(string(head[n.at:]), n.magic) {
			return fmt.Errorf("it is %s", n.what)
		}
	}
	return nil
}

// isZst knows frames and the skippable ones that some programs begin with.
func isZst(head []byte) bool {
	return strings.HasPrefix(string(head), frameMagic) || len(head) > 4 && string(head[1:4]) == "\x2a\x4d\x18" && head[0]&0xf0 == 0x50
}

// Form says what the file is: "raw", "gz", "xz", "zst", "framed zst", "bz2", "zip" or
// "sparse"; "sparse in gz" and the like.
func (m *Image) Form() string { return m.form }

// SizeBytes is the unpacked size; -1 where only decoding tells.
func (m *Image) SizeBytes() int64 { return m.decoder.unpackedBytes() }

// Sections are ascending and cover the image.
func (m *Image) Sections() []Section { return m.decoder.sections() }

// Decode decodes section i, all of it, and hands on its pieces in ascending order.
// Where want is not nil, only bytes in these spans, which ascend and do not overlap,
// are handed on; the others are decoded and proved like them, and only a plain image
// is not read there. Decode may be called for several sections at once. The pieces
// are the sink's, also where it returns an error, which ends the decoding.
func (m *Image) Decode(ctx context.Context, i int, want []Span, sink func(Piece) error) error {
	to := newCutter(ctx, m.decoder.sections()[i], want, sink)
	defer to.drop()
	err := m.decoder.decode(i, to)
	if err == nil {
		err = to.whole()
	}
	switch {
	case err == nil, to.failed != nil:
		return to.failed // the sink's own
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: byte %d of the image: %w", m.name, to.off, cut(err))
}

// Finish proves what lies outside of all sections, after they were decoded: that the
// file ends where its content does, and the sums of the whole. A section that was not
// decoded is not proved.
func (m *Image) Finish() error {
	if err := m.decoder.finish(); err != nil {
		return fmt.Errorf("%s: %w", m.name, cut(err))
	}
	return nil
}

// Close frees what Open took; the file stays open.
func (m *Image) Close() { m.decoder.close() }

// cut says what the end of a file in the middle of something means.
func cut(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("the file is cut off; fetch or build it again")
	}
	return err
}

var errDamaged = errors.New("the file is damaged; fetch or build it again")

// damaged is what a decoder's complaint means; nil where only the size is wrong. The
// end of the file where there should be more is a complaint of its own.
func damaged(err error) error {
	switch {
	case err == nil:
		return errDamaged
	case errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	return fmt.Errorf("%w (%w)", errDamaged, err)
}
