// Package inflate decodes gzip files (RFC 1952) into bytes, as fast as one core can. It also
// decodes plain deflate streams (RFC 1951). Package source makes images of the bytes.
package inflate

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Out receives the decoded bytes.
type Out interface {
	Write(p []byte) (int, error) // p is the caller's
	SkipZeros(n int64) error     // n bytes of zeros are next
}

const (
	historyBytes = 32 << 10  // how far back a match can reach
	roomBytes    = 128 << 10 // decoded at a time: with the history, it fits into the fastest caches
	windowBytes  = 1 << 20   // of the input, read at a time
	padBytes     = 32        // zeros after the input's end, for a whole match and a load
)

// corruptError is the error of damaged content. An early end is io.ErrUnexpectedEOF instead.
func corruptError(format string, args ...any) error {
	return fmt.Errorf("the file is damaged: %s; fetch or build it again", fmt.Sprintf(format, args...))
}

// phase is the kind of the next bits.
type phase int

const (
	inHeader phase = iota // a block's header
	inStored
	inCodes
	inMatch // the rest of a match that did not fit into the output
	atEnd   // after the last block
)

// decoder decodes one deflate stream.
//
// The input is in window[next:have]. The lowest count bits of held are loaded and not
// yet used. The bits above may be set too. They then equal the input at their place, so
// that loading them again by "or" changes nothing.
type decoder struct {
	src    io.Reader
	window []byte // padBytes longer than its content
	next   int
	have   int
	ended  bool  // the rest of the input is in the window
	base   int64 // of the window's first byte in the input

	held  uint64
	count uint

	phase  phase
	last   bool // this block is the stream's last
	stored int  // bytes that the stored block still has
	length int  // of the match of inMatch
	dist   int

	made  int64 // bytes of this stream
	zeros []run // in the output of this fill

	symbols symbolTable
	reaches distTable
	lengths [maxSymbols + maxDistances]uint8
	fixed   bool // the tables are those of fixed codes
}

// run is a part of the output that is known to be zeros.
type run struct{ from, to int }

// Shorter runs are written as bytes.
const minRunBytes = 8 << 10

func newDecoder(src io.Reader) *decoder {
	return &decoder{src: src, window: make([]byte, windowBytes+padBytes)}
}

// startStream prepares for a stream at the current position in the input.
func (d *decoder) startStream() {
	d.phase, d.last, d.made = inHeader, false, 0
}

// fillWindow makes n bytes of input ready, or all up to its end. It may move those in the window.
func (d *decoder) fillWindow(n int) error {
	if d.have-d.next >= n || d.ended {
		return nil
	}
	from := max(0, d.next-8) // alignByte may return held bits
	d.have = copy(d.window, d.window[from:d.have])
	d.base += int64(from)
	d.next -= from
	for d.have-d.next < n {
		got, err := d.src.Read(d.window[d.have:windowBytes])
		d.have += got
		if err == io.EOF {
			d.ended = true
			clear(d.window[d.have : d.have+padBytes])
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// offset returns the position of the first unused bit in the input, in bytes.
func (d *decoder) offset() int64 { return d.base + int64(d.next) - int64(d.count/8) }

// loadBits makes at least 56 bits ready. After the input's end they are zeros. The caller may use
// at most padBytes/2 bytes of input between two calls of checkOverrun.
func (d *decoder) loadBits() {
	d.held |= binary.LittleEndian.Uint64(d.window[d.next:]) << (d.count & 63)
	d.next += int((63 - d.count) >> 3)
	d.count |= 56
}

// takeBits removes and returns the next n bits.
func (d *decoder) takeBits(n uint) uint64 {
	v := d.held & (1<<(n&63) - 1)
	d.held >>= n & 63
	d.count -= n
	return v
}

// checkOverrun returns an error if more bits were used than the input has.
func (d *decoder) checkOverrun() error {
	if d.next-int(d.count/8) > d.have {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// alignByte drops the bits up to the next whole byte, and returns whole bytes to the window.
func (d *decoder) alignByte() error {
	d.next -= int(d.count / 8)
	d.held, d.count = 0, 0
	if d.next > d.have {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// decodeUntil decodes into buf[at:end] and returns the reached position, which is less than end
// only at the stream's end. buf[:at] holds earlier output: all, or at least historyBytes. It sets
// d.zeros to the long runs of zeros.
func (d *decoder) decodeUntil(buf []byte, at, end int) (int, error) {
	from := int(max(0, int64(at)-d.made))
	began := at
	defer func() { d.made += int64(at - began) }()
	d.zeros = d.zeros[:0]
	for at < end && d.phase != atEnd {
		var err error
		if err = d.fillWindow(4 << 10); err == nil {
			at, err = d.decodeStep(buf, from, at, end)
		}
		if err != nil {
			return at, err
		}
	}
	return at, nil
}

// decodeStep decodes a part to buf[at:end], by the phase, and returns the reached position.
// buf[from:at] is the history.
func (d *decoder) decodeStep(buf []byte, from, at, end int) (int, error) {
	switch d.phase {
	case inHeader:
		return at, d.readBlockHeader()
	case inStored:
		return d.copyStored(buf, at, end)
	case inMatch:
		n := min(d.length, end-at)
		copyMatch(buf, at, d.dist, n)
		if d.length -= n; d.length == 0 {
			d.phase = inCodes
		}
		return at + n, nil
	}
	at, err := d.decodeFast(buf, from, at, end)
	if err != nil || d.phase != inCodes {
		return at, err
	}
	return d.decodeCareful(buf, from, at, end)
}

// readBlockHeader reads a block's header, with its codes if it has some.
func (d *decoder) readBlockHeader() error {
	d.loadBits()
	d.last = d.takeBits(1) == 1
	kind := d.takeBits(2)
	if err := d.checkOverrun(); err != nil {
		return err
	}
	switch kind {
	case 0:
		return d.readStoredHeader()
	case 1:
		d.phase = inCodes
		return d.setFixedCodes()
	case 2:
		d.phase = inCodes
		return d.readCodes()
	}
	return corruptError("a block of kind 3 at %d", d.offset())
}

// endBlock sets the phase after a block: a header is next, or the stream has ended.
func (d *decoder) endBlock() {
	d.phase = inHeader
	if d.last {
		d.phase = atEnd
	}
}

// readStoredHeader reads the length of a stored block and verifies its complement.
func (d *decoder) readStoredHeader() error {
	if err := d.alignByte(); err != nil {
		return err
	}
	if d.have-d.next < 4 {
		return io.ErrUnexpectedEOF
	}
	n, not := binary.LittleEndian.Uint16(d.window[d.next:]), binary.LittleEndian.Uint16(d.window[d.next+2:])
	if n != ^not {
		return corruptError("a stored block's length at %d does not match its complement", d.offset())
	}
	d.next += 4
	d.stored = int(n)
	if d.phase = inStored; n == 0 {
		d.endBlock()
	}
	return nil
}

// copyStored copies what buf[at:end] and the input allow of a stored block. It returns the end.
func (d *decoder) copyStored(buf []byte, at, end int) (int, error) {
	n := min(d.stored, end-at, d.have-d.next)
	if n == 0 {
		return at, io.ErrUnexpectedEOF
	}
	copy(buf[at:], d.window[d.next:d.next+n])
	d.next += n
	if d.stored -= n; d.stored == 0 {
		d.endBlock()
	}
	return at + n, nil
}

// copyMatch copies n bytes from dist before at. The source may overlap the copy.
func copyMatch(buf []byte, at, dist, n int) {
	for n > 0 {
		k := copy(buf[at:at+n], buf[at-dist:at])
		at, n = at+k, n-k
		dist += k // what was just written repeats it too
	}
}

// decodeCareful decodes to buf[at:end] as decodeFast does, near the ends of output or input too. It
// returns when the output is full, the block ends, or the window must be filled.
func (d *decoder) decodeCareful(buf []byte, from, at, end int) (int, error) {
	for at < end {
		if !d.ended && d.have-d.next < 2*padBytes {
			return at, nil
		}
		d.loadBits()
		e := d.symbols.lookUp(d.held)
		if e&isLiteral != 0 { // of a pair, only the first
			n := uint(e>>singleShift) & 15
			buf[at] = byte(e >> valueShift)
			d.takeBits(n)
			if err := d.checkOverrun(); err != nil {
				return at, err
			}
			at++
			continue
		}
		if e&isEnd != 0 {
			d.takeBits(uint(e & 63))
			d.endBlock()
			return at, d.checkOverrun()
		}
		if err := d.readMatch(e, at-from); err != nil {
			return at, err
		}
		n := min(d.length, end-at)
		copyMatch(buf, at, d.dist, n)
		at += n
		if d.length -= n; d.length > 0 {
			d.phase = inMatch
		}
	}
	return at, nil
}

// readMatch reads d.length, whose entry is e, and d.dist. A distance over back is an error.
func (d *decoder) readMatch(e tableEntry, back int) error {
	if e&isBad != 0 {
		return d.badCodeError()
	}
	d.length = e.matchValue(d.held)
	d.takeBits(uint(e & 63))
	e = d.reaches.lookUp(d.held)
	if e&isBad != 0 {
		return d.badCodeError()
	}
	d.dist = e.matchValue(d.held)
	d.takeBits(uint(e & 63))
	if err := d.checkOverrun(); err != nil {
		return err
	}
	if d.dist > back {
		return d.badDistanceError(d.dist)
	}
	return nil
}

// badCodeError returns the error for bits that are no code; io.ErrUnexpectedEOF at the input's end.
func (d *decoder) badCodeError() error {
	if d.ended && d.next-int(d.count/8)+8 > d.have {
		return io.ErrUnexpectedEOF
	}
	return corruptError("no code is like the bits at %d", d.offset())
}

func (d *decoder) badDistanceError(dist int) error {
	return corruptError("at %d something is repeated from %d bytes before, which is before the stream's start", d.offset(), dist)
}
