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

// blankBytes is the largest block that may only continue zeros. zstd begins a frame with such a
// block, and with several threads also each thread's part.
const blankBytes = 64

// skipBytes is how many zeros are summed at once, which takes tenths of a second.
const skipBytes = 1 << 30

// zeroSkipper decodes one frame of zstd without the zeros in it.
//
// Most images consist mostly of runs of zeros, which are blocks of four bytes each. Once a run is
// as long as the frame's window, later blocks can refer only to zeros, and more zeros change
// nothing. zeroSkipper omits such blocks from the decoder's input. It counts blocks to find their
// place in the output: each is one call of Write, unless it is empty. The decoder reads ahead.
type zeroSkipper struct {
	blockReader
	to   *cutter
	sum  *xxhash.Digest // nil: the frame has none
	size int64          // of the output
}

// blockReader reads a frame's blocks for the decoder, and omits blocks of zeros.
type blockReader struct {
	ctx    context.Context
	in     *bufio.Reader // the frame, after its header
	header frameHeader
	window int64 // as the decoder's header states it

	head    [4]byte
	pending []byte // the next bytes for the decoder: of head, or of the frame's header
	left    int64  // of the content of a block, after pending
	nothing int64  // zeros that are the content of a block, after pending
	last    bool   // no block follows
	zeros   int64  // how many zeros, at least, end the decoder's input
	skipped int64  // zeros that were omitted since the last block
	doubts  int    // how many possibleZeros there were

	mu    sync.Mutex
	notes []blockNote   // of the blocks that are read and not yet written
	doubt possibleZeros // the last one, if only zeros followed
	err   error         // the first error; the decoder must not wrap it
}

// blockNote is what blockReader knows of a block before the decoder unpacks it.
type blockNote struct {
	skipped int64 // zeros that belong before it
	zeros   bool
	doubt   int // its number; 0: none
}

// possibleZeros is a block that may turn out to continue a run of zeros.
type possibleZeros struct {
	number int
	before int64 // zeros before it
	proved int64 // once written: the zeros that end with it
}

// newZeroSkipper returns a zeroSkipper for the frame whose header h was read from in.
func newZeroSkipper(in *bufio.Reader, h frameHeader, to *cutter) *zeroSkipper {
	s := &zeroSkipper{blockReader: blockReader{ctx: to.ctx, in: in, header: h}, to: to}
	s.pending, s.window = plainHeader(h.windowBytes)
	if h.sum {
		s.sum = xxhash.New()
	}
	return s
}

// plainHeader returns a frame header without size and checksum, and its window: windowBytes rounded
// up to what a short header can express.
func plainHeader(windowBytes int64) ([]byte, int64) {
	exponent := bits.Len64(uint64(max(windowBytes, maxBlockBytes) - 1))
	return append([]byte(frameMagic), 0, byte(exponent-10)<<3), 1 << exponent
}

// Read returns plainHeader's bytes, then the blocks that nextBlock prepares, and io.EOF after the
// last. It stops at the first error of input or output.
func (s *blockReader) Read(p []byte) (int, error) {
	for {
		switch {
		case s.firstError() != nil:
			return 0, s.firstError()
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
			return n, s.keepError(unexpectedEOF(err))
		case s.last:
			return 0, io.EOF
		}
		_ = s.keepError(s.nextBlock())
	}
}

// nextBlock reads a block's header and prepares the block for the decoder, or omits needless zeros.
func (s *blockReader) nextBlock() error {
	if err := context.Cause(s.ctx); err != nil {
		return err // the cutter does not see empty blocks
	}
	var head [3]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return unexpectedEOF(err)
	}
	b, err := parseBlockHeader(head[:])
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
	s.passBlock(b, b.size > 0, blockNote{})
	s.resetZeros(possibleZeros{})
	return nil
}

// nextRun prepares a block that repeats a byte. It omits zeros if enough zeros precede them, unless
// the block is the last, and passes other zeros as a raw block.
func (s *blockReader) nextRun(b block) error {
	value, err := s.in.ReadByte()
	if err != nil {
		return unexpectedEOF(err)
	}
	switch {
	case value != 0:
		s.passBlock(b, b.size > 0, blockNote{})
		s.pending, s.left = append(s.pending, value), 0
		s.resetZeros(possibleZeros{})
	case s.endingZeros() >= s.window && !b.last:
		s.skipped += b.size
	default:
		b.kind = rawBlock // the decoder copies zeros faster than it repeats them
		s.passBlock(b, b.size > 0, blockNote{zeros: true})
		s.left, s.nothing = 0, b.size
		s.zeros += b.size
	}
	return nil
}

// nextTiny passes a tiny block to the decoder, and notes one that may turn out to continue zeros.
func (s *blockReader) nextTiny(b block) error {
	content, err := s.in.Peek(int(b.size))
	if err != nil {
		return unexpectedEOF(err)
	}
	if isEmptyBlock(content) {
		s.passBlock(b, false, blockNote{})
		return nil
	}
	s.doubts++
	before := s.endingZeros()
	s.passBlock(b, true, blockNote{doubt: s.doubts})
	s.resetZeros(possibleZeros{number: s.doubts, before: before})
	return nil
}

// passBlock prepares a block for the decoder, and notes its output, with zeros omitted before it.
func (s *blockReader) passBlock(b block, hasOutput bool, about blockNote) {
	head := encodeBlockHeader(b)
	s.pending, s.left = append(s.head[:0], head[:]...), b.size
	if !hasOutput {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	about.skipped, s.skipped = s.skipped, 0
	s.notes = append(s.notes, about)
}

// resetZeros records that no known zeros end the decoder's input. If the last block may be zeros,
// doubt describes it.
func (s *blockReader) resetZeros(doubt possibleZeros) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zeros, s.doubt = 0, doubt
}

// endingZeros returns how many zeros are known to end the decoder's input, with newly proved ones.
func (s *blockReader) endingZeros() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zeros += s.doubt.proved
	s.doubt.proved = 0
	return s.zeros
}

// recordZeros records that a block in doubt is n zeros, if only zeros followed it.
func (s *blockReader) recordZeros(about blockNote, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if about.doubt > 0 && about.doubt == s.doubt.number {
		s.doubt = possibleZeros{proved: s.doubt.before + n}
	}
}

// isEmptyBlock reports whether a compressed block unpacks to nothing. It then has
// neither literals, whose absence has three encodings, nor references.
func isEmptyBlock(content []byte) bool {
	if len(content) == 0 || content[0]&2 != 0 {
		return false // compressed literals
	}
	head, lenBytes := content[0], 1
	if head&4 != 0 {
		lenBytes = 2 + int(head>>3&1)
		head &^= 8
	}
	if len(content) <= lenBytes || head>>3 != 0 || !IsZero(content[1:lenBytes]) {
		return false
	}
	rest := content[lenBytes:]
	if head&1 != 0 {
		rest = rest[1:] // the repeated byte, with count 0
	}
	return bytes.Equal(rest, []byte{0}) || bytes.Equal(rest, []byte{0x80, 0}) // the short and the long encoding
}

// unexpectedEOF turns io.EOF of required data into io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write sends the zeros omitted before a block of the decoder's output, then the block. A block
// that was noted as possible zeros, and is, is sent as zeros.
func (s *zeroSkipper) Write(p []byte) (int, error) {
	about, ok := s.nextNote()
	if !ok {
		return 0, s.keepError(errDamaged)
	}
	if err := s.skipZeros(about.skipped); err != nil {
		return 0, err
	}
	if (about.zeros || about.doubt > 0) && IsZero(p) {
		s.recordZeros(about, int64(len(p)))
		return len(p), s.skipZeros(int64(len(p)))
	}
	if s.sum != nil {
		_, _ = s.sum.Write(p)
	}
	s.size += int64(len(p))
	n, err := s.to.Write(p)
	return n, s.keepError(err)
}

// nextNote removes and returns the note of the next block of output; false if there is none.
func (s *blockReader) nextNote() (blockNote, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.notes) == 0 {
		return blockNote{}, false
	}
	first := s.notes[0]
	s.notes = s.notes[1:]
	return first, true
}

// skipZeros adds n zeros to the output and its sum, in steps, so that it stops soon after ctx ends.
func (s *zeroSkipper) skipZeros(n int64) error {
	for n > 0 {
		k := min(n, skipBytes)
		if err := s.keepError(s.to.skipZeros(k)); err != nil {
			return err
		}
		if s.sum != nil {
			WriteZeros(s.sum, k)
		}
		s.size, n = s.size+k, n-k
	}
	return nil
}

// keepError keeps the first error of the input or the output, and returns err.
func (s *blockReader) keepError(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return err
}

func (s *blockReader) firstError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// checkEnd adds omitted zeros that end the frame, and verifies its size and checksum.
func (s *zeroSkipper) checkEnd() error {
	if !s.last || s.left > 0 {
		return io.ErrUnexpectedEOF
	}
	if err := s.skipZeros(s.skipped); err != nil { // if the last block is empty
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
		return unexpectedEOF(err)
	}
	if binary.LittleEndian.Uint32(stored[:]) != uint32(s.sum.Sum64()) {
		return errDamaged
	}
	return nil
}
