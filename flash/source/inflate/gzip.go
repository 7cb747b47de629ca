package inflate

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Gzip decodes a gzip file of any number of members into out. It verifies each member's
// checksum and length, and that only zeros follow the last one.
func Gzip(src io.Reader, out Out) error {
	g := &unpacker{d: newDecoder(src), out: out}
	for {
		switch err := g.nextHeader(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := g.decodeMember(); err != nil {
			return err
		}
	}
}

type unpacker struct {
	d       *decoder
	out     Out
	buf     [historyBytes + roomBytes]byte
	at      int // end of the output in buf
	sum     uint64
	head    uint32 // the checksum of the header as far as it was read
	members int
}

// decodeMember decodes a member after its header, and verifies its checksum and length.
func (g *unpacker) decodeMember() error {
	g.sum = 0
	g.members++
	g.d.startStream()
	if err := g.decodeStream(); err != nil {
		return err
	}
	return g.checkTrailer()
}

// decodeStream decodes a member's deflate stream and sends the output.
func (g *unpacker) decodeStream() error {
	for g.d.phase != atEnd {
		if g.at == len(g.buf) {
			g.at = copy(g.buf[:], g.buf[len(g.buf)-historyBytes:])
		}
		to, err := g.d.decodeUntil(g.buf[:], g.at, len(g.buf))
		from := g.at
		g.at = to
		if err := g.sendOutput(from, to); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendOutput adds buf[from:to] to the checksum and sends it. Known zeros go to SkipZeros.
func (g *unpacker) sendOutput(from, to int) error {
	for _, z := range g.d.zeros {
		if err := g.writeBytes(g.buf[from:z.from]); err != nil {
			return err
		}
		g.sum = IEEE.Zeros(g.sum, int64(z.to-z.from))
		if err := g.out.SkipZeros(int64(z.to - z.from)); err != nil {
			return err
		}
		from = z.to
	}
	return g.writeBytes(g.buf[from:to])
}

// writeBytes adds p to the checksum and writes it to out, unless it is empty.
func (g *unpacker) writeBytes(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	g.sum = IEEE.Update(g.sum, p)
	_, err := g.out.Write(p)
	return err
}

const (
	hasHeaderSum = 1 << 1
	hasExtra     = 1 << 2
	hasName      = 1 << 3
	hasComment   = 1 << 4
	unknownFlags = 0xe0

	maxText = 64 << 10 // of a name or a comment: more than a path can have
)

// nextHeader reads the next header. After a member, it returns io.EOF if only zeros are left.
func (g *unpacker) nextHeader() error {
	if g.members > 0 {
		if err := g.skipPadding(); err != nil {
			return err
		}
	}
	return g.parseHeader()
}

// skipPadding skips zeros after a member, as tapes have them. It returns io.EOF at the end.
func (g *unpacker) skipPadding() error {
	for {
		if err := g.d.fillWindow(4 << 10); err != nil {
			return err
		}
		for _, v := range g.d.window[g.d.next:g.d.have] {
			if v != 0 {
				return nil
			}
			g.d.next++
		}
		if g.d.ended {
			return io.EOF
		}
	}
}

// takeBytes returns n more input bytes, valid until the next read, and adds them to the header CRC.
func (g *unpacker) takeBytes(n int) ([]byte, error) {
	if err := g.d.fillWindow(n); err != nil {
		return nil, err
	}
	if g.d.have-g.d.next < n {
		return nil, io.ErrUnexpectedEOF
	}
	p := g.d.window[g.d.next : g.d.next+n]
	g.d.next += n
	g.head = crc32.Update(g.head, crc32.IEEETable, p)
	return p, nil
}

// parseHeader reads a member's header, skips its optional fields, and verifies its checksum.
func (g *unpacker) parseHeader() error {
	at := g.d.offset()
	g.head = 0
	p, err := g.takeBytes(10)
	if err != nil && g.members > 0 && g.d.window[g.d.next] != 0x1f {
		return corruptError("%s at %d", g.describeUnknown(), at)
	}
	if err != nil {
		return err
	}
	flags := p[3]
	switch {
	case p[0] != 0x1f || p[1] != 0x8b:
		return corruptError("%s at %d", g.describeUnknown(), at)
	case p[2] != 8 || flags&unknownFlags != 0:
		return fmt.Errorf("the member at %d is packed in a way that gzip does not define (method %d, flags %#x): pack it again with gzip", at, p[2], flags)
	}
	if flags&hasExtra != 0 {
		if p, err = g.takeBytes(2); err == nil {
			_, err = g.takeBytes(int(binary.LittleEndian.Uint16(p)))
		}
		if err != nil {
			return err
		}
	}
	for _, flag := range []byte{hasName, hasComment} {
		if flags&flag != 0 {
			if err := g.skipText(); err != nil {
				return err
			}
		}
	}
	if flags&hasHeaderSum == 0 {
		return nil
	}
	sum := uint16(g.head)
	if p, err = g.takeBytes(2); err == nil && binary.LittleEndian.Uint16(p) != sum {
		err = corruptError("the header at %d does not match its checksum", at)
	}
	return err
}

// describeUnknown returns error words for data without gzip's magic at the start or after a member.
func (g *unpacker) describeUnknown() string {
	if g.members == 0 {
		return "no gzip header"
	}
	return "something that is no gzip follows the data,"
}

// skipText skips a name or comment, which ends with a zero after less than maxText bytes.
func (g *unpacker) skipText() error {
	for range maxText {
		if p, err := g.takeBytes(1); err != nil || p[0] == 0 {
			return err
		}
	}
	return corruptError("the name or comment before %d has no end", g.d.offset())
}

// checkTrailer compares the checksum and length after the data with the output's.
func (g *unpacker) checkTrailer() error {
	if err := g.d.alignByte(); err != nil {
		return err
	}
	at := g.d.offset()
	p, err := g.takeBytes(8)
	if err != nil {
		return err
	}
	if got, want := uint32(g.sum), binary.LittleEndian.Uint32(p); got != want {
		return corruptError("the data before %d has the checksum %08x; the file names %08x", at, got, want)
	}
	if got, want := uint32(g.d.made), binary.LittleEndian.Uint32(p[4:]); got != want {
		return corruptError("the data before %d is %d bytes; the file names %d (both without the multiples of 4 GiB)", at, got, want)
	}
	return nil
}
