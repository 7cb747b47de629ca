// Package lzma2 decodes xz files block by block, so that several cores can work on one
// file. It reads the index first, which lists the blocks.
package lzma2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
)

const (
	// MaxDictionary is the most that a block may ask for: that of "xz -9".
	MaxDictionary = 64 << 20

	maxBlocks     = 1 << 18
	maxStreams    = 1 << 14
	maxIndexBytes = 16 << 20
	maxImageBytes = 1 << 50 // keeps sums of sizes far from overflow
	headerBytes   = 12      // of a stream; its footer has as many
	maxHeader     = 1024    // of a block
)

var (
	headerMagic = []byte("\xfd7zXZ\x00")
	footerMagic = []byte("YZ")
)

// File is an xz file with its index. Its blocks can be decoded.
type File struct {
	src    io.ReaderAt
	Blocks []Block // ascending, and together the whole image
	spare  chan *workspace
}

// Block is a part of a file that can be decoded by itself.
type Block struct {
	Off, Len   int64 // in the image
	Dictionary int   // memory that decoding takes

	at     int64 // in the file
	size   int64 // header, data and check, without the padding
	header int
	check  byte
}

// corruptError is the error of damaged content.
func corruptError(format string, args ...any) error {
	return fmt.Errorf("the file is damaged: %w; fetch or build it again", fmt.Errorf(format, args...))
}

// Open reads each stream's index, the last stream first, and all block headers. It refuses unknown
// kinds of blocks, and more than maxBlocks or maxStreams.
func Open(src io.ReaderAt, size int64) (*File, error) {
	f := &File{src: src, spare: make(chan *workspace, maxSpare)}
	streams := 0
	for end := size; end > 0; {
		start, blocks, err := f.readStream(end, size)
		if err != nil {
			return nil, err
		}
		slices.Reverse(blocks)
		f.Blocks = append(f.Blocks, blocks...)
		if end = start; len(f.Blocks) > maxBlocks {
			return nil, tooManyBlocks(len(f.Blocks))
		}
		if streams++; streams > maxStreams {
			return nil, fmt.Errorf("it has %d streams or more, and %d is the most that is taken: pack it again with xz -6 -T0", streams, maxStreams)
		}
	}
	slices.Reverse(f.Blocks)
	off := int64(0)
	for i := range f.Blocks {
		b := &f.Blocks[i]
		b.Off = off
		if off += b.Len; off > maxImageBytes {
			return nil, fmt.Errorf("it unpacks to more than %d TiB, more than any disk has", int64(maxImageBytes)>>40)
		}
		if err := f.readBlockHeader(b); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func tooManyBlocks(n int) error {
	return fmt.Errorf("it has %d blocks or more, and %d is the most that is taken: pack it again with xz -6 -T0", n, maxBlocks)
}

// readAt reads n bytes that the file must have.
func (f *File) readAt(at int64, n int) ([]byte, error) {
	p := make([]byte, n)
	got, err := f.src.ReadAt(p, at)
	if got == n {
		err = nil
	}
	return p, err
}

// readStream reads the index and header of the stream that ends at end, or before padding that ends
// there. It returns the stream's start and its blocks. size is the file's, for errors.
func (f *File) readStream(end, size int64) (start int64, blocks []Block, err error) {
	if end, err = f.skipPadding(end); err != nil {
		return 0, nil, err
	}
	if end < 2*headerBytes {
		return 0, nil, cutOffError(end, size)
	}
	foot, err := f.readAt(end-headerBytes, headerBytes)
	if err != nil {
		return 0, nil, err
	}
	if !bytes.Equal(foot[10:], footerMagic) {
		return 0, nil, cutOffError(end, size)
	}
	if binary.LittleEndian.Uint32(foot) != crc32.ChecksumIEEE(foot[4:10]) {
		return 0, nil, corruptError("what ends a stream at %d does not match its checksum", end)
	}
	indexBytes := (int64(binary.LittleEndian.Uint32(foot[4:])) + 1) * 4
	at := end - headerBytes - indexBytes
	switch {
	case at < headerBytes:
		return 0, nil, corruptError("the stream that ends at %d has an index of %d bytes", end, indexBytes)
	case indexBytes > maxIndexBytes:
		return 0, nil, tooManyBlocks(int(indexBytes / 18))
	}
	if blocks, err = f.readIndex(at, int(indexBytes)); err != nil {
		return 0, nil, err
	}
	start, err = f.setOffsets(blocks, at)
	if err == nil {
		err = f.readStreamHeader(start, foot[8:10], blocks)
	}
	return start, blocks, err
}

// cutOffError returns the error for a file that has no stream's footer at end.
func cutOffError(end, size int64) error {
	if end == size {
		return errors.New("the file is cut off, or something follows what was packed; fetch or build it again")
	}
	return corruptError("no stream ends at %d", end)
}

// skipPadding returns the offset before the zeros that end at end, whose number 4 must divide.
func (f *File) skipPadding(end int64) (int64, error) {
	from := end
	for end > 0 {
		n := min(end, 64<<10)
		p, err := f.readAt(end-n, int(n))
		if err != nil {
			return 0, err
		}
		kept := len(bytes.TrimRight(p, "\x00"))
		end -= n - int64(kept)
		if kept > 0 {
			break
		}
	}
	// A footer ends with "YZ", never with zeros.
	if (from-end)%4 != 0 {
		return 0, corruptError("%d zeros before %d, which is no multiple of four", from-end, from)
	}
	return end, nil
}

// readIndex reads the sizes of a stream's blocks from its index, and verifies the index's checksum.
func (f *File) readIndex(at int64, n int) ([]Block, error) {
	p, err := f.readAt(at, n)
	if err != nil {
		return nil, err
	}
	body, sum := p[:n-4], binary.LittleEndian.Uint32(p[n-4:])
	r := fieldReader{p: body}
	if r.nextByte() != 0 || crc32.ChecksumIEEE(body) != sum {
		return nil, corruptError("the index at %d does not match its checksum", at)
	}
	count := r.nextNumber()
	if count > uint64(len(body)/2) {
		return nil, corruptError("the index at %d has %d blocks in %d bytes", at, count, n)
	}
	if count > maxBlocks {
		return nil, tooManyBlocks(int(count))
	}
	blocks := make([]Block, count)
	for i := range blocks {
		size, unpacked := r.nextNumber(), r.nextNumber()
		if size < 5 || size > maxImageBytes || unpacked > maxImageBytes {
			return nil, corruptError("block %d of the index at %d has %d bytes for %d", i+1, at, size, unpacked)
		}
		blocks[i].size, blocks[i].Len = int64(size), int64(unpacked)
	}
	if !r.onlyZeros(3) {
		return nil, corruptError("the index at %d does not end with its last block", at)
	}
	return blocks, nil
}

// setOffsets sets the offsets of blocks that end at end, and returns where the stream begins.
func (f *File) setOffsets(blocks []Block, end int64) (int64, error) {
	at := end
	for i := len(blocks) - 1; i >= 0; i-- {
		if at -= (blocks[i].size + 3) &^ 3; at < headerBytes {
			return 0, corruptError("the index at %d has more than the file", end)
		}
		blocks[i].at = at
	}
	return at - headerBytes, nil
}

// readStreamHeader compares a stream's header with the footer's flags, and sets the blocks' check.
func (f *File) readStreamHeader(at int64, flags []byte, blocks []Block) error {
	p, err := f.readAt(at, headerBytes)
	if err != nil {
		return err
	}
	switch {
	case !bytes.Equal(p[:6], headerMagic):
		return corruptError("no stream begins at %d", at)
	case crc32.ChecksumIEEE(p[6:8]) != binary.LittleEndian.Uint32(p[8:]):
		return corruptError("the stream's header at %d does not match its checksum", at)
	case !bytes.Equal(p[6:8], flags):
		return corruptError("the stream at %d begins as another kind than it ends", at)
	case flags[0] != 0 || checks[flags[1]] == nil:
		return fmt.Errorf("the stream at %d has checks of a kind that is not known (%#x): pack it again with xz -6 -T0", at, flags)
	}
	for i := range blocks {
		blocks[i].check = flags[1]
	}
	return nil
}

// readBlockHeader verifies a block's header and its indexed sizes, and sets header and Dictionary.
func (f *File) readBlockHeader(b *Block) error {
	p, err := f.readAt(b.at, int(min(b.size, maxHeader)))
	if err != nil {
		return err
	}
	b.header = (int(p[0]) + 1) * 4
	if p[0] == 0 || b.header >= len(p) {
		return corruptError("no block begins at %d", b.at)
	}
	p = p[:b.header]
	body, sum := p[:b.header-4], binary.LittleEndian.Uint32(p[b.header-4:])
	if crc32.ChecksumIEEE(body) != sum {
		return corruptError("the block's header at %d does not match its checksum", b.at)
	}
	if b.compressedBytes() < 1 {
		return corruptError("the block at %d has %d bytes", b.at, b.size)
	}
	r := fieldReader{p: body[1:]}
	flags := r.nextByte()
	if flags&0x3c != 0 {
		return fmt.Errorf("the block at %d is packed in a way that is not known (flags %#x): pack it again with xz -6 -T0", b.at, flags)
	}
	if flags&0x40 != 0 && r.nextNumber() != uint64(b.compressedBytes()) || flags&0x80 != 0 && r.nextNumber() != uint64(b.Len) {
		return corruptError("the block at %d has other sizes than in the index", b.at)
	}
	if err := b.parseFilters(&r, int(flags&3)+1); err != nil {
		return err
	}
	if !r.onlyZeros(len(r.p)) {
		return corruptError("the block's header at %d has more than it says", b.at)
	}
	return nil
}

// compressedBytes returns how many bytes of LZMA2 the block has.
func (b *Block) compressedBytes() int64 {
	return b.size - int64(b.header) - int64(checks[b.check]().checkBytes())
}

// fieldReader parses headers and indexes. Missing bytes read as zero, and set bad.
type fieldReader struct {
	p   []byte
	bad bool
}

// nextBytes removes and returns n bytes. If there are fewer, it sets bad and returns nil.
func (r *fieldReader) nextBytes(n uint64) []byte {
	if n > uint64(len(r.p)) {
		r.bad, r.p = true, nil
		return nil
	}
	p := r.p[:n]
	r.p = r.p[n:]
	return p
}

// nextByte removes and returns a byte. If there is none, it sets bad and returns 0.
func (r *fieldReader) nextByte() byte {
	if p := r.nextBytes(1); p != nil {
		return p[0]
	}
	return 0
}

// nextNumber reads a number of up to 63 bits, seven in each byte. It sets bad for other forms.
func (r *fieldReader) nextNumber() uint64 {
	v := uint64(0)
	for i := range 9 {
		b := r.nextByte()
		if b == 0 && i > 0 {
			break // not the shortest form, or no more bytes
		}
		if v |= uint64(b&0x7f) << (7 * i); b < 0x80 {
			return v
		}
	}
	r.bad = true
	return 0
}

// onlyZeros reports whether at most n bytes are left, all zero, and none was missing before.
func (r *fieldReader) onlyZeros(n int) bool {
	return !r.bad && len(r.p) <= n && len(bytes.Trim(r.p, "\x00")) == 0
}
