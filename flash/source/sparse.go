package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"slipway/flash/source/crc"
)

// Android's sparse form: chunks that are stored, that repeat four bytes, or that do not
// matter, which are zeros here.
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

// sparseHead is what a sparse image says of itself.
type sparseHead struct {
	lenBytes, chunkLenBytes int64 // of the headers, which may be longer than ours
	blockBytes, blocks      int64
	chunks                  int64
	sum                     uint64 // of the whole image, 0 where it does not say
}

func parseSparse(p []byte) (sparseHead, error) {
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
	at   int64 // of what is stored, in the file
	off  int64 // in the image
	len  int64 // in the image
	fill [4]byte
}

// parse reads the header of a chunk, and says how many bytes follow it.
func (h sparseHead) parse(p []byte) (sparseChunk, int64, error) {
	c := sparseChunk{kind: int(binary.LittleEndian.Uint16(p)), len: int64(binary.LittleEndian.Uint32(p[4:])) * h.blockBytes}
	follow := int64(binary.LittleEndian.Uint32(p[8:])) - h.chunkLenBytes
	want := map[int]int64{storedChunk: c.len, fillChunk: 4, skipChunk: 0, sumChunk: 4}
	if n, known := want[c.kind]; !known || n != follow || c.kind == sumChunk && c.len != 0 {
		return c, 0, errDamaged
	}
	return c, follow, nil
}

var partOfSeveral = regexp.MustCompile(`(?i)sparsechunk|\.\d+$`)

// refusePart is about files that hold one part of an image each and say of the rest
// that it does not matter.
func refusePart(name string) error {
	base := strings.TrimSuffix(filepath.Base(name), ".img")
	if partOfSeveral.MatchString(base) {
		return errors.New("by its name it is one of several parts of a sparse image; join them first: simg2img PART... IMAGE")
	}
	return nil
}

// errParts is what an image means whose chunks make less than it.
var errParts = errors.New("its chunks are not as much as it says; it is damaged, or one of several parts: simg2img joins them")

// sparse is one in a file of its own, any part of which can be read by itself.
type sparse struct {
	packed
	head   sparseHead
	chunks []sparseChunk
	parts  []Section
}

func openSparse(f packed) (decoder, error) {
	if err := refusePart(f.name); err != nil {
		return nil, err
	}
	p := make([]byte, sparseHeadBytes)
	if _, err := f.ReadAt(p, 0); err != nil {
		return nil, whole(err)
	}
	s := &sparse{packed: f}
	var err error
	if s.head, err = parseSparse(p); err != nil {
		return nil, err
	}
	summed, err := s.walk()
	if err != nil {
		return nil, err
	}
	if summed || s.head.sum != 0 {
		// A checksum of all before it is only found by reading all before it.
		return &inside{outer: wholeFile{f}, size: s.head.sizeBytes()}, nil
	}
	s.parts = partsOf(s.head.sizeBytes())
	return s, nil
}

// walk finds the chunks, and says whether one of them is a checksum.
func (s *sparse) walk() (summed bool, err error) {
	at, off := s.head.lenBytes, int64(0)
	look := &window{file: s.packed}
	for range s.head.chunks {
		p, err := look.at(at, sparseChunkBytes)
		if err != nil {
			return false, err
		}
		if len(p) < sparseChunkBytes {
			return false, io.ErrUnexpectedEOF
		}
		c, follow, err := s.head.parse(p)
		if err != nil {
			return false, fmt.Errorf("the chunk at byte %d of the file: %w", at, err)
		}
		c.at, c.off = at+s.head.chunkLenBytes, off
		if c.kind == fillChunk {
			if _, err := s.ReadAt(c.fill[:], c.at); err != nil {
				return false, whole(err)
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
	case at > s.packed.sizeBytes:
		return false, io.ErrUnexpectedEOF
	case at < s.packed.sizeBytes:
		return false, fmt.Errorf("something else follows the image at byte %d of the file; fetch or build it again", at)
	case off != s.head.sizeBytes():
		return false, errParts
	}
	return summed, nil
}

func (s *sparse) unpackedBytes() int64 { return s.head.sizeBytes() }
func (s *sparse) sections() []Section  { return s.parts }
func (s *sparse) finish() error        { return unchanged(s.packed) }
func (s *sparse) close()               {}

func (s *sparse) decode(i int, to *cutter) error {
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
			err = to.fill(c.fill, n)
		}
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}

// unsparse takes a sparse image that comes as a stream.
type unsparse struct {
	to      *cutter
	head    sparseHead
	begun   bool   // the header is known
	kept    []byte // of a header, until it is whole
	need    int64  // how many bytes kept is to have
	skip    int64  // of a header that is longer than ours
	chunk   sparseChunk
	left    int64  // of a stored chunk
	done    int64  // chunks
	sum     uint64 // of all so far
	partial uint64 // the same without what does not matter, as some programs write it
}

func newUnsparse(to *cutter) *unsparse { return &unsparse{to: to, need: sparseHeadBytes} }

func (u *unsparse) ended() bool { return u.begun && u.done == u.head.chunks && u.skip == 0 }

// zeros is write for n zeros.
func (u *unsparse) zeros(n int64) error {
	for n > 0 {
		k := min(n, int64(len(manyZeros)))
		if u.left > 0 && u.skip == 0 {
			k = min(n, u.left)
			if err := u.to.skipZeros(k); err != nil {
				return err
			}
			if err := u.add(nil, k); err != nil {
				return err
			}
			u.took(k)
		} else if err := u.write(manyZeros[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (u *unsparse) write(p []byte) error {
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
			if err := u.add(p[:n], n); err != nil {
				return err
			}
			u.took(n)
		case u.ended():
			return errors.New("something else follows the image; fetch or build the file again")
		default:
			n = min(u.need-int64(len(u.kept)), most)
			u.kept = append(u.kept, p[:n]...)
			if int64(len(u.kept)) == u.need {
				if err := u.step(); err != nil {
					return err
				}
			}
		}
		p = p[n:]
	}
	return nil
}

func (u *unsparse) took(n int64) {
	if u.left -= n; u.left == 0 {
		u.next()
	}
}

func (u *unsparse) next() { u.done, u.kept, u.need = u.done+1, u.kept[:0], sparseChunkBytes }

// step takes a header, or what follows that of a fill or a checksum.
func (u *unsparse) step() (err error) {
	p := u.kept
	switch {
	case !u.begun:
		if string(p[:4]) != sparseMagic {
			return errDamaged
		}
		u.head, err = parseSparse(p)
		u.begun, u.skip = true, u.head.lenBytes-sparseHeadBytes
		u.kept, u.need = p[:0], sparseChunkBytes
		return err
	case u.need == sparseChunkBytes:
		return u.begin(p)
	case u.chunk.kind == fillChunk:
		copy(u.chunk.fill[:], p[sparseChunkBytes:])
		if err := u.to.fill(u.chunk.fill, u.chunk.len); err != nil {
			return err
		}
		if err := u.add(bytes.Repeat(u.chunk.fill[:], 4<<10), u.chunk.len); err != nil {
			return err
		}
	default:
		if sum := uint64(binary.LittleEndian.Uint32(p[sparseChunkBytes:])); sum != u.sum && sum != u.partial {
			return errDamaged
		}
	}
	u.next()
	return nil
}

func (u *unsparse) begin(p []byte) error {
	c, follow, err := u.head.parse(p)
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
		if err := u.add(nil, c.len); err != nil {
			return err
		}
		u.partial = partial
	}
	u.next()
	return nil
}

// add counts n bytes in the checksums: p again and again, or zeros.
func (u *unsparse) add(p []byte, n int64) error {
	count := func(sum uint64, n int64) uint64 { return crc.IEEE.Update(sum, p[:n]) }
	most := int64(len(p))
	if p == nil {
		count, most = crc.IEEE.Zeros, n
	}
	for n > 0 {
		if err := context.Cause(u.to.ctx); err != nil {
			return err // a few bytes of a file may stand for many
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

// finish proves that nothing is missing.
func (u *unsparse) finish() error {
	switch {
	case !u.ended():
		return io.ErrUnexpectedEOF
	case u.to.off != u.head.sizeBytes():
		return errParts
	case u.head.sum != 0 && u.head.sum != u.sum && u.head.sum != u.partial:
		return errDamaged
	}
	return nil
}
