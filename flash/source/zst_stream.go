package source

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// blankBytes is the most that a block has which only says that the zeros go on. zstd
// begins a frame with one, and with several threads each thread's part.
const blankBytes = 64

// stream takes one frame of zstd through the decoder, without the zeros in it.
//
// Runs of zeros, of which most images mostly consist, are blocks of four bytes each.
// Once a run is as long as the frame's window, all that later blocks can refer to is
// zero, and more zeros change nothing: those blocks are left out of what the decoder
// reads. It works in step: when it asks for a block, all before that are written. So
// whatever is left out belongs where the output stands at that moment.
type stream struct {
	in     *bufio.Reader // the frame, behind its header
	header frameHeader
	window int64 // what the decoder believes
	to     *cutter
	sum    *xxhash.Digest // nil: the frame has none

	pending []byte // headers that the decoder reads next
	left    int64  // of the content of a block, after pending
	last    bool   // no block follows
	zeros   int64  // how many the decoder has just got
	known   int64  // the next output of the decoder is that many zeros
	blank   bool   // the next output of the decoder may well be zeros
	before  int64  // zeros before it
	size    int64  // of the output
	err     error  // of the cutter, which the decoder must not wrap
}

func newStream(in *bufio.Reader, h frameHeader, to *cutter) *stream {
	s := &stream{in: in, header: h, to: to}
	s.pending, s.window = plainHeader(h.windowBytes)
	if h.sum {
		s.sum = xxhash.New()
	}
	return s
}

// plainHeader is that of a frame whose size is not known and that has no checksum. It
// rounds the window up to what a header can say in short.
func plainHeader(windowBytes int64) ([]byte, int64) {
	exponent := bits.Len64(uint64(max(windowBytes, maxBlockBytes) - 1))
	return append([]byte(frameMagic), 0, byte(exponent-10)<<3), 1 << exponent
}

// Read is the decoder's input.
func (s *stream) Read(p []byte) (int, error) {
	for {
		switch {
		case s.err != nil:
			return 0, s.err
		case len(s.pending) > 0:
			n := copy(p, s.pending)
			s.pending = s.pending[n:]
			return n, nil
		case s.left > 0:
			n, err := s.in.Read(p[:min(int64(len(p)), s.left)])
			s.left -= int64(n)
			return n, whole(err)
		case s.last:
			return 0, io.EOF
		}
		if err := s.next(); err != nil {
			s.err = err
		}
	}
}

// next reads the header of a block, and leaves out zeros that change nothing.
func (s *stream) next() error {
	var head [4]byte
	if _, err := io.ReadFull(s.in, head[:3]); err != nil {
		return whole(err)
	}
	b, err := parseBlock(head[:])
	if err != nil {
		return err
	}
	s.last, s.known, s.blank = b.last, 0, false
	if b.kind != runBlock {
		s.pending, s.left = append(s.pending, head[:3]...), b.size
		s.before, s.zeros = s.zeros, 0
		s.blank = b.kind == packedBlock && b.size <= blankBytes
		return nil
	}
	if head[3], err = s.in.ReadByte(); err != nil {
		return whole(err)
	}
	switch {
	case head[3] != 0:
		s.zeros = 0
	case s.zeros >= s.window && !b.last:
		return s.skip(b.size)
	default:
		s.zeros, s.known = s.zeros+b.size, b.size
	}
	s.pending = append(s.pending, head[:]...)
	return nil
}

// whole is for reads of what must be there.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write is the decoder's output: one block.
func (s *stream) Write(p []byte) (int, error) {
	switch {
	case s.known == int64(len(p)):
		return len(p), s.skip(s.known)
	case s.blank && zerosOnly(p):
		s.zeros = s.before + int64(len(p))
		return len(p), s.skip(int64(len(p)))
	}
	if s.sum != nil {
		_, _ = s.sum.Write(p)
	}
	s.size += int64(len(p))
	n, err := s.to.Write(p)
	return n, s.keep(err)
}

func zerosOnly(p []byte) bool {
	for len(p) > alignment {
		if !isZero(p[:alignment]) {
			return false
		}
		p = p[alignment:]
	}
	return isZero(p)
}

func (s *stream) skip(n int64) error {
	if s.sum != nil {
		sumZeros(s.sum, n)
	}
	s.size += n
	return s.keep(s.to.skipZeros(n))
}

func (s *stream) keep(err error) error {
	if s.err == nil {
		s.err = err
	}
	return err
}

var manyZeros [64 << 10]byte

func sumZeros(sum *xxhash.Digest, n int64) {
	for n > 0 {
		k := min(n, int64(len(manyZeros)))
		_, _ = sum.Write(manyZeros[:k])
		n -= k
	}
}

// finish proves the frame by its size and its checksum.
func (s *stream) finish() error {
	if !s.last || s.left > 0 {
		return io.ErrUnexpectedEOF
	}
	if s.header.sizeBytes >= 0 && s.size != s.header.sizeBytes {
		return errDamaged
	}
	if s.sum == nil {
		return nil
	}
	var stored [4]byte
	if _, err := io.ReadFull(s.in, stored[:]); err != nil {
		return whole(err)
	}
	if binary.LittleEndian.Uint32(stored[:]) != uint32(s.sum.Sum64()) {
		return errDamaged
	}
	return nil
}
