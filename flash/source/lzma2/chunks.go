package lzma2

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"unsafe"

	"slipway/flash/source/inflate"
)

// chunkReader decodes LZMA2's chunks, which are compressed or stored.
type chunkReader struct {
	*decoder
	src *bufio.Reader
	out inflate.Out

	known, models bool // a dictionary was begun; the model is initialised
}

// readAll decodes all chunks up to the end mark, which is a zero byte.
func (c *chunkReader) readAll() error {
	for {
		control, err := c.src.ReadByte()
		if err != nil {
			return err
		}
		switch {
		case control == 0:
			return nil
		case control >= 0x80:
			err = c.readCompressed(control)
		case control <= 2:
			err = c.readStored(control)
		default:
			err = fmt.Errorf("a chunk of kind %#x", control)
		}
		if err != nil {
			return err
		}
	}
}

// readStored copies a stored chunk to the ring and the output. Control 1 begins a new dictionary.
func (c *chunkReader) readStored(control byte) error {
	if control == 1 {
		c.ring.resetDictionary()
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
		c.ring.wrapAround()
		k := min(n, c.ring.lapEnd()-c.ring.at)
		from := c.ring.at
		if _, err := io.ReadFull(c.src, c.ring.bytes[from:from+k]); err != nil {
			return err
		}
		c.ring.at += k
		n -= k
		if err := c.sendOutput(from); err != nil {
			return err
		}
	}
	return nil
}

var (
	errNoDictionary = fmt.Errorf("a chunk needs what was never begun")
	errSymbols      = fmt.Errorf("a chunk is not what any packer writes")
)

// readCompressed decodes a chunk of LZMA to the output. Unused input is an error.
func (c *chunkReader) readCompressed(control byte) error {
	var head [5]byte
	if _, err := io.ReadFull(c.src, head[:4]); err != nil {
		return err
	}
	unpacked := int(control&0x1f)<<16 + int(binary.BigEndian.Uint16(head[:])) + 1
	size := int(binary.BigEndian.Uint16(head[2:])) + 1
	if err := c.resetState(control >> 5 & 3); err != nil {
		return err
	}
	if err := c.readChunk(size); err != nil {
		return err
	}
	for unpacked > 0 {
		c.ring.wrapAround()
		from := c.ring.at
		if !c.decodeSymbols(min(from+unpacked, c.ring.lapEnd()), from+unpacked) {
			return errSymbols
		}
		unpacked -= c.ring.at - from
		if err := c.sendOutput(from); err != nil {
			return err
		}
	}
	if !c.finish() {
		return errSymbols
	}
	return nil
}

// resetState resets what reset, bits 5 and 6 of the control byte, says: nothing, the model, also
// the properties, which it reads, or also the dictionary. It fails if one was never set.
func (c *chunkReader) resetState(reset byte) error {
	if reset == 3 {
		c.ring.resetDictionary()
		c.known = true
	}
	if reset >= 2 {
		b, err := c.src.ReadByte()
		if err != nil {
			return err
		}
		if !c.setProperties(b) {
			return fmt.Errorf("a chunk has the properties %#x", b)
		}
		c.models = true
	}
	if !c.known || !c.models {
		return errNoDictionary
	}
	if reset >= 1 {
		c.resetModel()
	}
	return nil
}

// readChunk reads size bytes of a chunk, and starts the range decoder.
func (c *chunkReader) readChunk(size int) error {
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

// finish reports whether the range decoder used the whole chunk and ended as the encoder does.
// It first takes the byte, if any, that the next bit would take.
func (c *chunkReader) finish() bool {
	if c.size < smallest {
		c.code = c.code<<8 | uint64(*(*byte)(c.next))
		c.next = unsafe.Add(c.next, 1)
	}
	return c.next == unsafe.Pointer(&c.in[c.inEnd]) && c.code == 0
}

// sendOutput sends the decoded bytes since from. Known long runs of zeros go to SkipZeros.
func (c *chunkReader) sendOutput(from int) error {
	for _, z := range c.ring.zeros {
		if z.to-z.from < minRunBytes {
			continue
		}
		if err := c.writeBytes(c.ring.bytes[from:z.from]); err != nil {
			return err
		}
		if err := c.out.SkipZeros(int64(z.to - z.from)); err != nil {
			return err
		}
		from = z.to
	}
	c.ring.zeros = c.ring.zeros[:0]
	return c.writeBytes(c.ring.bytes[from:c.ring.at])
}

// writeBytes writes p to the output, unless it is empty.
func (c *chunkReader) writeBytes(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, err := c.out.Write(p)
	return err
}
