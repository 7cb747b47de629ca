package inflate

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"slipway/flash/source/crc"
)

// Gzip decodes a gzip file of any number of members into out, and proves each
// member's checksum and length, and that nothing but zeros follows the last one.
func Gzip(src io.Reader, out Out) error {
	g := &unpacker{d: newDecoder(src), out: out}
	for {
		switch err := g.header(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := g.member(); err != nil {
			return err
		}
	}
}

// Raw decodes a deflate stream without a frame, as zip files have them, into out. It
// returns the bytes of src that it used.
func Raw(src io.Reader, out Out) (int64, error) {
	g := &unpacker{d: newDecoder(src), out: out}
	g.d.begin()
	err := g.stream()
	if err == nil {
		err = g.d.align()
	}
	return g.d.at(), err
}

type unpacker struct {
	d       *decoder
	out     Out
	buf     [historyBytes + roomBytes]byte
	at      int // in buf, behind what was decoded
	sum     uint64
	members int
}

func (g *unpacker) member() error {
	g.sum = 0
	g.members++
	g.d.begin()
	if err := g.stream(); err != nil {
		return err
	}
	return g.trailer()
}

func (g *unpacker) stream() error {
	for g.d.phase != atEnd {
		if g.at == len(g.buf) {
			g.at = copy(g.buf[:], g.buf[len(g.buf)-historyBytes:])
		}
		to, err := g.d.fill(g.buf[:], g.at, len(g.buf))
		from := g.at
		g.at = to
		if err := g.hand(from, to); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hand hands on what was decoded, but the zeros that the decoder knows of.
func (g *unpacker) hand(from, to int) error {
	for _, z := range g.d.zeros {
		if err := g.write(g.buf[from:z.from]); err != nil {
			return err
		}
		g.sum = crc.IEEE.Zeros(g.sum, int64(z.to-z.from))
		if err := g.out.SkipZeros(int64(z.to - z.from)); err != nil {
			return err
		}
		from = z.to
	}
	return g.write(g.buf[from:to])
}

func (g *unpacker) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	g.sum = crc.IEEE.Update(g.sum, p)
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

// header reads a member's header. Behind the last member it returns io.EOF.
func (g *unpacker) header() error {
	if g.members > 0 {
		if err := g.padding(); err != nil {
			return err
		}
	}
	if err := g.fields(); err != nil {
		return err
	}
	return nil
}

// padding skips zeros between and behind members, as tapes leave them.
func (g *unpacker) padding() error {
	for {
		if err := g.d.want(4 << 10); err != nil {
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

// bytes takes n bytes of the input.
func (g *unpacker) bytes(n int) ([]byte, error) {
	if err := g.d.want(n); err != nil {
		return nil, err
	}
	if g.d.have-g.d.next < n {
		return nil, io.ErrUnexpectedEOF
	}
	p := g.d.window[g.d.next : g.d.next+n]
	g.d.next += n
	return p, nil
}

func (g *unpacker) fields() error {
	at := g.d.at()
	p, err := g.bytes(10)
	if err != nil && g.members > 0 && g.d.window[g.d.next] != 0x1f {
		return corrupt("%s at %d", g.strange(), at)
	}
	if err != nil {
		return err
	}
	sum := crc32.ChecksumIEEE(p)
	flags := p[3]
	switch {
	case p[0] != 0x1f || p[1] != 0x8b:
		return corrupt("%s at %d", g.strange(), at)
	case p[2] != 8 || flags&unknownFlags != 0:
		return fmt.Errorf("the member at %d is packed in a way that gzip does not define (method %d, flags %#x): pack it again with gzip", at, p[2], flags)
	}
	if flags&hasExtra != 0 {
		if sum, err = g.extra(sum); err != nil {
			return err
		}
	}
	for _, flag := range []byte{hasName, hasComment} {
		if flags&flag != 0 {
			if sum, err = g.text(sum); err != nil {
				return err
			}
		}
	}
	if flags&hasHeaderSum == 0 {
		return nil
	}
	if p, err = g.bytes(2); err == nil && binary.LittleEndian.Uint16(p) != uint16(sum) {
		err = corrupt("the header at %d does not match its checksum", at)
	}
	return err
}

func (g *unpacker) strange() string {
	if g.members == 0 {
		return "no gzip header"
	}
	return "something that is no gzip follows the data,"
}

func (g *unpacker) extra(sum uint32) (uint32, error) {
	p, err := g.bytes(2)
	if err != nil {
		return 0, err
	}
	sum = crc32.Update(sum, crc32.IEEETable, p)
	if p, err = g.bytes(int(binary.LittleEndian.Uint16(p))); err != nil {
		return 0, err
	}
	return crc32.Update(sum, crc32.IEEETable, p), nil
}

// text skips a name or a comment, which ends with a zero.
func (g *unpacker) text(sum uint32) (uint32, error) {
	for range maxText {
		p, err := g.bytes(1)
		if err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, crc32.IEEETable, p)
		if p[0] == 0 {
			return sum, nil
		}
	}
	return 0, corrupt("the name or comment before %d has no end", g.d.at())
}

func (g *unpacker) trailer() error {
	if err := g.d.align(); err != nil {
		return err
	}
	at := g.d.at()
	p, err := g.bytes(8)
	if err != nil {
		return err
	}
	if got, want := uint32(g.sum), binary.LittleEndian.Uint32(p); got != want {
		return corrupt("the data before %d has the checksum %08x, the file says %08x", at, got, want)
	}
	if got, want := uint32(g.d.made), binary.LittleEndian.Uint32(p[4:]); got != want {
		return corrupt("the data before %d is %d bytes, the file says %d (both without the multiples of 4 GiB)", at, got, want)
	}
	return nil
}
