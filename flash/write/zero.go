package write

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"golang.org/x/sys/unix"

	"slipway/flash/source"
)

// maxZeroBytes is how much one call zeroes, so that the user can interrupt a slow device.
const maxZeroBytes = 64 << 20

// zeroAll makes the spans without data read as zeros, because dm-verity and file systems with
// zeroed tables must not find old data. It runs after the data are written, so that a device that
// holds the image already is not marked.
func (c *Copy) zeroAll(ctx context.Context, r *run) error {
	return r.eachEmpty(func(s source.Span, how string) error { return c.clearSpan(ctx, r, s, how) })
}

// eachEmpty calls work with each span without data, until work fails. how is Zero, or r.Holes for
// one that the map leaves out ("" is Zero too).
func (r *run) eachEmpty(work func(s source.Span, how string) error) error {
	for _, s := range r.zeros {
		if err := work(s, Zero); err != nil {
			return err
		}
	}
	for _, s := range r.holes {
		if err := work(s, r.Holes); err != nil {
			return err
		}
	}
	return nil
}

// clearSpan zeroes a span of the image outside the held first and last MiB of the device. If how is
// Keep, it only has those keep their old content inside the span. A fresh file is zero already.
func (c *Copy) clearSpan(ctx context.Context, r *run, s source.Span, how string) error {
	s.Off += r.Base
	if how == Keep {
		c.keepHeld(s)
		return nil
	}
	if c.Fresh {
		c.zeroed.Add(s.Len)
		return nil
	}
	return eachOutside(s, c.heldSpans(), func(s source.Span) error {
		c.zeroed.Add(s.Len)
		return c.zeroSpan(ctx, s)
	})
}

// heldChanged reports whether a held end will change.
func (c *Copy) heldChanged() bool {
	return slices.ContainsFunc(c.held, func(h *heldEnd) bool { return !bytes.Equal(h.old, h.now) })
}

// alignInside returns the aligned blocks inside s.
func alignInside(s source.Span) source.Span {
	from := (s.Off + alignment - 1) / alignment * alignment
	return source.Span{Off: from, Len: max(0, (s.Off+s.Len)/alignment*alignment-from)}
}

// zeroSpan zeroes a span by zeroPart, in steps of maxZeroBytes.
func (c *Copy) zeroSpan(ctx context.Context, s source.Span) error {
	for end := s.Off + s.Len; s.Off < end; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		part := source.Span{Off: s.Off, Len: min(end-s.Off, maxZeroBytes)}
		if err := c.zeroPart(ctx, part); err != nil {
			return err
		}
		s.Off += part.Len
	}
	return nil
}

// zeroPart has the device zero a span's aligned blocks. It calls writeZeros for the edges, or for
// all if the device cannot. It first runs beginWriting, unless the device has the image already.
func (c *Copy) zeroPart(ctx context.Context, s source.Span) error {
	inner := alignInside(s)
	if inner.Len == 0 {
		return c.writeZeros(ctx, s, &c.zeroSampling)
	}
	if c.Touched() || c.heldChanged() { // else the device holds the image already
		if err := c.beginWriting(); err != nil {
			return err
		}
	}
	err := c.disk.punchHole(inner.Off, inner.Len)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return c.writeZeros(ctx, s, &c.zeroSampling)
	case err != nil:
		return c.disk.explainError(fmt.Sprintf("zero %d bytes at %d", inner.Len, inner.Off), err)
	}
	return eachOutside(s, []source.Span{inner}, func(edge source.Span) error { return c.writeZeros(ctx, edge, nil) })
}

// writeZeros writes zeros to the parts of s that hold other data, or that l leaves uncompared.
func (c *Copy) writeZeros(ctx context.Context, s source.Span, l *sampling) error {
	buf := source.Buffer(int(min(s.Len, pieceBytes)))
	for end := s.Off + s.Len; s.Off < end; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(end-s.Off, pieceBytes-s.Off%pieceBytes)
		if !c.holdsData(zeros()[:n], s.Off, buf, l) {
			if err := c.writeData(zeros()[:n], s.Off); err != nil {
				return err
			}
		}
		s.Off += n
	}
	return nil
}

// checkZeros reads a block at either end of each zeroed span, and some between, and returns an
// error if one is not zero. This detects a device that ignores the order to zero. Reading all
// blocks would take longer than writing the data.
func (c *Copy) checkZeros(ctx context.Context, r *run, buf []byte) error {
	return r.eachEmpty(func(s source.Span, how string) error {
		if how == Keep {
			return nil
		}
		s.Off += r.Base
		return eachOutside(s, c.heldSpans(), func(s source.Span) error { return c.checkZeroSpan(ctx, r, s, buf) })
	})
}

// checkZeroSpan reads the first and last block of a span, and one in each maxZeroBytes between. It
// returns an error if one is not zero.
func (c *Copy) checkZeroSpan(ctx context.Context, r *run, s source.Span, buf []byte) error {
	last := max(s.Off, (s.Off+s.Len-1)/alignment*alignment)
	for at := s.Off; ; at = min(at+maxZeroBytes, last) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		got := buf[:min(alignment, s.Off+s.Len-at)]
		if err := c.disk.readFull(got, at); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if !source.IsZero(got) {
			return r.notZeroError(at, got)
		}
		if at >= last {
			return nil
		}
	}
}

// notZeroError returns the error for a block that should be zero: ErrSmaller if it holds data that
// was written elsewhere, else a lostError.
func (r *run) notZeroError(at int64, got []byte) error {
	sum := maphash.Bytes(r.prover.seed, got)
	for _, p := range r.parts {
		if p.first == sum {
			return fmt.Errorf("%w: what was written at %d is found at %d", ErrSmaller, r.Base+p.image, at)
		}
	}
	return &lostError{at, int64(len(got)), "were to be zero and are not"}
}
