package write

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"slipway/flash/source"
)

// zeroAndReadBack zeroes what is to be zero, waits until the device has everything, and reads
// back what was written.
func (c *Copy) zeroAndReadBack(ctx context.Context, r *run) error {
	c.Detail("zeroing")
	if err := c.zeroAll(ctx, r); err != nil {
		return err
	}
	if c.Dry || !c.Touched() {
		return nil
	}
	if err := c.disk.Sync(); err != nil {
		return err
	}
	if r.Blind {
		return nil
	}
	c.Detail("reading back")
	bad, err := c.readBack(ctx, r)
	if err == nil && len(bad) > 0 {
		bad, err = c.rewriteWrongParts(ctx, r, bad)
	}
	if err != nil {
		return err
	}
	if len(bad) > 0 {
		return c.blame(r, bad)
	}
	return c.lookAgain(ctx, r)
}

// bad is a part that reads back as something else.
type bad struct {
	part int
	sum  uint64 // of what is there
}

// readBack compares the parts that were written with their sums.
func (c *Copy) readBack(ctx context.Context, r *run) ([]bad, error) {
	var mu sync.Mutex
	var found []bad
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range writers {
		g.Go(func() error {
			buf := source.Buffer(pieceBytes)
			for i := int(next.Add(1)) - 1; i < r.parts.count; i = int(next.Add(1)) - 1 {
				if !c.wrote.has(i) {
					continue
				}
				if err := context.Cause(ctx); err != nil {
					return err
				}
				sum, err := c.sum(r, r.parts.at(i), buf)
				if err != nil {
					return fmt.Errorf("read back: %w", err)
				}
				if p := r.parts.at(i); sum != p.sum {
					mu.Lock()
					found = append(found, bad{i, sum})
					mu.Unlock()
					continue
				}
				c.count(r, i)
			}
			return nil
		})
	}
	return found, g.Wait()
}

func (c *Copy) count(r *run, part int) {
	if c.proved.has(part) {
		return // before a wrong part was rewritten
	}
	c.proved.set(part)
	n := c.outsideHeld(r, r.parts.at(part))
	c.verified.Add(n)
	c.Count(n)
}

// outsideHeld is how much of a part is not kept back for Complete.
func (c *Copy) outsideHeld(r *run, p part) (n int64) {
	s := p.span()
	s.Off += r.Base
	split(s, c.heldSpans(), func(s source.Span, i int) {
		if i < 0 {
			n += s.Len
		}
	})
	return n
}

// sum reads a part. What is kept back for Complete comes from memory.
func (c *Copy) sum(r *run, p part, buf []byte) (uint64, error) {
	s := p.span()
	s.Off += r.Base
	var err error
	split(s, c.heldSpans(), func(part source.Span, i int) {
		to := buf[part.Off-s.Off:][:part.Len]
		switch {
		case err != nil:
		case i >= 0:
			copy(to, c.held[i].now[part.Off-c.held[i].off:])
		default:
			err = c.disk.readFull(to, part.Off)
		}
	})
	return maphash.Bytes(r.prover.seed, buf[:s.Len]), err
}

// mendParts is how much is written once more: a device with more faults is broken.
const mendParts = 64

// rewriteWrongParts writes parts again that read back wrong, where the image gives them without
// being decoded from its beginning, and returns what is wrong then: all is read back
// once more, as on a device that counts in a circle one part is the end of another.
func (c *Copy) rewriteWrongParts(ctx context.Context, r *run, found []bad) ([]bad, error) {
	sections := r.src.Sections()
	if len(found) > mendParts || len(sections) < 2 && r.src.Form() != "raw" {
		return found, nil
	}
	var want spans
	for _, p := range sorted(r, found) {
		want.add(p.span())
	}
	for i, section := range sections {
		these := within(want, section)
		if len(these) == 0 {
			continue
		}
		err := r.src.Decode(ctx, i, these, func(p source.Piece) error {
			defer p.Free()
			return c.rewrite(ctx, r, p)
		})
		if err != nil {
			return nil, err
		}
	}
	if err := c.disk.Sync(); err != nil {
		return nil, err
	}
	return c.readBack(ctx, r)
}

func (c *Copy) rewrite(ctx context.Context, r *run, p source.Piece) (err error) {
	split(source.Span{Off: r.Base + p.Off, Len: p.Len}, c.heldSpans(), func(s source.Span, i int) {
		if i >= 0 || err != nil {
			return
		}
		if p.Data == nil {
			err = c.fill(ctx, s, nil)
			return
		}
		err = c.write(p.Data[s.Off-r.Base-p.Off:][:s.Len], s.Off)
	})
	return err
}

// sorted are the parts that are wrong, in the image's order.
func sorted(r *run, found []bad) []part {
	slices.SortFunc(found, func(a, b bad) int { return a.part - b.part })
	parts := make([]part, len(found))
	for i, b := range found {
		parts[i] = r.parts.at(b.part)
	}
	return parts
}

// blame says what kind of device reads back something else than what was written.
func (c *Copy) blame(r *run, found []bad) error {
	first := sorted(r, found)[0]
	wrote := map[uint64]int64{}
	behind := 0 // the first that is wrong
	for i := range r.parts.count {
		if p := r.parts.at(i); c.wrote.has(i) {
			wrote[p.sum] = p.image
			if p.image >= first.image {
				behind++
			}
		}
	}
	for _, b := range found {
		if from, ok := wrote[b.sum]; ok {
			return fmt.Errorf("%w: what was written at %d is found at %d", errSmaller, r.Base+from, r.Base+r.parts.at(b.part).image)
		}
	}
	err := error(&lostError{r.Base + first.image, int64(first.length), "are not what was written"})
	if behind == len(found) && len(found) > 1 && first.image > 0 {
		return fmt.Errorf("%w: nothing is kept from there on: %w", errSmaller, err)
	}
	return err
}

// lookAgain looks at what was there already and at what was zeroed. A device that
// holds less than it says has by now put something else there.
func (c *Copy) lookAgain(ctx context.Context, r *run) error {
	buf := source.Buffer(pieceBytes)
	every := max(1, r.parts.count/mostLooks)
	for i := 0; i < r.parts.count && c.left.Load() > 0; i += every {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		p := r.parts.at(i)
		if c.wrote.has(i) || c.outsideHeld(r, p) < int64(p.length) {
			continue
		}
		got := buf[:min(sampleBytes, p.length)]
		if err := c.disk.readFull(got, r.Base+p.image); err != nil {
			return err
		}
		if maphash.Bytes(r.prover.seed, got) != p.first {
			return fmt.Errorf("%w: what was at %d is not there any more since other parts were written", errSmaller, r.Base+p.image)
		}
	}
	return c.checkZeros(ctx, r, buf)
}

// mostLooks is how many blocks are looked at again: on a card some seconds' worth.
const mostLooks = 4096
