package lzma2

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"unsafe"
)

// Out takes what is decoded.
type Out interface {
	Write(p []byte) (int, error) // p is the caller's
	SkipZeros(n int64) error     // n bytes of zeros are next
}

// chunks decodes LZMA2: chunks that are packed or plain.
type chunks struct {
	*decoder
	src *bufio.Reader
	out Out

	known, models bool // there is a dictionary, and there are models
}

// all decodes up to the end mark.
func (c *chunks) all() error {
	for {
		control, err := c.src.ReadByte()
		if err != nil {
			return err
		}
		switch {
		case control == 0:
			return nil
		case control >= 0x80:
			err = c.packed(control)
		case control <= 2:
			err = c.plain(control)
		default:
			err = fmt.Errorf("a chunk of kind %#x", control)
		}
		if err != nil {
			return err
		}
	}
}

// plain takes a chunk that is not packed.
func (c *chunks) plain(control byte) error {
	if control == 1 {
		c.ring.forget()
		c.known, c.models = true, false
	}
	var head [2]byte
	if _, err := io.ReadFull(c.src, head[:]); err != nil {
		return err
	}
	if !c.known {
		return errNoDictionary
	}
	for n := int(binary.BigEndian.Uint16(head[:])) + 1; n > 0; {
		c.ring.around()
		k := min(n, c.ring.lapEnd()-c.ring.at)
		from := c.ring.at
		if _, err := io.ReadFull(c.src, c.ring.bytes[from:from+k]); err != nil {
			return err
		}
		c.ring.at += k
		n -= k
		if err := c.hand(from); err != nil {
			return err
		}
	}
	return nil
}

var (
	errNoDictionary = fmt.Errorf("a chunk needs what was never begun")
	errSymbols      = fmt.Errorf("a chunk is not what any packer writes")
)

// packed decodes a chunk of LZMA.
func (c *chunks) packed(control byte) error {
	var head [5]byte
	if _, err := io.ReadFull(c.src, head[:4]); err != nil {
		return err
	}
	unpacked := int(control&0x1f)<<16 + int(binary.BigEndian.Uint16(head[:])) + 1
	size := int(binary.BigEndian.Uint16(head[2:])) + 1
	if err := c.begin(control >> 5 & 3); err != nil {
		return err
	}
	if err := c.load(size); err != nil {
		return err
	}
	for unpacked > 0 {
		c.ring.around()
		from := c.ring.at
		if !c.decode(min(from+unpacked, c.ring.lapEnd()), from+unpacked) {
			return errSymbols
		}
		unpacked -= c.ring.at - from
		if err := c.hand(from); err != nil {
			return err
		}
	}
	if !c.finished() {
		return errSymbols
	}
	return nil
}

// begin does what a chunk asks for: nothing, new models, and new properties, and a
// new dictionary.
func (c *chunks) begin(reset byte) error {
	if reset == 3 {
		c.ring.forget()
		c.known = true
	}
	if reset >= 2 {
		b, err := c.src.ReadByte()
		if err != nil {
			return err
		}
		if !c.props(b) {
			return fmt.Errorf("a chunk has the properties %#x", b)
		}
		c.models = true
	}
	if !c.known || !c.models {
		return errNoDictionary
	}
	if reset >= 1 {
		c.reset()
	}
	return nil
}

// load reads a chunk, and begins to decode it.
func (c *chunks) load(size int) error {
	c.in = c.in[:size+mostInput]
	if _, err := io.ReadFull(c.src, c.in[:size]); err != nil {
		return err
	}
	clear(c.in[size:])
	if size < 5 || c.in[0] != 0 {
		return errSymbols
	}
	c.coder = coder{size: 1<<32 - 1, code: uint64(binary.BigEndian.Uint32(c.in[1:])), next: unsafe.Pointer(&c.in[5])}
	c.inEnd = size
	return nil
}

// finished says whether the coder came out where the packer left off.
func (c *chunks) finished() bool {
	if c.size < smallest {
		c.code = c.code<<8 | uint64(*(*byte)(c.next))
		c.next = unsafe.Add(c.next, 1)
	}
	return c.next == unsafe.Pointer(&c.in[c.inEnd]) && c.code == 0
}

// hand hands on what was decoded, but the zeros that are known.
func (c *chunks) hand(from int) error {
	for _, z := range c.ring.zeros {
		if z.to-z.from < minRunBytes {
			continue
		}
		if err := c.write(c.ring.bytes[from:z.from]); err != nil {
			return err
		}
		if err := c.out.SkipZeros(int64(z.to - z.from)); err != nil {
			return err
		}
		from = z.to
	}
	c.ring.zeros = c.ring.zeros[:0]
	return c.write(c.ring.bytes[from:c.ring.at])
}

func (c *chunks) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, err := c.out.Write(p)
	return err
}
