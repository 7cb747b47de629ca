package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Limits of a file. A window is memory, which the decoder holds up to twice.
const (
	maxWindowBytes = 64 << 20
	maxFrames      = 1 << 18
	maxBlockBytes  = 128 << 10 // the format's own
)

const (
	frameMagic     = "\x28\xb5\x2f\xfd"
	frameMagicLE   = 0xfd2fb528
	skippableMagic = 0x184d2a50 // to 0x184d2a5f
	maxHeaderBytes = 18
)

// frameHeader is the header of a zstd frame.
type frameHeader struct {
	lenBytes    int   // of the header; of a skippable frame its total length
	windowBytes int64 // how far back its blocks can refer
	sizeBytes   int64 // unpacked, -1 if the header does not have it
	sum         bool  // a checksum follows the blocks
	skippable   bool  // without content of the image
}

// parseFrameHeader parses the header at the start of p, and checks the window and size.
func parseFrameHeader(p []byte) (frameHeader, error) {
	if len(p) < 8 {
		return frameHeader{}, io.ErrUnexpectedEOF
	}
	switch magic := binary.LittleEndian.Uint32(p); {
	case magic&^0xf == skippableMagic:
		return frameHeader{lenBytes: 8 + int(binary.LittleEndian.Uint32(p[4:])), skippable: true}, nil
	case magic != frameMagicLE:
		return frameHeader{}, errors.New("there is no frame of zstd, but something else; fetch or build the file again")
	}
	flags := p[4]
	if flags&(1<<3) != 0 {
		return frameHeader{}, errDamaged
	}
	h := frameHeader{lenBytes: 5, sizeBytes: -1, sum: flags&(1<<2) != 0}
	single := flags&(1<<5) != 0
	if !single {
		base := int64(1) << (10 + p[5]>>3)
		h.windowBytes = base + base/8*int64(p[5]&7)
		h.lenBytes++
	}
	idBytes := []int{0, 1, 2, 4}[flags&3]
	sizeBytes := []int{0, 2, 4, 8}[flags>>6]
	if single && sizeBytes == 0 {
		sizeBytes = 1
	}
	if len(p) < h.lenBytes+idBytes+sizeBytes {
		return frameHeader{}, io.ErrUnexpectedEOF
	}
	for _, b := range p[h.lenBytes : h.lenBytes+idBytes] {
		if b != 0 {
			return frameHeader{}, errors.New("it was packed by zstd with a dictionary; unpack it with zstd -d -D DICTIONARY first")
		}
	}
	h.lenBytes += idBytes
	if sizeBytes > 0 {
		h.sizeBytes = parseFrameSize(p[h.lenBytes : h.lenBytes+sizeBytes])
		h.lenBytes += sizeBytes
	}
	if single {
		h.windowBytes = h.sizeBytes
	}
	return h, h.checkSizes()
}

func parseFrameSize(p []byte) int64 {
	switch len(p) {
	case 1:
		return int64(p[0])
	case 2:
		return int64(binary.LittleEndian.Uint16(p)) + 256
	case 4:
		return int64(binary.LittleEndian.Uint32(p))
	}
	return int64(binary.LittleEndian.Uint64(p))
}

func (h *frameHeader) checkSizes() error {
	if h.sizeBytes < -1 || h.sizeBytes > maxImageBytes {
		return fmt.Errorf("a frame claims to unpack to more than %d TiB; fetch or build the file again", int64(maxImageBytes)>>40)
	}
	if h.sizeBytes >= 0 {
		h.windowBytes = min(h.windowBytes, h.sizeBytes)
	}
	if h.windowBytes > maxWindowBytes {
		return fmt.Errorf("it needs a window of %d MiB, and %d MiB are taken at most; pack it without --ultra and --long, or unpack it with zstd -d --long=31 first", h.windowBytes>>20, maxWindowBytes>>20)
	}
	return nil
}

// block is the header of a block inside a frame.
type block struct {
	last bool
	kind int
	size int64 // unpacked of a run, packed of the others
}

const (
	rawBlock = iota
	runBlock // one byte, repeated
	packedBlock
)

func parseBlockHeader(p []byte) (block, error) {
	n := int(p[0]) | int(p[1])<<8 | int(p[2])<<16
	b := block{last: n&1 != 0, kind: n >> 1 & 3, size: int64(n >> 3)}
	if b.kind > packedBlock || b.size > maxBlockBytes {
		return b, errDamaged
	}
	return b, nil
}

// storedBytes returns how many bytes of the file follow a block's header.
func (b block) storedBytes() int64 {
	if b.kind == runBlock {
		return 1
	}
	return b.size
}

func encodeBlockHeader(b block) [3]byte {
	n := int(b.size)<<3 | b.kind<<1
	if b.last {
		n |= 1
	}
	return [3]byte{byte(n), byte(n >> 8), byte(n >> 16)}
}

// isZeros reports whether p, the blocks and checksum of a frame, unpacks to n zeros.
func (h frameHeader) isZeros(p []byte, n int64) bool {
	for last := false; !last; p = p[4:] {
		if len(p) < 4 || p[3] != 0 {
			return false
		}
		b, err := parseBlockHeader(p)
		if err != nil || b.kind != runBlock {
			return false
		}
		n, last = n-b.size, b.last
	}
	return n == 0 && (h.sizeBytes >= 0 || !h.sum) && h.matchesZeros(p)
}

func (h frameHeader) matchesZeros(stored []byte) bool {
	if !h.sum {
		return len(stored) == 0
	}
	return len(stored) == 4 && binary.LittleEndian.Uint32(stored) == sumOfZeros(h.sizeBytes)
}

// zeroSums caches the checksums of zeros of 2^i bytes, which are the holes in Slipway's own files.
var zeroSums [25]struct {
	once sync.Once
	sum  uint32
}

// sumOfZeros returns the checksum of n zeros. It caches that of a power of two.
func sumOfZeros(n int64) uint32 {
	work := func() uint32 {
		sum := xxhash.New()
		sumZeros(sum, n)
		return uint32(sum.Sum64())
	}
	power := bits.Len64(uint64(n)) - 1
	if n <= 0 || n != 1<<power || power >= len(zeroSums) {
		return work()
	}
	s := &zeroSums[power]
	s.once.Do(func() { s.sum = work() })
	return s.sum
}
