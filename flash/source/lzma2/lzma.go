package lzma2

import "unsafe"

const (
	states     = 12
	firstMatch = 7 // states below it follow a literal
	positions  = 16
	maxLcLp    = 4
	minMatch   = 2
	maxMatch   = 273
)

// lengths is how the length of a match is coded.
type lengths struct {
	notShort, long prob
	short, middle  [positions][8]prob
	high           [256]prob
}

// model is all that adapts to the data.
type model struct {
	isMatch, longRep0                [states * positions]prob
	isRep, notRep0, notRep1, notRep2 [states]prob
	slot                             [4][64]prob
	far                              [128]prob // distances of 4 to 127, by slot
	align                            [16]prob
	match, rep                       lengths
	literals                         [1 << maxLcLp][0x300]prob
}

// even makes all bits as likely 0 as 1.
func (m *model) even() {
	all := unsafe.Slice((*prob)(unsafe.Pointer(m)), unsafe.Sizeof(*m)/unsafe.Sizeof(prob(0)))
	for i := range all {
		all[i] = evenProb
	}
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

// reset forgets what was learnt, and the distances.
func (d *decoder) reset() {
	d.model.even()
	d.state, d.reps = 0, [4]uint32{}
}

func (d *decoder) props(b byte) bool {
	if b >= 9*5*5 {
		return false
	}
	d.lc, d.lp, d.pb = uint32(b%9), uint32(b/9%5), uint32(b/45)
	return d.lc+d.lp <= maxLcLp
}

// decode decodes symbols until the ring's place is enough or more, but at most most.
// It returns false where something comes that no encoder writes, or the input is used
// up before.
func (d *decoder) decode(enough, most int) bool {
	out := unsafe.Pointer(unsafe.SliceData(d.ring.bytes))
	c, at, state := d.coder, d.ring.at, d.state
	begin, reach, lap := d.ring.begin, d.ring.reach, uint32(d.ring.before)-uint32(d.ring.begin)
	posMask, literalMask, lc := uint32(1)<<d.pb-1, uint64(1)<<d.lp-1, d.lc&15
	last, inEnd := uint64(d.ring.back(at, 1)), uintptr(unsafe.Pointer(&d.in[d.inEnd]))
	for at < enough && uintptr(c.next) <= inEnd {
		pos := lap + uint32(at)
		var one bool
		if c, one = c.bit(&d.isMatch[state*positions+pos&posMask]); !one {
			p := &d.literals[((uint64(pos)&literalMask)<<lc+last>>(8-lc))&(1<<maxLcLp-1)]
			if state < firstMatch {
				c, last = c.tree(unsafe.Pointer(p), 0x100)
			} else {
				c, last = c.matched(p, d.ring.back(at, int(d.reps[0])+1))
			}
			last &= 0xff
			*(*byte)(unsafe.Add(out, at)) = byte(last)
			at++
			state = uint32(afterLiteral[state])
			continue
		}
		var length uint64
		if c, one = c.bit(&d.isRep[state]); !one {
			c, length = d.newMatch(c, pos&posMask)
			state = 7 + state/firstMatch*3
		} else {
			c, length, state = d.repeated(c, pos&posMask, state)
		}
		dist, n := int(d.reps[0])+1, int(length)
		if n > most-at {
			return false
		}
		if dist >= 16 && dist <= at-begin && dist <= reach {
			copy16(unsafe.Add(out, at), dist, n)
		} else if !d.ring.repeat(at, dist, n) {
			return false
		}
		at += n
		last = uint64(*(*byte)(unsafe.Add(out, at-1)))
	}
	d.coder, d.ring.at, d.state = c, at, state
	return at >= enough && uintptr(c.next) <= inEnd
}

// copy16 copies in pieces of 16 bytes, up to 32 more than it should.
func copy16(to unsafe.Pointer, dist, length int) {
	from := unsafe.Add(to, -dist)
	*(*[16]byte)(to) = *(*[16]byte)(from)
	*(*[16]byte)(unsafe.Add(to, 16)) = *(*[16]byte)(unsafe.Add(from, 16))
	for i := 32; i < length; i += 16 {
		*(*[16]byte)(unsafe.Add(to, i)) = *(*[16]byte)(unsafe.Add(from, i))
	}
}

// newMatch reads a length and a distance.
func (d *decoder) newMatch(c coder, pos uint32) (coder, uint64) {
	c, length := d.match.decode(c, pos)
	c, slot := c.tree(unsafe.Pointer(&d.slot[min(length-minMatch, 3)]), 64)
	slot -= 64
	dist := slot
	if slot >= 4 {
		n := slot>>1 - 1
		dist = (2 | slot&1) << n
		var low uint64
		if slot < 14 {
			c, low = c.reverse(unsafe.Pointer(&d.far[dist-slot]), n)
		} else {
			c, low = c.even(n - 4)
			dist += low << 4
			c, low = c.reverse(unsafe.Pointer(&d.align), 4)
		}
		dist += low
	}
	d.reps = [4]uint32{uint32(dist), d.reps[0], d.reps[1], d.reps[2]}
	return c, length
}

// repeated reads which of the last distances is meant, and a length.
func (d *decoder) repeated(c coder, pos, state uint32) (coder, uint64, uint32) {
	next := 8 + state/firstMatch*3
	c, one := c.bit(&d.notRep0[state])
	if !one {
		if c, one = c.bit(&d.longRep0[state*positions+pos]); !one {
			return c, 1, 9 + state/firstMatch*2
		}
	} else if c, one = c.bit(&d.notRep1[state]); !one {
		d.reps[0], d.reps[1] = d.reps[1], d.reps[0]
	} else if c, one = c.bit(&d.notRep2[state]); !one {
		d.reps = [4]uint32{d.reps[2], d.reps[0], d.reps[1], d.reps[3]}
	} else {
		d.reps = [4]uint32{d.reps[3], d.reps[0], d.reps[1], d.reps[2]}
	}
	c, length := d.rep.decode(c, pos)
	return c, length, next
}

func (l *lengths) decode(c coder, pos uint32) (coder, uint64) {
	c, one := c.bit(&l.notShort)
	if !one {
		c, n := c.tree(unsafe.Pointer(&l.short[pos]), 8)
		return c, minMatch + n - 8
	}
	if c, one = c.bit(&l.long); !one {
		c, n := c.tree(unsafe.Pointer(&l.middle[pos]), 8)
		return c, minMatch + 8 + n - 8
	}
	c, n := c.tree(unsafe.Pointer(&l.high), 256)
	return c, minMatch + 16 + n - 256
}
