package write

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"golang.org/x/sys/unix"

	"slipway/flash/source"
)

// zeroAtOnce is how much is zeroed by one call, so that a slow device can be
// interrupted.
const zeroAtOnce = 64 << 20

// zeroAll makes what has no data read as zeros: dm-verity and file systems that rely on
// zeroed tables must not find a former owner's data. It comes after the data, as a
// device that holds the image already is not marked for it.
func (c *Copy) zeroAll(ctx context.Context, r *run) error {
	for _, s := range r.zeros {
		if err := c.zero(ctx, r, s, Zero); err != nil {
			return err
		}
	}
	for _, s := range r.holes {
		if err := c.zero(ctx, r, s, r.Holes); err != nil {
			return err
		}
	}
	return nil
}

func (c *Copy) zero(ctx context.Context, r *run, s source.Span, how string) error {
	s.Off += r.Base
	if how == Keep {
		c.keepHeld(s)
		return nil
	}
	if c.Fresh {
		c.zeroed.Add(s.Len)
		return nil
	}
	return outside(s, c.heldSpans(), func(s source.Span) error {
		c.zeroed.Add(s.Len)
		if how == Discard && !c.Dry {
			if err := c.mayZero(); err != nil {
				return err
			}
			inner := whole(s)
			_ = c.disk.discard(inner.Off, inner.Len) // one that cannot is zeroed
			return c.fill(ctx, s, nil)
		}
		return c.zeroSpan(ctx, s)
	})
}

// mayZero marks the device, unless it holds the image already.
func (c *Copy) mayZero() error {
	if !c.Touched() && !c.heldChanged() {
		return nil
	}
	return c.start()
}

func (c *Copy) heldChanged() bool {
	for _, h := range c.held {
		if h.changed() {
			return true
		}
	}
	return false
}

// whole is s without the parts of blocks at its ends.
func whole(s source.Span) source.Span {
	from := (s.Off + alignment - 1) / alignment * alignment
	return source.Span{Off: from, Len: max(0, (s.Off+s.Len)/alignment*alignment-from)}
}

// zeroSpan prefers to have the device do it; what cannot be done so is compared, and
// written where it differs.
func (c *Copy) zeroSpan(ctx context.Context, s source.Span) error {
	if c.Dry {
		return nil
	}
	for end := s.Off + s.Len; s.Off < end; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		part := source.Span{Off: s.Off, Len: min(end-s.Off, zeroAtOnce)}
		if err := c.zeroPart(ctx, part); err != nil {
			return err
		}
		s.Off += part.Len
	}
	return nil
}

func (c *Copy) zeroPart(ctx context.Context, s source.Span) error {
	inner := whole(s)
	if inner.Len == 0 {
		return c.fill(ctx, s, &c.zeroLook)
	}
	if err := c.mayZero(); err != nil {
		return err
	}
	err := c.disk.punch(inner.Off, inner.Len)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return c.fill(ctx, s, &c.zeroLook)
	case err != nil:
		return c.disk.explain(fmt.Sprintf("zero %d bytes at %d", inner.Len, inner.Off), err)
	}
	return outside(s, []source.Span{inner}, func(edge source.Span) error { return c.fill(ctx, edge, nil) })
}

// fill writes zeros where something else is. Without a look, all of it is compared.
func (c *Copy) fill(ctx context.Context, s source.Span, l *look) error {
	buf := source.Buffer(int(min(s.Len, pieceBytes)))
	for end := s.Off + s.Len; s.Off < end; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(end-s.Off, pieceBytes-s.Off%pieceBytes)
		if !c.has(zeros()[:n], s.Off, buf, l) {
			if err := c.write(zeros()[:n], s.Off); err != nil {
				return err
			}
		}
		s.Off += n
	}
	return nil
}

// checkZeros looks at a block at either end of each run of zeros, and at some between,
// which tells a device that ignores being told to zero. Reading all of them would cost
// more than the data does.
func (c *Copy) checkZeros(ctx context.Context, r *run, buf []byte) error {
	check := func(s source.Span) error {
		s.Off += r.Base
		return outside(s, c.heldSpans(), func(s source.Span) error { return c.checkZero(ctx, r, s, buf) })
	}
	for _, s := range r.zeros {
		if err := check(s); err != nil {
			return err
		}
	}
	for _, s := range r.holes {
		if r.Holes == Keep {
			break
		}
		if err := check(s); err != nil {
			return err
		}
	}
	return nil
}

func (c *Copy) checkZero(ctx context.Context, r *run, s source.Span, buf []byte) error {
	last := max(s.Off, (s.Off+s.Len-1)/alignment*alignment)
	for at := s.Off; ; at = min(at+zeroAtOnce, last) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		got := buf[:min(alignment, s.Off+s.Len-at)]
		if err := c.disk.readFull(got, at); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if !isZero(got) {
			return r.notZero(at, got)
		}
		if at >= last {
			return nil
		}
	}
}

// notZero says what is wrong with a device that has something where zeros belong.
func (r *run) notZero(at int64, got []byte) error {
	sum := maphash.Bytes(r.prover.seed, got)
	for i := range r.parts.count {
		if p := r.parts.at(i); p.first == sum {
			return fmt.Errorf("%w: what was written at %d is found at %d", errSmaller, r.Base+p.image, at)
		}
	}
	return &lostError{at, int64(len(got)), "were to be zero and are not"}
}
