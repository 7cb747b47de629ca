package source

import (
	"cmp"
	"context"
	"fmt"
	"io"
)

// cutter turns a decoder's output into joined pieces. It drops unwanted bytes and finds zeros.
type cutter struct {
	ctx  context.Context
	sink func(Piece) error
	all  bool
	want []Span // the spans not yet passed

	peeks bool // decoding ends after the last wanted byte, with errPeeked

	off    int64   // of the next byte
	limit  int64   // of the section; -1: unknown until decoded
	memory *memory // nil: no current piece
	start  int64   // of the first byte in memory
	zeros  Span    // held back, since more may follow

	failed error // the sink's error
}

var errTooLarge = fmt.Errorf("it unpacks to more than %d TiB, more than any disk has", int64(maxImageBytes)>>40)

// newCutter returns a cutter for section s that sends only the bytes in want; all if it is nil.
func newCutter(ctx context.Context, s Section, want []Span, sink func(Piece) error) *cutter {
	c := &cutter{ctx: ctx, sink: sink, all: want == nil, want: want, off: s.Off, limit: -1}
	if s.Len >= 0 {
		c.limit = s.Off + s.Len
	}
	return c
}

// Write adds p as the next bytes of the image. It copies wanted bytes to pieces and drops others.
func (c *cutter) Write(p []byte) (int, error) {
	rest := p
	err := c.eachPart(int64(len(p)), func(n int64, wanted bool) (int64, error) {
		if wanted {
			n = int64(copy(c.growPiece(n), rest))
		}
		rest = rest[n:]
		return n, nil
	})
	return len(p) - len(rest), err
}

// readFrom adds n bytes of a file, from offset at, to the image. It reads only wanted bytes.
func (c *cutter) readFrom(r io.ReaderAt, at, n int64) error {
	return c.eachPart(n, func(n int64, wanted bool) (int64, error) {
		if wanted {
			p := c.growPiece(n)
			if _, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(p))), p); err != nil {
				return 0, err
			}
			n = int64(len(p))
		}
		at += n
		return n, nil
	})
}

// skipZeros adds n zeros as the next bytes of the image. It queues a run of 64 KiB or more as one
// piece without data, and puts fewer zeros into the current piece.
func (c *cutter) skipZeros(n int64) error {
	return c.eachPart(n, func(n int64, wanted bool) (int64, error) {
		if !wanted {
			return n, nil
		}
		// The data after the zeros keeps the alignment for direct I/O.
		lead := -c.off & (alignment - 1)
		if many := (n - lead) &^ (alignment - 1); lead == 0 && many >= minZeroBytes {
			if err := c.endPiece(); err != nil {
				return 0, err
			}
			return many, c.queuePiece(Piece{Off: c.off, Len: many})
		} else if many >= minZeroBytes {
			n = lead
		}
		p := c.growPiece(n)
		clear(p)
		return int64(len(p)), nil
	})
}

// eachPart splits the next n bytes into parts that are wanted or not, calls take for each, and
// advances by the number of bytes that take used. It ends the current piece at unwanted parts and
// at each MiB. Bytes beyond the section, or with peeks after the last wanted, are an error.
func (c *cutter) eachPart(n int64, take func(n int64, wanted bool) (int64, error)) error {
	if n < 0 || n > maxImageBytes-c.off {
		return errTooLarge
	}
	if c.limit >= 0 && n > c.limit-c.off {
		return errDamaged
	}
	for n > 0 {
		if err := context.Cause(c.ctx); err != nil {
			return err
		}
		k, wanted := c.nextPart(n)
		if c.peeks && len(c.want) == 0 { // zeros are held back, and more of them may follow up to the image's end
			c.failed = cmp.Or(c.flush(), errPeeked)
			return c.failed
		}
		if !wanted || c.off%pieceBytes == 0 {
			if err := c.endPiece(); err != nil {
				return err
			}
		}
		k, err := take(k, wanted)
		if err != nil {
			return err
		}
		c.off, n = c.off+k, n-k
	}
	return nil
}

// nextPart returns how many of the n next bytes are wanted or not, and which. It drops old spans.
func (c *cutter) nextPart(n int64) (int64, bool) {
	if c.all {
		return n, true
	}
	for len(c.want) > 0 && c.want[0].Off+c.want[0].Len <= c.off {
		c.want = c.want[1:]
	}
	switch {
	case len(c.want) == 0:
		return n, false
	case c.off < c.want[0].Off:
		return min(n, c.want[0].Off-c.off), false
	}
	return min(n, c.want[0].Off+c.want[0].Len-c.off), true
}

// growPiece returns memory for the next n bytes, fewer at the end of the current or a new piece.
func (c *cutter) growPiece(n int64) []byte {
	if c.memory == nil {
		c.memory, c.start = getMemory(), c.off
	}
	used := c.off - c.start
	return c.memory.bytes[used : used+min(n, pieceBytes-c.off%pieceBytes)]
}

// endPiece queues the current piece, if there is one, so that the next byte begins another.
func (c *cutter) endPiece() error {
	m := c.memory
	if m == nil {
		return nil
	}
	c.memory = nil
	defer m.release()
	return c.cutPieces(m, m.bytes[:c.off-c.start], c.start)
}

// cutPieces queues p, a part of m at offset off of the image, as pieces. If every byte is wanted,
// no map names the zeros: it then searches p for them, and queues them without data.
func (c *cutter) cutPieces(m *memory, p []byte, off int64) error {
	for len(p) > 0 {
		n, zero := len(p), false
		if c.all {
			n, zero = leadingRun(p)
		}
		piece := Piece{Off: off, Len: int64(n)}
		if !zero {
			piece.Data, piece.memory = p[:n:n], m
			m.users.Add(1)
		}
		if err := c.queuePiece(piece); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// leadingRun returns the length of the run of data or zeros at the start of p, and whether it is
// zeros. Only whole blocks count as zeros, so that the data after them is aligned for direct I/O.
// Less than 64 KiB of zeros are data, unless p has nothing else.
func leadingRun(p []byte) (int, bool) {
	run, at := 0, 0
	for ; at < len(p); at += alignment {
		if at+alignment <= len(p) && IsZero(p[at:at+alignment]) {
			run += alignment
			continue
		}
		if run >= minZeroBytes {
			break
		}
		run = 0
	}
	switch at = min(at, len(p)); {
	case run == at && (run == len(p) || run >= minZeroBytes):
		return run, true
	case run >= minZeroBytes:
		return at - run, false
	}
	return len(p), false
}

// queuePiece holds a piece of zeros back, to join it with more. It sends data after such zeros.
func (c *cutter) queuePiece(p Piece) error {
	if p.Data == nil && c.zeros.Len > 0 && p.Off == c.zeros.Off+c.zeros.Len {
		c.zeros.Len += p.Len
		return nil
	}
	if err := c.sendZeros(); err != nil {
		p.Free()
		return err
	}
	if p.Data == nil {
		c.zeros = Span{p.Off, p.Len}
		return nil
	}
	return c.send(p)
}

// sendZeros sends the zeros that are held back, if any.
func (c *cutter) sendZeros() error {
	z := c.zeros
	if z.Len == 0 {
		return nil
	}
	c.zeros = Span{}
	return c.send(Piece{Off: z.Off, Len: z.Len})
}

func (c *cutter) send(p Piece) error {
	c.failed = c.sink(p)
	return c.failed
}

// flush sends the current piece and the zeros that are held back.
func (c *cutter) flush() error {
	if err := c.endPiece(); err != nil {
		return err
	}
	return c.sendZeros()
}

// finishSection returns an error if a section of known length ended too early. Else it flushes.
func (c *cutter) finishSection() error {
	if c.limit >= 0 && c.off != c.limit {
		return errDamaged
	}
	return c.flush()
}

// freePiece frees the memory of an unfinished piece.
func (c *cutter) freePiece() {
	if c.memory != nil {
		c.memory.release()
		c.memory = nil
	}
}
