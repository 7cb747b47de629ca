package source

import (
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Limits of a file. A window is memory, which the decoder holds up to twice.
const (
	maxWindowBytes = 64 << 20
	maxBlockBytes  = 128 << 10 // the format's own
)

const (
	frameMagic     = "\x28\xb5\x2f\xfd"
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

// parseFrameHeader parses the frame's header at the start of p. It refuses a dictionary, a window
// of more than 64 MiB, and a size above that of any image.
func parseFrameHeader(p []byte) (frameHeader, error) {
	var stored zstd.Header
	err := stored.Decode(p)
	switch {
	case errors.Is(err, zstd.ErrMagicMismatch):
		return frameHeader{}, errors.New("there is no frame of zstd, but something else; fetch or build the file again")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return frameHeader{}, err
	case err != nil:
		return frameHeader{}, errDamaged
	case stored.Skippable:
		return frameHeader{lenBytes: stored.HeaderSize + int(stored.SkippableSize), skippable: true}, nil
	case stored.DictionaryID != 0:
		return frameHeader{}, errors.New("it was packed by zstd with a dictionary; unpack it with zstd -d -D DICTIONARY first")
	case stored.FrameContentSize > maxImageBytes:
		return frameHeader{}, fmt.Errorf("a frame claims to unpack to more than %d TiB; fetch or build the file again", int64(maxImageBytes)>>40)
	}
	h := frameHeader{lenBytes: stored.HeaderSize, windowBytes: int64(stored.WindowSize), sizeBytes: -1, sum: stored.HasCheckSum}
	if stored.HasFCS {
		h.sizeBytes = int64(stored.FrameContentSize)
	}
	if stored.SingleSegment {
		h.windowBytes = h.sizeBytes
	}
	err = h.limitWindow()
	return h, err
}

// limitWindow lowers h.windowBytes to the content's size, and refuses more than maxWindowBytes.
func (h *frameHeader) limitWindow() error {
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

// parseBlockHeader parses a header of 3 bytes. An unknown kind, or more than 128 KiB, is an error.
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
