// Package bmap turns a raw disk image into a block map: the blocks with data, and their digests.
// Its files are bmap 2.0 with SHA-256, as of Yocto's builds and bmaptool.
package bmap

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// Map is the block map of one image. Blocks outside of its ranges are zero.
type Map struct {
	ImageSize int64
	BlockSize int64
	Ranges    []Range // ascending; they may touch, never overlap
}

// Range is a run of mapped blocks.
type Range struct {
	First, Last int64  // numbers of blocks, both included
	Sum         string // SHA-256 in hex, of the range's bytes up to the image's end
}

// Span returns the offset and length in bytes of a range. The image's last block may be shorter.
func (m Map) Span(r Range) (offset, length int64) {
	offset = r.First * m.BlockSize
	return offset, min((r.Last+1)*m.BlockSize, m.ImageSize) - offset
}

// Mapped returns the number of bytes in all ranges.
func (m Map) Mapped() int64 {
	var n int64
	for _, r := range m.Ranges {
		_, length := m.Span(r)
		n += length
	}
	return n
}

// Holes calls yield with every run of bytes that no range covers.
func (m Map) Holes(yield func(offset, length int64) bool) {
	var end int64
	for _, r := range m.Ranges {
		offset, length := m.Span(r)
		if offset > end && !yield(end, offset-end) {
			return
		}
		end = offset + length
	}
	if end < m.ImageSize {
		yield(end, m.ImageSize-end)
	}
}

func (m Map) blockCount() int64 {
	return (m.ImageSize + m.BlockSize - 1) / m.BlockSize
}

// mappedBlockCount returns the number of blocks in all ranges.
func (m Map) mappedBlockCount() int64 {
	var n int64
	for _, r := range m.Ranges {
		n += r.Last - r.First + 1
	}
	return n
}

// The limits on a map from outside. The largest size keeps every sum of offsets
// far from overflow; the range count keeps a hostile map's memory below 100 MiB.
const (
	maxImageBytes = 1 << 50
	maxBlockBytes = 1 << 20
	minBlockBytes = 512
	maxRanges     = 1 << 19
	otherMarks    = 100 // elements and attributes that are no ranges, and what comments have of both
)

// validate checks the sizes and the ranges of a map, on which all its users rely.
func (m Map) validate() error {
	if m.BlockSize < minBlockBytes || m.BlockSize > maxBlockBytes || m.BlockSize&(m.BlockSize-1) != 0 {
		return fmt.Errorf("block size %d; want a power of two from %d to %d", m.BlockSize, minBlockBytes, maxBlockBytes)
	}
	if m.ImageSize < 0 || m.ImageSize > maxImageBytes {
		return fmt.Errorf("image size %d; want 0 to %d", m.ImageSize, int64(maxImageBytes))
	}
	if len(m.Ranges) > maxRanges {
		return fmt.Errorf("%d ranges; at most %d are taken", len(m.Ranges), maxRanges)
	}
	return m.checkRanges()
}

// checkRanges checks that the ranges ascend inside the image, do not overlap, and have digests.
func (m Map) checkRanges() error {
	next := int64(0)
	for _, r := range m.Ranges {
		if r.First < next || r.Last < r.First || r.Last >= m.blockCount() {
			return fmt.Errorf("range %d-%d is out of order or outside the image's %d blocks", r.First, r.Last, m.blockCount())
		}
		if len(r.Sum) != 2*sha256.Size || strings.Trim(r.Sum, "0123456789abcdef") != "" {
			return fmt.Errorf("range %d-%d: digest %.80q is not a sha256; make the map again with checksums", r.First, r.Last, r.Sum)
		}
		next = r.Last + 1
	}
	return nil
}
