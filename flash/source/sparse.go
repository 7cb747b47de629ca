package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sort"
	"strings"

	"slipway/flash/source/crc"
	"slipway/layers/lazy"
)

// Android's sparse form has chunks that are stored, that repeat four bytes, or that do
// not matter. The last are zeros here.
const (
	sparseMagic      = "\x3a\xff\x26\xed"
	sparseHeadBytes  = 28
	sparseChunkBytes = 12
	maxSparseChunks  = 1 << 18
	maxSparseBlock   = 64 << 20
)

const (
	storedChunk = 0xcac1 + iota
	fillChunk
	skipChunk
	sumChunk
)

// sparseHead is the header of a sparse image.
type sparseHead struct {
	lenBytes, chunkLenBytes int64 // of the headers, which may be longer than the known fields
	blockBytes, blocks      int64
	chunks                  int64
	sum                     uint64 // of the whole image; 0: none
}

func parseSparseHead(p []byte) (sparseHead, error) {
	h := sparseHead{
		lenBytes: int64(binary.LittleEndian.Uint16(p[8:])), chunkLenBytes: int64(binary.LittleEndian.Uint16(p[10:])),
		blockBytes: int64(binary.LittleEndian.Uint32(p[12:])), blocks: int64(binary.LittleEndian.Uint32(p[16:])),
		chunks: int64(binary.LittleEndian.Uint32(p[20:])), sum: uint64(binary.LittleEndian.Uint32(p[24:])),
	}
	switch major := binary.LittleEndian.Uint16(p[4:]); {
	case major != 1:
		return h, fmt.Errorf("it is a sparse image of version %d; version 1 is read: unpack it with simg2img first", major)
	case h.lenBytes < sparseHeadBytes || h.chunkLenBytes < sparseChunkBytes,
		h.blockBytes == 0 || h.blockBytes%4 != 0 || h.blockBytes > maxSparseBlock, h.blocks*h.blockBytes > maxImageBytes:
		return h, errDamaged
	case h.chunks > maxSparseChunks:
		return h, fmt.Errorf("it has %d chunks; at most %d are taken: unpack it with simg2img first", h.chunks, maxSparseChunks)
	}
	return h, nil
}

func (h sparseHead) sizeBytes() int64 { return h.blocks * h.blockBytes }

// sparseChunk is a part of a sparse image.
type sparseChunk struct {
	kind int
	at   int64 // offset of the stored data in the file
	off  int64 // in the image
	len  int64 // in the image
	fill [4]byte
}

// parseChunk reads the header of a chunk, and returns how many bytes follow it.
func (h sparseHead) parseChunk(p []byte) (sparseChunk, int64, error) {
	c := sparseChunk{kind: int(binary.LittleEndian.Uint16(p)), len: int64(binary.LittleEndian.Uint32(p[4:])) * h.blockBytes}
	follow := int64(binary.LittleEndian.Uint32(p[8:])) - h.chunkLenBytes
	want := map[int]int64{storedChunk: c.len, fillChunk: 4, skipChunk: 0, sumChunk: 4}
	if n, known := want[c.kind]; !known || n != follow || c.kind == sumChunk && c.len != 0 {
		return c, 0, errDamaged
	}
	return c, follow, nil
}

var partOfSeveral = lazy.Regexp(`(?i)sparsechunk|\.\d+$`)

// refusePart refuses a file that holds one part of an image. Such files mark the rest
// as content that does not matter.
func refusePart(name string) error {
	base := strings.TrimSuffix(filepath.Base(name), ".img")
	if partOfSeveral().MatchString(base) {
		return errors.New("by its name it is one of several parts of a sparse image; join them first: simg2img PART... IMAGE")
	}
	return nil
}

// errParts means that the chunks are smaller than the image.
var errParts = errors.New("its chunks are not as much as it says; it is damaged, or one of several parts: simg2img joins them")

// sparse is a sparse image in its own file, any part of which can be read by itself.
type sparse struct {
	packedFile
	head   sparseHead
	chunks []sparseChunk
	parts  []Section
}

func openSparse(f packedFile) (decoder, error) {
	if err := refusePart(f.name); err != nil {
		return nil, err
	}
	p := make([]byte, sparseHeadBytes)
	if _, err := f.ReadAt(p, 0); err != nil {
		return nil, unexpectedEOF(err)
	}
	s := &sparse{packedFile: f}
	var err error
	if s.head, err = parseSparseHead(p); err != nil {
		return nil, err
	}
	summed, err := s.walkChunks()
	if err != nil {
		return nil, err
	}
	if summed || s.head.sum != 0 {
		// A checksum covers everything before it, so the image must be read in order.
		return &sparseInside{outer: wholeFile{f}, size: s.head.sizeBytes()}, nil
	}
	s.parts = splitSections(s.head.sizeBytes())
	return s, nil
}

// walkChunks finds the chunks, and reports whether one of them is a checksum.
func (s *sparse) walkChunks() (summed bool, err error) {
	at, off := s.head.lenBytes, int64(0)
	look := &fileWindow{file: s.packedFile}
	for range s.head.chunks {
		p, err := look.bytesAt(at, sparseChunkBytes)
		if err != nil {
			return false, err
		}
		if len(p) < sparseChunkBytes {
			return false, io.ErrUnexpectedEOF
		}
		c, follow, err := s.head.parseChunk(p)
		if err != nil {
			return false, fmt.Errorf("the chunk at byte %d of the file: %w", at, err)
		}
		c.at, c.off = at+s.head.chunkLenBytes, off
		if c.kind == fillChunk {
			if _, err := s.ReadAt(c.fill[:], c.at); err != nil {
				return false, unexpectedEOF(err)
			}
		}
		summed = summed || c.kind == sumChunk
		s.chunks = append(s.chunks, c)
		at, off = c.at+follow, off+c.len
		if off > s.head.sizeBytes() {
			return false, errDamaged
		}
	}
	switch {
	case at > s.packedFile.sizeBytes:
		return false, io.ErrUnexpectedEOF
	case at < s.packedFile.sizeBytes:
		return false, fmt.Errorf("something else follows the image at byte %d of the file; fetch or build it again", at)
	case off != s.head.sizeBytes():
		return false, errParts
	}
	return summed, nil
}

func (s *sparse) unpackedBytes() int64 { return s.head.sizeBytes() }
func (s *sparse) sections() []Section  { return s.parts }
func (s *sparse) checkRest() error     { return checkUnchanged(s.packedFile) }
func (s *sparse) close()               {}

func (s *sparse) decodeSection(i int, to *cutter) error {
	off, end := s.parts[i].Off, s.parts[i].Off+s.parts[i].Len
	first := sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i].off+s.chunks[i].len > off })
	for _, c := range s.chunks[first:] {
		if off >= end {
			break
		}
		n := min(c.off+c.len, end) - off
		var err error
		switch {
		case c.kind == storedChunk:
			err = to.readFrom(s.File, c.at+off-c.off, n)
		default:
			err = to.fillPattern(c.fill, n)
		}
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}

// sparseStream decodes a sparse image that comes as a stream.
type sparseStream struct {
	to      *cutter
	head    sparseHead
	begun   bool   // the header was parsed
	kept    []byte // the header so far
	need    int64  // the length of the header
	skip    int64  // rest of a longer header
	chunk   sparseChunk
	left    int64  // of a stored chunk
	done    int64  // chunks
	sum     uint64 // of all so far
	partial uint64 // the same without skipped chunks, as some programs compute it
}

func newSparseStream(to *cutter) *sparseStream { return &sparseStream{to: to, need: sparseHeadBytes} }

func (u *sparseStream) isComplete() bool { return u.begun && u.done == u.head.chunks && u.skip == 0 }

// writeZeros is write for n zeros.
func (u *sparseStream) writeZeros(n int64) error {
	for n > 0 {
		k := min(n, int64(len(manyZeros)))
		if u.left > 0 && u.skip == 0 {
			k = min(n, u.left)
			if err := u.to.skipZeros(k); err != nil {
				return err
			}
			if err := u.addSum(nil, k); err != nil {
				return err
			}
			u.countStored(k)
		} else if err := u.write(manyZeros[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (u *sparseStream) write(p []byte) error {
	for len(p) > 0 {
		var n int64
		switch most := int64(len(p)); {
		case u.skip > 0:
			n = min(u.skip, most)
			u.skip -= n
		case u.left > 0:
			n = min(u.left, most)
			if _, err := u.to.Write(p[:n]); err != nil {
				return err
			}
			if err := u.addSum(p[:n], n); err != nil {
				return err
			}
			u.countStored(n)
		case u.isComplete():
			return errors.New("something else follows the image; fetch or build the file again")
		default:
			n = min(u.need-int64(len(u.kept)), most)
			u.kept = append(u.kept, p[:n]...)
			if int64(len(u.kept)) == u.need {
				if err := u.parseHeader(); err != nil {
					return err
				}
			}
		}
		p = p[n:]
	}
	return nil
}

func (u *sparseStream) countStored(n int64) {
	if u.left -= n; u.left == 0 {
		u.nextChunk()
	}
}

func (u *sparseStream) nextChunk() { u.done, u.kept, u.need = u.done+1, u.kept[:0], sparseChunkBytes }

// parseHeader parses a header, or the data after that of a fill or a checksum.
func (u *sparseStream) parseHeader() (err error) {
	p := u.kept
	switch {
	case !u.begun:
		if string(p[:4]) != sparseMagic {
			return errDamaged
		}
		u.head, err = parseSparseHead(p)
		u.begun, u.skip = true, u.head.lenBytes-sparseHeadBytes
		u.kept, u.need = p[:0], sparseChunkBytes
		return err
	case u.need == sparseChunkBytes:
		return u.beginChunk(p)
	case u.chunk.kind == fillChunk:
		copy(u.chunk.fill[:], p[sparseChunkBytes:])
		if err := u.to.fillPattern(u.chunk.fill, u.chunk.len); err != nil {
			return err
		}
		if err := u.addSum(bytes.Repeat(u.chunk.fill[:], 4<<10), u.chunk.len); err != nil {
			return err
		}
	default:
		if sum := uint64(binary.LittleEndian.Uint32(p[sparseChunkBytes:])); sum != u.sum && sum != u.partial {
			return errDamaged
		}
	}
	u.nextChunk()
	return nil
}

func (u *sparseStream) beginChunk(p []byte) error {
	c, follow, err := u.head.parseChunk(p)
	if err != nil {
		return err
	}
	c.off = u.to.off
	if c.off+c.len > u.head.sizeBytes() {
		return errDamaged
	}
	u.chunk, u.skip = c, u.head.chunkLenBytes-sparseChunkBytes
	switch {
	case c.kind == fillChunk || c.kind == sumChunk:
		u.need = sparseChunkBytes + follow
		return nil
	case c.kind == storedChunk && c.len > 0:
		u.left = c.len
		return nil
	case c.kind == skipChunk:
		if err := u.to.skipZeros(c.len); err != nil {
			return err
		}
		partial := u.partial
		if err := u.addSum(nil, c.len); err != nil {
			return err
		}
		u.partial = partial
	}
	u.nextChunk()
	return nil
}

// addSum adds n bytes to the checksums: p repeatedly, or zeros.
func (u *sparseStream) addSum(p []byte, n int64) error {
	count := func(sum uint64, n int64) uint64 { return crc.IEEE.Update(sum, p[:n]) }
	most := int64(len(p))
	if p == nil {
		count, most = crc.IEEE.Zeros, n
	}
	for n > 0 {
		if err := context.Cause(u.to.ctx); err != nil {
			return err // a few bytes of the file may expand to many
		}
		k, same := min(n, most), u.sum == u.partial
		u.sum = count(u.sum, k)
		if same {
			u.partial = u.sum
		} else {
			u.partial = count(u.partial, k)
		}
		n -= k
	}
	return nil
}

// checkEnd refuses an image that is incomplete or fails its checksum.
func (u *sparseStream) checkEnd() error {
	switch {
	case !u.isComplete():
		return io.ErrUnexpectedEOF
	case u.to.off != u.head.sizeBytes():
		return errParts
	case u.head.sum != 0 && u.head.sum != u.sum && u.head.sum != u.partial:
		return errDamaged
	}
	return nil
}
