package lzma2

import (
	"unsafe"

	"slipway/flash/source/inflate"
)

const (
	states     = 12
	firstMatch = 7 // states below it follow a literal
	positions  = 16
	maxLcLp    = 4
	minMatch   = 2
	maxMatch   = 273
)

// lengthModel has the probabilities for a match's length.
type lengthModel struct {
	notShort, long prob
	short, middle  [positions][8]prob
	high           [256]prob
}

// model has all probabilities, which adapt to the data.
type model struct {
	isMatch, longRep0                [states * positions]prob
	isRep, notRep0, notRep1, notRep2 [states]prob
	slot                             [4][64]prob
	far                              [128]prob // distances of 4 to 127, by slot
	align                            [16]prob
	match, rep                       lengthModel
	literals                         [1 << maxLcLp][0x300]prob
}

// The state after a literal.
var afterLiteral = [states]uint8{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 4, 5}

// decoder decodes LZMA chunks into a ring.
type decoder struct {
	ring ring
	coder
	model

	lc, lp, pb uint32
	state      uint32
	reps       [4]uint32 // distances less 1

	in    []byte // a chunk, and mostInput zeros
	inEnd int
}

// resetModel makes 0 and 1 equally likely for all bits, and forgets the last distances.
func (d *decoder) resetModel() {
	all := unsafe.Slice((*prob)(unsafe.Pointer(&d.model)), unsafe.Sizeof(d.model)/unsafe.Sizeof(prob(0)))
	for i := range all {
		all[i] = evenProb
	}
	d.state, d.reps = 0, [4]uint32{}
}

// setProperties sets lc, lp and pb from b, and reports whether LZMA2 allows them.
func (d *decoder) setProperties(b byte) bool {
	if b >= 9*5*5 {
		return false
	}
	d.lc, d.lp, d.pb = uint32(b%9), uint32(b/9%5), uint32(b/45)
	return d.lc+d.lp <= maxLcLp
}

// decodeSymbols decodes symbols until the ring's position is at least enough, and at most most. It
// returns false for symbols that no encoder writes, or if the input ends early.
func (d *decoder) decodeSymbols(enough, most int) bool {
	out := unsafe.Pointer(unsafe.SliceData(d.ring.bytes))
	c, at, state := d.coder, d.ring.at, d.state
	begin, reach, lap := d.ring.begin, d.ring.reach, uint32(d.ring.before)-uint32(d.ring.begin)
	posMask, literalMask, lc := uint32(1)<<d.pb-1, uint64(1)<<d.lp-1, d.lc&15
	last, inEnd := uint64(d.ring.byteBefore(at, 1)), uintptr(unsafe.Pointer(&d.in[d.inEnd]))
	for at < enough && uintptr(c.next) <= inEnd {
		pos := lap + uint32(at)
		var one bool
		if c, one = c.decodeBit(&d.isMatch[state*positions+pos&posMask]); !one {
			p := &d.literals[((uint64(pos)&literalMask)<<lc+last>>(8-lc))&(1<<maxLcLp-1)]
			if state < firstMatch {
				c, last = c.decodeTree(unsafe.Pointer(p), 0x100)
			} else {
				c, last = c.decodeMatched(p, d.ring.byteBefore(at, int(d.reps[0])+1))
			}
			last &= 0xff
			*(*byte)(unsafe.Add(out, at)) = byte(last)
			at++
			state = uint32(afterLiteral[state])
			continue
		}
		var length uint64
		if c, one = c.decodeBit(&d.isRep[state]); !one {
			c, length = d.readMatch(c, pos&posMask)
			state = 7 + state/firstMatch*3
		} else {
			c, length, state = d.readRepeat(c, pos&posMask, state)
		}
		dist, n := int(d.reps[0])+1, int(length)
		if n > most-at {
			return false
		}
		if dist >= 16 && dist <= at-begin && dist <= reach {
			inflate.Copy16(unsafe.Add(out, at), dist, n)
		} else if !d.ring.copyMatch(at, dist, n) {
			return false
		}
		at += n
		last = uint64(*(*byte)(unsafe.Add(out, at-1)))
	}
	d.coder, d.ring.at, d.state = c, at, state
	return at >= enough && uintptr(c.next) <= inEnd
}

// readMatch reads a match's distance, which it puts first in d.reps, and returns its length.
func (d *decoder) readMatch(c coder, pos uint32) (coder, uint64) {
	c, length := d.match.decodeLength(c, pos)
	c, slot := c.decodeTree(unsafe.Pointer(&d.slot[min(length-minMatch, 3)]), 64)
	slot -= 64
	dist := slot
	if slot >= 4 {
		n := slot>>1 - 1
		dist = (2 | slot&1) << n
		var low uint64
		if slot < 14 {
			c, low = c.decodeReverse(unsafe.Pointer(&d.far[dist-slot]), n)
		} else {
			c, low = c.decodeDirect(n - 4)
			dist += low << 4
			c, low = c.decodeReverse(unsafe.Pointer(&d.align), 4)
		}
		dist += low
	}
	d.reps = [4]uint32{uint32(dist), d.reps[0], d.reps[1], d.reps[2]}
	return c, length
}

// readRepeat reads which of the last distances a match repeats, and moves that to d.reps[0]. It
// returns the length and the next state.
func (d *decoder) readRepeat(c coder, pos, state uint32) (coder, uint64, uint32) {
	next := 8 + state/firstMatch*3
	c, one := c.decodeBit(&d.notRep0[state])
	if !one {
		if c, one = c.decodeBit(&d.longRep0[state*positions+pos]); !one {
			return c, 1, 9 + state/firstMatch*2
		}
	} else if c, one = c.decodeBit(&d.notRep1[state]); !one {
		d.reps[0], d.reps[1] = d.reps[1], d.reps[0]
	} else if c, one = c.decodeBit(&d.notRep2[state]); !one {
		d.reps = [4]uint32{d.reps[2], d.reps[0], d.reps[1], d.reps[3]}
	} else {
		d.reps = [4]uint32{d.reps[3], d.reps[0], d.reps[1], d.reps[2]}
	}
	c, length := d.rep.decodeLength(c, pos)
	return c, length, next
}

// decodeLength decodes a match's length, from 2 to 273 bytes.
func (l *lengthModel) decodeLength(c coder, pos uint32) (coder, uint64) {
	c, one := c.decodeBit(&l.notShort)
	if !one {
		c, n := c.decodeTree(unsafe.Pointer(&l.short[pos]), 8)
		return c, minMatch + n - 8
	}
	if c, one = c.decodeBit(&l.long); !one {
		c, n := c.decodeTree(unsafe.Pointer(&l.middle[pos]), 8)
		return c, minMatch + 8 + n - 8
	}
	c, n := c.decodeTree(unsafe.Pointer(&l.high), 256)
	return c, minMatch + 16 + n - 256
}
