// Package bfb converts BlueField boot streams to and from images, as mlx-mkbfb does. It also makes
// and checks the bf.cfg of a stream. A stream is a sequence of images: a header of 24 bytes,
// little-endian, the image, then zeros up to a multiple of 8. Trailing data may follow (a bf.cfg or
// a root file system), which the installer reads. Package rshim pushes streams.
package bfb

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"slices"
	"strings"

	"slipway/layers/localfile"
)

const (
	magic       = 0x13026642
	headerBytes = 24
	major       = 1
	minor       = 2
)

// Image is one image of a stream, as its header describes it.
type Image struct {
	Name        string `json:"name"` // with its version, as a file of it is called
	About       string `json:"about"`
	ID          uint8  `json:"id"`
	Version     int    `json:"version"` // the hardware version
	NextVersion int    `json:"nextVersion"`
	SizeBytes   int64  `json:"sizeBytes"`
	OffsetBytes int64  `json:"offsetBytes"` // of its data
	CRC32       uint32 `json:"crc32"`       // of its data and the padding
	Following   uint64 `json:"following"`   // bitmap of the ids that follow
	Minor       int    `json:"minor"`       // of the format's version, 1.Minor
}

// Stream is the content of a file.
type Stream struct {
	Images        []Image  `json:"images"`
	StreamBytes   int64    `json:"streamBytes"`
	TrailingBytes int64    `json:"trailingBytes"`   // after the images
	Notes         []string `json:"notes,omitempty"` // unusual, but valid
}

// padSize rounds a size up to the padding of 8 bytes.
func padSize(n int64) int64 { return (n + 7) &^ 7 }

// Read reads all headers of the stream in r, whose size includes trailing data. The versions of one
// image must ascend, and images that a header announces must follow. Only Check verifies checksums.
func Read(r io.ReaderAt, size int64) (Stream, error) {
	var s Stream
	if size < headerBytes {
		return s, fmt.Errorf("%d bytes are too few for a boot stream, whose first header has %d", size, headerBytes)
	}
	for s.StreamBytes < size {
		i, err := readHeader(r, s.StreamBytes, size)
		if errors.Is(err, errNoHeader) && len(s.Images) > 0 {
			break
		}
		if err == nil {
			err = s.checkVersion(i)
		}
		if err != nil {
			return s, fmt.Errorf("header at byte %d: %w", s.StreamBytes, err)
		}
		s.Images = append(s.Images, i)
		s.StreamBytes = i.OffsetBytes + padSize(i.SizeBytes)
	}
	s.TrailingBytes = size - s.StreamBytes
	return s, s.checkAnnounced()
}

var errNoHeader = errors.New("it is not that of an image of a boot stream, which begins with 42 66 02 13")

// readHeader reads the header at offset at. It returns errNoHeader if the magic number is missing,
// and an error if the file is too short for the image.
func readHeader(r io.ReaderAt, at, size int64) (Image, error) {
	var raw [headerBytes]byte
	n, err := r.ReadAt(raw[:min(headerBytes, size-at)], at)
	if err != nil && (!errors.Is(err, io.EOF) || int64(n) < min(headerBytes, size-at)) {
		return Image{}, err
	}
	if n < 4 || binary.LittleEndian.Uint32(raw[:]) != magic {
		return Image{}, errNoHeader
	}
	if n < headerBytes {
		return Image{}, fmt.Errorf("the file ends %d bytes into it; fetch it again", n)
	}
	i, err := parseHeader(raw)
	if err != nil {
		return i, err
	}
	i.OffsetBytes = at + headerBytes
	if have := size - i.OffsetBytes; have < padSize(i.SizeBytes) {
		return i, fmt.Errorf("image %s has %d bytes (%d with padding), and the file only %d more; it was cut off, fetch it again", i.Name, i.SizeBytes, padSize(i.SizeBytes), have)
	}
	return i, nil
}

// parseHeader decodes a header and names a known image. It refuses unknown versions and sizes.
func parseHeader(raw [headerBytes]byte) (Image, error) {
	w0 := binary.LittleEndian.Uint64(raw[0:])
	w1 := binary.LittleEndian.Uint64(raw[8:])
	nibble := func(shift int) int { return int(w0 >> shift & 0xf) }
	i := Image{
		ID: uint8(w0 >> 56), Version: nibble(48), NextVersion: nibble(44), Minor: nibble(36),
		SizeBytes: int64(uint32(w1)), CRC32: uint32(w1 >> 32), Following: binary.LittleEndian.Uint64(raw[16:]),
	}
	switch {
	case nibble(32) != major || i.Minor > minor:
		return i, fmt.Errorf("it is of version %d.%d of the format; %d.0 to %d.%d are known", nibble(32), i.Minor, major, major, minor)
	case nibble(52) != headerBytes/8:
		return i, fmt.Errorf("it says that it has %d bytes; all of this version have %d", nibble(52)*8, headerBytes)
	}
	k, _ := findKind(i.ID)
	i.Name, i.About = k.name, k.about
	if i.Minor >= 2 { // earlier names have no versions
		i.Name += fmt.Sprintf("-v%d", i.Version)
		i.About += fmt.Sprintf(" (version %d)", i.Version)
	}
	return i, nil
}

// checkVersion returns an error if the stream has an image of i's kind and the same or a later
// version. The firmware stops at the first version too new for its hardware: versions must ascend.
func (s Stream) checkVersion(i Image) error {
	for _, earlier := range s.Images {
		if earlier.ID == i.ID && earlier.Version >= i.Version {
			return fmt.Errorf("version %d of image %d follows its version %d; the versions of one image ascend", i.Version, i.ID, earlier.Version)
		}
	}
	return nil
}

// checkAnnounced returns an error if a header announces an image that does not follow. Only this
// detects a file that was cut off between two images. It notes images that no header announces.
func (s *Stream) checkAnnounced() error {
	follows, extra := uint64(0), uint64(0)
	for _, i := range slices.Backward(s.Images) {
		if missing := i.Following &^ follows; missing != 0 {
			return fmt.Errorf("image %s at byte %d announces %s, which does not follow; the file was cut off or damaged, fetch it again", i.Name, i.OffsetBytes-headerBytes, idNames(missing))
		}
		extra |= follows &^ i.Following
		if i.ID < 64 {
			follows |= 1 << i.ID
		}
	}
	if extra != 0 {
		s.Notes = append(s.Notes, "no header before announces "+idNames(extra)+", so the firmware may not look for it")
	}
	return nil
}

// idNames returns the names of the images whose IDs are set in a bitmap, for messages.
func idNames(bitmap uint64) string {
	var names []string
	for ; bitmap != 0; bitmap &= bitmap - 1 {
		k, _ := findKind(uint8(bits.TrailingZeros64(bitmap)))
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

// Check compares each image's CRC-32 with its header. count, if not nil, gets the bytes it reads.
func (s Stream) Check(ctx context.Context, r io.ReaderAt, count func(bytes int64)) error {
	buf := make([]byte, 1<<20)
	for _, i := range s.Images {
		sum := crc32.NewIEEE()
		n := padSize(i.SizeBytes)
		in := localfile.WithContext(ctx, io.NewSectionReader(r, i.OffsetBytes, n), count)
		if got, err := io.CopyBuffer(sum, in, buf); err != nil || got != n {
			return fmt.Errorf("image %s at byte %d: read %d of %d bytes: %w", i.Name, i.OffsetBytes, got, n, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		if got := sum.Sum32(); got != i.CRC32 {
			return fmt.Errorf("image %s at byte %d has CRC-32 %08x, its header says %08x; the file is damaged, fetch it again", i.Name, i.OffsetBytes, got, i.CRC32)
		}
	}
	return nil
}

// List prints a line for each image in the format of mlx-mkbfb -d.
func (s Stream) List(w io.Writer) error {
	for _, i := range s.Images {
		if _, err := fmt.Fprintf(w, "%10d %s\n", i.SizeBytes, i.About); err != nil {
			return err
		}
	}
	return nil
}
