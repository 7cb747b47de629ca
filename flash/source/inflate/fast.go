package inflate

import (
	"encoding/binary"
	"unsafe"
)

// outMargin bounds what the fast loop writes unchecked: 3 literal pairs, a match, a copy's excess.
const outMargin = 3*2 + longestMatch + 64

// What it may read from the input between two such checks.
const inMargin = 32

const longestMatch = 258

// decodeFast decodes to buf[at:end], with buf[from:at] as history, and returns the reached
// position. It leaves the end of block, input or output to decodeCareful, and checks only once in
// up to four symbols. It uses pointers: the margins keep it inside, and dist is checked before use.
func (d *decoder) decodeFast(buf []byte, from, at, end int) (int, error) {
	if end > len(buf) || end-at < outMargin || d.have-d.next < inMargin {
		return at, nil
	}
	in, out := unsafe.Pointer(unsafe.SliceData(d.window)), unsafe.Pointer(unsafe.SliceData(buf))
	held, count, next := d.held, uint64(d.count), d.next
	lastIn, lastOut := d.have-inMargin, end-outMargin
	symbols, reaches := &d.symbols, &d.reaches
	var err error
	for at <= lastOut && next <= lastIn {
		held |= load64(in, next) << (count & 63)
		next += int((63 - count) >> 3)
		count |= 56
		e := symbols[held&(1<<symbolBits-1)]
		if e&isLiteral != 0 {
			at += putLiterals(out, at, e)
			held >>= e & 63
			count -= uint64(e & 63)
			if e = symbols[held&(1<<symbolBits-1)]; e&isLiteral != 0 {
				at += putLiterals(out, at, e)
				held >>= e & 63
				count -= uint64(e & 63)
				if e = symbols[held&(1<<symbolBits-1)]; e&isLiteral != 0 {
					at += putLiterals(out, at, e)
					held >>= e & 63
					count -= uint64(e & 63)
					continue
				}
			}
			held |= load64(in, next) << (count & 63)
			next += int((63 - count) >> 3)
			count |= 56
		}
		if e&special != 0 {
			if e = symbols.lookUp(held); e&isLiteral != 0 {
				at += putLiterals(out, at, e)
				held >>= e & 63
				count -= uint64(e & 63)
				continue
			}
			if e&special != 0 {
				break // decodeCareful reads it again
			}
		}
		before := held
		length := e.matchValue(held)
		held >>= e & 63
		r := reaches[held&(1<<distBits-1)]
		if r&special != 0 {
			if r = reaches.lookUp(held); r&special != 0 {
				held = before
				break
			}
		}
		dist := r.matchValue(held)
		held >>= r & 63
		count -= uint64(e&63 + r&63)
		if dist > at-from {
			err = d.badDistanceError(dist)
			break
		}
		if dist >= 16 {
			Copy16(unsafe.Add(out, at), dist, length)
			at += length
			continue
		}
		if dist == 1 && length == longestMatch {
			d.held, d.count, d.next = held, uint(count), next
			length += longestMatch * d.countRepeats(before, uint(e&63+r&63), (end-at)/longestMatch-1)
			held, count, next = d.held, uint64(d.count), d.next
		}
		d.copyOverlap(buf, at, dist, length)
		at += length
	}
	d.held, d.count, d.next = held, uint(count), next
	return at, err
}

// countRepeats skips up to most repetitions of a match's n bits, as in long runs, and counts them.
func (d *decoder) countRepeats(match uint64, n uint, most int) int {
	mask := uint64(1)<<n - 1
	match &= mask
	for i := range most {
		if d.have-d.next < inMargin {
			return i
		}
		d.loadBits()
		if d.held&mask != match {
			return i
		}
		d.held >>= n
		d.count -= n
	}
	return max(0, most)
}

// copyOverlap copies a match of a short distance, which may overlap itself, and notes zeros.
func (d *decoder) copyOverlap(buf []byte, at, dist, length int) {
	switch v := buf[at-1]; {
	case dist > 1:
		copyMatch(buf, at, dist, length)
	case v == 0:
		clear(buf[at : at+length])
		d.noteZeros(run{at, at + length})
	default:
		p := buf[at : at+length]
		for i := range p {
			p[i] = v
		}
	}
}

// noteZeros joins a run of zeros to the last one if they touch, else records it unless it is short.
func (d *decoder) noteZeros(r run) {
	if n := len(d.zeros); n > 0 && d.zeros[n-1].to == r.from {
		d.zeros[n-1].to = r.to
	} else if r.to-r.from >= minRunBytes {
		d.zeros = append(d.zeros, r)
	}
}

func load64(p unsafe.Pointer, at int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(p, at))[:])
}

// putLiterals writes one or two literals, and returns how many.
func putLiterals(p unsafe.Pointer, at int, e tableEntry) int {
	binary.LittleEndian.PutUint16((*[2]byte)(unsafe.Add(p, at))[:], uint16(e>>valueShift))
	return 1 + int(e/isPair&1)
}

// Copy16 copies length bytes from dist before to. dist is at least 16. It writes up to 31 more.
func Copy16(to unsafe.Pointer, dist, length int) {
	from := unsafe.Add(to, -dist)
	*(*[16]byte)(to) = *(*[16]byte)(from)
	*(*[16]byte)(unsafe.Add(to, 16)) = *(*[16]byte)(unsafe.Add(from, 16))
	for i := 32; i < length; i += 16 {
		*(*[16]byte)(unsafe.Add(to, i)) = *(*[16]byte)(unsafe.Add(from, i))
	}
}
