package lzma2

import "unsafe"

// coder is a range decoder. It is a value, so that its fields stay in registers: each
// function takes a coder and returns the changed one. It reads through a pointer. That
// is safe, since a symbol takes fewer bytes than there are zeros after the input. After
// each symbol the caller checks that the pointer is still in the input.
type coder struct {
	size uint64         // of the range, below 1<<32
	code uint64         // below size, unless the input is damaged
	next unsafe.Pointer // byte of the input
}

// prob is the probability, of 2048, that a bit is 0.
type prob = uint16

const (
	probBits  = 11
	evenProb  = 1 << probBits / 2
	adapts    = 5
	smallest  = 1 << 24                             // a smaller range takes another byte
	offset    = 1<<64 + 1<<adapts - 1 - 1<<probBits // to round up negative numbers
	mostInput = 32                                  // more than the bytes that one symbol can take
)

// decodeBit decodes one bit, with a branch, and adapts its probability. It is for predictable bits.
func (c coder) decodeBit(p *prob) (coder, bool) {
	if c.size < smallest {
		c.code = c.code<<8 | uint64(*(*byte)(c.next))
		c.size <<= 8
		c.next = unsafe.Add(c.next, 1)
	}
	v := uint64(*p)
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

// decodeTree decodes a number below limit, a power of two, the highest bit first, and returns it
// with limit added. It does not branch, since these bits are hard to predict. less is all ones if
// the bit is 0, and selects between two values. Both possible next probs are read before the bit is
// known. p may therefore be read to twice its length.
func (c coder) decodeTree(p unsafe.Pointer, limit uint64) (coder, uint64) {
	m := uint64(1)
	v := uint64(*(*prob)(unsafe.Add(p, 2)))
	for m < limit {
		if c.size < smallest {
			c.code = c.code<<8 | uint64(*(*byte)(c.next))
			c.size <<= 8
			c.next = unsafe.Add(c.next, 1)
		}
		zero, one := uint64(*(*prob)(unsafe.Add(p, 4*m))), uint64(*(*prob)(unsafe.Add(p, 4*m+2)))
		bound := c.size >> probBits * v
		rest := c.size - bound
		c.code -= bound
		less := uint64(int64(c.code) >> 63)
		c.size = rest + (bound-rest)&less
		c.code += bound & less
		*(*prob)(unsafe.Add(p, 2*m)) = prob(v - uint64(int64(v+less&offset)>>adapts))
		v = one + (zero-one)&less
		m = 2*m + 1 + less
	}
	return c, m
}

// decodeMatched decodes a byte after a match, as decodeTree does. match is the byte that would
// continue the match. While the bits agree with it, their probs depend on it.
func (c coder) decodeMatched(p *[0x300]prob, match byte) (coder, uint64) {
	m, other, where := uint64(1), uint64(match), uint64(0x100)
	for m < 0x100 {
		if c.size < smallest {
			c.code = c.code<<8 | uint64(*(*byte)(c.next))
			c.size <<= 8
			c.next = unsafe.Add(c.next, 1)
		}
		other <<= 1
		same := other & where
		at := (*prob)(unsafe.Add(unsafe.Pointer(p), 2*(where+same+m)))
		v := uint64(*at)
		bound := c.size >> probBits * v
		rest := c.size - bound
		c.code -= bound
		less := uint64(int64(c.code) >> 63)
		c.size = rest + (bound-rest)&less
		c.code += bound & less
		*at = prob(v - uint64(int64(v+less&offset)>>adapts))
		m = 2*m + 1 + less
		where = same ^ where&less // stays if the bit agrees with match
	}
	return c, m
}

// decodeReverse decodes n bits as decodeTree does, the lowest first. The value is below 1<<n.
func (c coder) decodeReverse(p unsafe.Pointer, n uint64) (coder, uint64) {
	m, sum := uint64(1), uint64(0)
	for i := range n {
		if c.size < smallest {
			c.code = c.code<<8 | uint64(*(*byte)(c.next))
			c.size <<= 8
			c.next = unsafe.Add(c.next, 1)
		}
		at := (*prob)(unsafe.Add(p, 2*m))
		v := uint64(*at)
		bound := c.size >> probBits * v
		rest := c.size - bound
		c.code -= bound
		less := uint64(int64(c.code) >> 63)
		c.size = rest + (bound-rest)&less
		c.code += bound & less
		*at = prob(v - uint64(int64(v+less&offset)>>adapts))
		m = 2*m + 1 + less
		sum += (1 + less) << (i & 63)
	}
	return c, sum
}

// decodeDirect decodes n bits of equal probability, the highest first.
func (c coder) decodeDirect(n uint64) (coder, uint64) {
	v := uint64(0)
	for range n {
		if c.size < smallest {
			c.code = c.code<<8 | uint64(*(*byte)(c.next))
			c.size <<= 8
			c.next = unsafe.Add(c.next, 1)
		}
		c.size >>= 1
		c.code -= c.size
		less := uint64(int64(c.code) >> 63)
		c.code += c.size & less
		v = 2*v + 1 + less
	}
	return c, v
}
