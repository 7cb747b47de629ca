package source

import (
	"context"
	"fmt"
	"io"
)

// cutter makes pieces of what a decoder has: it leaves out what nobody wants, finds
// zeros, and joins what belongs together.
type cutter struct {
	ctx  context.Context
	sink func(Piece) error
	all  bool
	want []Span // what is left of it

	off    int64   // of the next byte
	limit  int64   // of the section; -1 where only decoding tells
	memory *memory // nil where no piece is begun
	start  int64   // of the first byte in memory
	zeros  Span    // found, and kept back as more may follow

	failed error // the sink's answer
}

var errTooLarge = fmt.Errorf("it unpacks to more than %d TiB, which no disk holds", int64(maxImageBytes)>>40)

func newCutter(ctx context.Context, s Section, want []Span, sink func(Piece) error) *cutter {
	c := &cutter{ctx: ctx, sink: sink, all: want == nil, want: want, off: s.Off, limit: -1}
	if s.Len >= 0 {
		c.limit = s.Off + s.Len
	}
	return c
}

// Write takes the next bytes of the image.
func (c *cutter) Write(p []byte) (int, error) {
	rest := p
	err := c.each(int64(len(p)), func(n int64, wanted bool) (int64, error) {
		if wanted {
			n = int64(copy(c.buffer(n), rest))
		}
		rest = rest[n:]
		return n, nil
	})
	return len(p) - len(rest), err
}

// readFrom takes the next n bytes of the image out of a file, and reads no others.
func (c *cutter) readFrom(r io.ReaderAt, at, n int64) error {
	return c.each(n, func(n int64, wanted bool) (int64, error) {
		if wanted {
			p := c.buffer(n)
			if _, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(p))), p); err != nil {
				return 0, err
			}
			n = int64(len(p))
		}
		at += n
		return n, nil
	})
}

// skipZeros takes n zeros as the next bytes of the image.
func (c *cutter) skipZeros(n int64) error {
	return c.each(n, func(n int64, wanted bool) (int64, error) {
		if !wanted {
			return n, nil
		}
		// What is direct I/O's before the zeros stays that after them.
		lead := -c.off & (alignment - 1)
		if many := (n - lead) &^ (alignment - 1); lead == 0 && many >= minZeroBytes {
			if err := c.end(); err != nil {
				return 0, err
			}
			return many, c.put(Piece{Off: c.off, Len: many})
		} else if many >= minZeroBytes {
			n = lead
		}
		p := c.buffer(n)
		clear(p)
		return int64(len(p)), nil
	})
}

// fill takes n bytes that repeat a pattern.
func (c *cutter) fill(pattern [4]byte, n int64) error {
	if pattern == [4]byte{} {
		return c.skipZeros(n)
	}
	return c.each(n, func(n int64, wanted bool) (int64, error) {
		if wanted {
			p := c.buffer(n)
			for i := range p {
				p[i] = pattern[(c.off+int64(i))&3]
			}
			n = int64(len(p))
		}
		return n, nil
	})
}

// each goes through the next n bytes in parts that are either wanted or not; take
// says how many of a part it took.
func (c *cutter) each(n int64, take func(n int64, wanted bool) (int64, error)) error {
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
		k, wanted := c.ahead(n)
		if !wanted || c.off%pieceBytes == 0 {
			if err := c.end(); err != nil {
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

// ahead says how many of the next n bytes share one fate, and whether they are wanted.
func (c *cutter) ahead(n int64) (int64, bool) {
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

// buffer is memory for the next bytes: n of them, or fewer where a piece ends before.
func (c *cutter) buffer(n int64) []byte {
	if c.memory == nil {
		c.memory, c.start = getMemory(one), c.off
	}
	used := c.off - c.start
	return c.memory.bytes[used : used+min(n, pieceBytes-c.off%pieceBytes)]
}

// end closes the piece that was begun.
func (c *cutter) end() error {
	m := c.memory
	if m == nil {
		return nil
	}
	c.memory = nil
	defer m.free()
	return c.share(m, m.bytes[:c.off-c.start], c.start)
}

// share makes pieces of p, which is a part of m. Where everything is wanted, nobody
// has said where the zeros are, so they are looked for.
func (c *cutter) share(m *memory, p []byte, off int64) error {
	for len(p) > 0 {
		n, zero := len(p), false
		if c.all {
			n, zero = leading(p)
		}
		piece := Piece{Off: off, Len: int64(n)}
		if !zero {
			piece.Data, piece.memory = p[:n:n], m
			m.users.Add(1)
		}
		if err := c.put(piece); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// addMemory takes the n bytes that m begins with as the next ones of the image, and m with
// them. They stay where they are, unless pieces may not lie like that.
func (c *cutter) addMemory(m *memory, n int64) error {
	defer m.free()
	if c.off%alignment != 0 {
		_, err := c.Write(m.bytes[:n])
		return err
	}
	if err := c.end(); err != nil {
		return err
	}
	rest, at := m.bytes[:n], int64(0)
	return c.each(n, func(n int64, wanted bool) (int64, error) {
		if at%alignment != 0 { // behind a span that does not end with a block
			if wanted {
				n = int64(copy(c.buffer(n), rest))
			}
		} else if wanted {
			if err := c.end(); err != nil {
				return 0, err
			}
			n = min(n, pieceBytes-c.off%pieceBytes)
			if err := c.share(m, rest[:n:n], c.off); err != nil {
				return 0, err
			}
		}
		rest, at = rest[n:], at+n
		return n, nil
	})
}

// leading is how much p begins with that is all zero, or has no longer run of zeros.
// Only whole blocks count, so that what follows zeros is where direct I/O wants it.
func leading(p []byte) (int, bool) {
	run, at := 0, 0
	for ; at < len(p); at += alignment {
		if at+alignment <= len(p) && isZero(p[at:at+alignment]) {
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

// put hands on a piece; zeros wait for those that may follow them.
func (c *cutter) put(p Piece) error {
	if p.Data == nil && c.zeros.Len > 0 && p.Off == c.zeros.Off+c.zeros.Len {
		c.zeros.Len += p.Len
		return nil
	}
	if err := c.handZeros(); err != nil {
		p.Free()
		return err
	}
	if p.Data == nil {
		c.zeros = Span{p.Off, p.Len}
		return nil
	}
	return c.hand(p)
}

func (c *cutter) handZeros() error {
	z := c.zeros
	if z.Len == 0 {
		return nil
	}
	c.zeros = Span{}
	return c.hand(Piece{Off: z.Off, Len: z.Len})
}

func (c *cutter) hand(p Piece) error {
	c.failed = c.sink(p)
	return c.failed
}

// flush hands on what is left.
func (c *cutter) flush() error {
	if err := c.end(); err != nil {
		return err
	}
	return c.handZeros()
}

// whole finds a section that ended too early.
func (c *cutter) whole() error {
	if c.limit >= 0 && c.off != c.limit {
		return errDamaged
	}
	return c.flush()
}

// drop frees what was never handed on.
func (c *cutter) drop() {
	if c.memory != nil {
		c.memory.free()
		c.memory = nil
	}
}
