// Package inflate decodes gzip files (RFC 1952) and what is in them (RFC 1951),
// as fast as one core can. It hands on bytes; what an image is made of them is
// package source's.
package inflate

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Out takes what is decoded.
type Out interface {
	Write(p []byte) (int, error) // p is the caller's
	SkipZeros(n int64) error     // n bytes of zeros are next
}

const (
	historyBytes = 32 << 10  // how far back a match can reach
	roomBytes    = 128 << 10 // decoded at a time: with the history, what the fastest caches hold
	windowBytes  = 1 << 20   // of the input, read at a time
	padBytes     = 32        // zeros behind the input's end: what a whole match and a load can reach
)

// corrupt is everything that a file can have wrong but its end, which is
// io.ErrUnexpectedEOF.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("the file is damaged: %s; fetch or build it again", fmt.Sprintf(format, args...))
}

// phase is what the next bits of the input are.
type phase int

const (
	inHeader phase = iota // a block's header
	inStored
	inCodes
	inMatch // the rest of a match that did not fit into the output
	atEnd   // behind the last block
)

// decoder decodes one deflate stream.
//
// The input lies in window[next:have]; held holds bits that were taken from
// there, of which the lowest count are not used yet. Those above may be set too:
// they are then what the input has at their place, so that loading them again by
// "or" changes nothing.
type decoder struct {
	src    io.Reader
	window []byte // padBytes longer than what is read into it
	next   int
	have   int
	ended  bool  // the input has no more than the window
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

// Shorter runs are not worth a mention.
const minRunBytes = 8 << 10

func newDecoder(src io.Reader) *decoder {
	return &decoder{src: src, window: make([]byte, windowBytes+padBytes)}
}

// begin makes d ready for a stream at its place in the input.
func (d *decoder) begin() {
	d.phase, d.last, d.made = inHeader, false, 0
}

// want reads on until n bytes are in the window, or the input has ended.
func (d *decoder) want(n int) error {
	if d.have-d.next >= n || d.ended {
		return nil
	}
	from := max(0, d.next-8) // align may give back what is held
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

// at is the place in the input of the first bit that was not used, in bytes.
func (d *decoder) at() int64 { return d.base + int64(d.next) - int64(d.count/8) }

// load makes at least 56 bits ready, those behind the input's end being zeros. Not
// more than padBytes/2 are used before overrun is asked.
func (d *decoder) load() {
	d.held |= binary.LittleEndian.Uint64(d.window[d.next:]) << (d.count & 63)
	d.next += int((63 - d.count) >> 3)
	d.count |= 56
}

// takeBits uses n bits.
func (d *decoder) takeBits(n uint) uint64 {
	v := d.held & (1<<(n&63) - 1)
	d.held >>= n & 63
	d.count -= n
	return v
}

// overrun says that bits were used which the input does not have.
func (d *decoder) overrun() error {
	if d.next-int(d.count/8) > d.have {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// align drops the bits up to the next whole byte and gives back whole ones.
func (d *decoder) align() error {
	d.next -= int(d.count / 8)
	d.held, d.count = 0, 0
	if d.next > d.have {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// fill decodes into buf[at:end] and returns how far it came, which is short of
// end at the stream's end only. In buf[:at] lies what was decoded before: all of
// this stream, or at least historyBytes.
func (d *decoder) fill(buf []byte, at, end int) (int, error) {
	from := int(max(0, int64(at)-d.made))
	began := at
	defer func() { d.made += int64(at - began) }()
	d.zeros = d.zeros[:0]
	for at < end && d.phase != atEnd {
		var err error
		if err = d.want(4 << 10); err == nil {
			at, err = d.step(buf, from, at, end)
		}
		if err != nil {
			return at, err
		}
	}
	return at, nil
}

func (d *decoder) step(buf []byte, from, at, end int) (int, error) {
	switch d.phase {
	case inHeader:
		return at, d.header()
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
	at, err := d.fast(buf, from, at, end)
	if err != nil || d.phase != inCodes {
		return at, err
	}
	return d.careful(buf, from, at, end)
}

// header reads a block's header, and its codes where it has some.
func (d *decoder) header() error {
	d.load()
	d.last = d.takeBits(1) == 1
	kind := d.takeBits(2)
	if err := d.overrun(); err != nil {
		return err
	}
	switch kind {
	case 0:
		return d.storedHeader()
	case 1:
		d.phase = inCodes
		return d.fixedCodes()
	case 2:
		d.phase = inCodes
		return d.ownCodes()
	}
	return corrupt("a block of kind 3 at %d", d.at())
}

func (d *decoder) blockEnd() {
	d.phase = inHeader
	if d.last {
		d.phase = atEnd
	}
}

func (d *decoder) storedHeader() error {
	if err := d.align(); err != nil {
		return err
	}
	if d.have-d.next < 4 {
		return io.ErrUnexpectedEOF
	}
	n, not := binary.LittleEndian.Uint16(d.window[d.next:]), binary.LittleEndian.Uint16(d.window[d.next+2:])
	if n != ^not {
		return corrupt("a stored block's length at %d does not match its complement", d.at())
	}
	d.next += 4
	d.stored = int(n)
	if d.phase = inStored; n == 0 {
		d.blockEnd()
	}
	return nil
}

func (d *decoder) copyStored(buf []byte, at, end int) (int, error) {
	n := min(d.stored, end-at, d.have-d.next)
	if n == 0 {
		return at, io.ErrUnexpectedEOF
	}
	copy(buf[at:], d.window[d.next:d.next+n])
	d.next += n
	if d.stored -= n; d.stored == 0 {
		d.blockEnd()
	}
	return at + n, nil
}

// copyMatch repeats n bytes from dist before at, which may be among them.
func copyMatch(buf []byte, at, dist, n int) {
	for n > 0 {
		k := copy(buf[at:at+n], buf[at-dist:at])
		at, n = at+k, n-k
		dist += k // what was just written repeats it too
	}
}

// careful decodes where the fast loop cannot: close to the end of the output or
// of the input. It returns to let the window be filled.
func (d *decoder) careful(buf []byte, from, at, end int) (int, error) {
	for at < end {
		if !d.ended && d.have-d.next < 2*padBytes {
			return at, nil
		}
		d.load()
		e := d.symbols.find(d.held)
		if e&isLiteral != 0 { // of a pair, the first alone
			n := uint(e>>singleShift) & 15
			buf[at] = byte(e >> valueShift)
			d.takeBits(n)
			if err := d.overrun(); err != nil {
				return at, err
			}
			at++
			continue
		}
		if e&isEnd != 0 {
			d.takeBits(uint(e & 63))
			d.blockEnd()
			return at, d.overrun()
		}
		if err := d.match(e, at-from); err != nil {
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

// match reads the rest of a match whose length has the entry e; back is how far
// it can reach.
func (d *decoder) match(e entry, back int) error {
	if e&isBad != 0 {
		return d.unknown()
	}
	d.length = e.value(d.held)
	d.takeBits(uint(e & 63))
	e = d.reaches.find(d.held)
	if e&isBad != 0 {
		return d.unknown()
	}
	d.dist = e.value(d.held)
	d.takeBits(uint(e & 63))
	if err := d.overrun(); err != nil {
		return err
	}
	if d.dist > back {
		return d.tooFar(d.dist)
	}
	return nil
}

// unknown is for bits that are no code; those behind the input's end are none.
func (d *decoder) unknown() error {
	if d.ended && d.next-int(d.count/8)+8 > d.have {
		return io.ErrUnexpectedEOF
	}
	return corrupt("no code is like the bits at %d", d.at())
}

func (d *decoder) tooFar(dist int) error {
	return corrupt("at %d something is repeated from %d bytes before, where the stream has not begun", d.at(), dist)
}
