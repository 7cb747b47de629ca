package source

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// blankBytes is the most that a block has which only says that the zeros go on. zstd
// begins a frame with one, and with several threads each thread's part.
const blankBytes = 64

// skipBytes is the most zeros that are summed at once, which takes tenths of a second.
const skipBytes = 1 << 30

// stream takes one frame of zstd through the decoder, without the zeros in it.
//
// Runs of zeros, of which most images mostly consist, are blocks of four bytes each.
// Once a run is as long as the frame's window, all that later blocks can refer to is
// zero, and more zeros change nothing: those blocks are left out of what the decoder
// reads. Where they belong in its output is told by counting: each block that it reads
// is one call of Write, unless the block is empty. It reads ahead of what it writes.
type stream struct {
	input
	to   *cutter
	sum  *xxhash.Digest // nil: the frame has none
	size int64          // of the output
}

// input is what the decoder reads.
type input struct {
	ctx    context.Context
	in     *bufio.Reader // the frame, behind its header
	header frameHeader
	window int64 // what the decoder believes

	head    [4]byte
	pending []byte // of head, or before that of the frame: what the decoder reads next
	left    int64  // of the content of a block, after pending
	nothing int64  // zeros that are the content of a block, after pending
	last    bool   // no block follows
	zeros   int64  // at least so many end what the decoder has got
	skipped int64  // zeros that were left out since the last block
	doubts  int    // how many blocks may have been zeros, and were not run blocks

	mu    sync.Mutex
	notes []note // of the blocks that were read and not written yet
	doubt doubt  // the last one, where only zeros followed
	err   error  // what ends both: the decoder must not wrap it
}

// note is what is known of a block before it is unpacked.
type note struct {
	skipped int64 // zeros that belong before it
	zeros   bool
	doubt   int // its number; 0: none
}

// doubt is a block that may turn out to go on with zeros.
type doubt struct {
	number int
	before int64 // zeros before it
	proved int64 // as soon as it was written: the zeros that end with it
}

func newStream(in *bufio.Reader, h frameHeader, to *cutter) *stream {
	s := &stream{input: input{ctx: to.ctx, in: in, header: h}, to: to}
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

func (s *input) Read(p []byte) (int, error) {
	for {
		switch {
		case s.failed() != nil:
			return 0, s.failed()
		case len(s.pending) > 0:
			n := copy(p, s.pending)
			s.pending = s.pending[n:]
			return n, nil
		case s.nothing > 0:
			n := copy(p, manyZeros[:min(s.nothing, int64(len(manyZeros)))])
			s.nothing -= int64(n)
			return n, nil
		case s.left > 0:
			n, err := s.in.Read(p[:min(int64(len(p)), s.left)])
			s.left -= int64(n)
			return n, s.keep(whole(err))
		case s.last:
			return 0, io.EOF
		}
		_ = s.keep(s.next())
	}
}

// next reads the header of a block, and leaves out zeros that change nothing.
func (s *input) next() error {
	if err := context.Cause(s.ctx); err != nil {
		return err // of empty blocks the cutter hears nothing
	}
	var head [3]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return whole(err)
	}
	b, err := parseBlock(head[:])
	if err != nil {
		return err
	}
	s.last = b.last
	switch {
	case b.kind == runBlock:
		return s.nextRun(b)
	case b.kind == packedBlock && b.size <= blankBytes:
		return s.nextTiny(b)
	}
	s.pass(b, b.size > 0, note{})
	s.noZeros(doubt{})
	return nil
}

func (s *input) nextRun(b block) error {
	value, err := s.in.ReadByte()
	if err != nil {
		return whole(err)
	}
	switch {
	case value != 0:
		s.pass(b, b.size > 0, note{})
		s.pending, s.left = append(s.pending, value), 0
		s.noZeros(doubt{})
	case s.endingZeros() >= s.window && !b.last:
		s.skipped += b.size
	default:
		b.kind = rawBlock // the decoder copies zeros faster than it repeats one
		s.pass(b, b.size > 0, note{zeros: true})
		s.left, s.nothing = 0, b.size
		s.zeros += b.size
	}
	return nil
}

// nextTiny finds blocks that are nothing at all; others may go on with zeros.
func (s *input) nextTiny(b block) error {
	content, err := s.in.Peek(int(b.size))
	if err != nil {
		return whole(err)
	}
	if isEmpty(content) {
		s.pass(b, false, note{})
		return nil
	}
	s.doubts++
	before := s.endingZeros()
	s.pass(b, true, note{doubt: s.doubts})
	s.noZeros(doubt{number: s.doubts, before: before})
	return nil
}

// pass gives the decoder a block.
func (s *input) pass(b block, hasOutput bool, about note) {
	head := blockHeader(b)
	s.pending, s.left = append(s.head[:0], head[:]...), b.size
	if !hasOutput {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	about.skipped, s.skipped = s.skipped, 0
	s.notes = append(s.notes, about)
}

// noZeros are known to end what the decoder has got.
func (s *input) noZeros(but doubt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zeros, s.doubt = 0, but
}

// endingZeros is how many zeros end what the decoder has got, as far as that is known.
func (s *input) endingZeros() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zeros += s.doubt.proved
	s.doubt.proved = 0
	return s.zeros
}

// prove says that a block was n zeros.
func (s *input) prove(about note, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if about.doubt > 0 && about.doubt == s.doubt.number {
		s.doubt = doubt{proved: s.doubt.before + n}
	}
}

// isEmpty says whether a packed block unpacks to nothing: it has neither literals, of
// which it may tell in three ways that there are none, nor references.
func isEmpty(content []byte) bool {
	if len(content) == 0 || content[0]&2 != 0 {
		return false // literals that are packed
	}
	head, lenBytes := content[0], 1
	if head&4 != 0 {
		lenBytes = 2 + int(head>>3&1)
		head &^= 8
	}
	if len(content) <= lenBytes || head>>3 != 0 || !isZero(content[1:lenBytes]) {
		return false
	}
	rest := content[lenBytes:]
	if head&1 != 0 {
		rest = rest[1:] // the byte that is repeated, not at all
	}
	return bytes.Equal(rest, []byte{0}) || bytes.Equal(rest, []byte{0x80, 0}) // in short, and as of many
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
	about, ok := s.nextNote()
	if !ok {
		return 0, s.keep(errDamaged)
	}
	if err := s.skip(about.skipped); err != nil {
		return 0, err
	}
	if (about.zeros || about.doubt > 0) && zerosOnly(p) {
		s.prove(about, int64(len(p)))
		return len(p), s.skip(int64(len(p)))
	}
	if s.sum != nil {
		_, _ = s.sum.Write(p)
	}
	s.size += int64(len(p))
	n, err := s.to.Write(p)
	return n, s.keep(err)
}

// nextNote is what is known of the block that is written next.
func (s *input) nextNote() (note, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.notes) == 0 {
		return note{}, false
	}
	first := s.notes[0]
	s.notes = s.notes[1:]
	return first, true
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

// skip takes zeros in steps, so that the end of ctx is noticed between them.
func (s *stream) skip(n int64) error {
	for n > 0 {
		k := min(n, skipBytes)
		if err := s.keep(s.to.skipZeros(k)); err != nil {
			return err
		}
		if s.sum != nil {
			sumZeros(s.sum, k)
		}
		s.size, n = s.size+k, n-k
	}
	return nil
}

// keep remembers the first fault, wherever it is.
func (s *input) keep(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return err
}

func (s *input) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
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
	if err := s.skip(s.skipped); err != nil { // where the last block is empty
		return err
	}
	if len(s.notes) > 0 || s.header.sizeBytes >= 0 && s.size != s.header.sizeBytes {
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
