package lzma2

import "unsafe"

// coder is a range decoder. It is a value, so that its fields stay in registers: each
// function takes one and returns what became of it. It reads through a pointer, which
// is safe as a symbol takes fewer bytes than there are zeros behind the input, and
// after each symbol its caller looks whether it is still in the input.
type coder struct {
	size uint32 // of the range
	code uint32
	next int // byte of the input
}

// prob is how likely it is, of 2048, that a bit is 0.
type prob = uint16

const (
	probBits  = 11
	evenProb  = 1 << probBits / 2
	adapts    = 5
	smallest  = 1 << 24 // a smaller range takes another byte
	rounding  = 1<<adapts - 1 - 1<<probBits
	mostInput = 32 // more than the bytes that one symbol can take
)

// bit decodes one whose prob is unlikely to surprise: it branches.
func (c coder) bit(in unsafe.Pointer, p *prob) (coder, bool) {
	if c.size < smallest {
		c.code = c.code<<8 | uint32(*(*byte)(unsafe.Add(in, c.next)))
		c.size <<= 8
		c.next++
	}
	v := uint32(*p)
	bound := c.size >> probBits * v
	if c.code < bound {
		c.size = bound
		*p = prob(v + (1<<probBits-v)>>adapts)
		return c, false
	}
	c.size -= bound
	c.code -= bound
	*p = prob(v - v>>adapts)
	return c, true
}

// tree decodes a number of n bits, the highest first, and returns it with a 1 before
// it. It does not branch, as these bits are hard to foresee: less is all ones where
// the bit is 0, and then takes the one thing instead of the other.
func (c coder) tree(in unsafe.Pointer, p unsafe.Pointer, n int) (coder, uint32) {
	m := uint32(1)
	for range n {
		if c.size < smallest {
			c.code = c.code<<8 | uint32(*(*byte)(unsafe.Add(in, c.next)))
			c.size <<= 8
			c.next++
		}
		at := (*prob)(unsafe.Add(p, 2*m))
		v := uint32(*at)
		bound := c.size >> probBits * v
		less := uint32((int64(c.code) - int64(bound)) >> 63)
		rest := c.size - bound
		c.size = rest ^ (rest^bound)&less
		c.code -= bound &^ less
		*at = prob(int32(v) - (int32(v)+int32(less)&rounding)>>adapts)
		m = 2*m + 1 + less
	}
	return c, m
}

// matched is tree for a byte after a match, where match is what would have continued
// that: as long as the bits are its bits, their probs depend on it.
func (c coder) matched(in unsafe.Pointer, p *[0x300]prob, match byte) (coder, uint32) {
	m, other, offset := uint32(1), uint32(match), uint32(0x100)
	for range 8 {
		if c.size < smallest {
			c.code = c.code<<8 | uint32(*(*byte)(unsafe.Add(in, c.next)))
			c.size <<= 8
			c.next++
		}
		other <<= 1
		same := other & offset
		at := (*prob)(unsafe.Add(unsafe.Pointer(p), 2*(offset+same+m)))
		v := uint32(*at)
		bound := c.size >> probBits * v
		less := uint32((int64(c.code) - int64(bound)) >> 63)
		rest := c.size - bound
		c.size = rest ^ (rest^bound)&less
		c.code -= bound &^ less
		*at = prob(int32(v) - (int32(v)+int32(less)&rounding)>>adapts)
		m = 2*m + 1 + less
		offset = same ^ offset&less // kept where the bit is that of match
	}
	return c, m
}

// reverse decodes a number of n bits, the lowest first.
func (c coder) reverse(in unsafe.Pointer, p unsafe.Pointer, n uint32) (coder, uint32) {
	m, v := uint32(1), uint32(0)
	for i := range n {
		var one bool
		if c, one = c.bit(in, (*prob)(unsafe.Add(p, 2*m))); one {
			m = 2*m + 1
			v |= 1 << i
		} else {
			m *= 2
		}
	}
	return c, v
}

// even decodes n bits that are as likely 0 as 1, the highest first.
func (c coder) even(in unsafe.Pointer, n uint32) (coder, uint32) {
	v := uint32(0)
	for range n {
		if c.size < smallest {
			c.code = c.code<<8 | uint32(*(*byte)(unsafe.Add(in, c.next)))
			c.size <<= 8
			c.next++
		}
		c.size >>= 1
		c.code -= c.size
		less := uint32(int32(c.code) >> 31)
		c.code += c.size & less
		v = 2*v + 1 + less
	}
	return c, v
}
