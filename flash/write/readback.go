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

// zeroAndReadBack zeroes the spans that must be zero. If anything was written, it syncs the device.
// Then, unless the run is blind, it reads back the written parts, rewrites wrong ones once, and
// samples the unwritten parts.
func (c *Copy) zeroAndReadBack(ctx context.Context, r *run) error {
	c.Phase("zeroing", 0)
	if err := c.zeroAll(ctx, r); err != nil {
		return err
	}
	if !c.Touched() {
		return nil
	}
	if err := c.disk.Sync(); err != nil {
		return err
	}
	if r.Blind {
		return nil
	}
	c.Phase("reading back", c.written.Load()-c.verified.Load())
	bad, err := c.readBack(ctx, r)
	if err == nil && len(bad) > 0 {
		bad, err = c.rewriteWrongParts(ctx, r, bad)
	}
	if err != nil {
		return err
	}
	if len(bad) > 0 {
		return c.diagnoseWrongParts(r, bad)
	}
	return c.recheckUnwritten(ctx, r)
}

// wrongPart is a part that reads back with another sum than was written.
type wrongPart struct {
	part int
	sum  uint64 // of the read bytes
}

// readBack reads the written parts, counts correct ones as verified, and returns the wrong ones.
func (c *Copy) readBack(ctx context.Context, r *run) ([]wrongPart, error) {
	var mu sync.Mutex
	var found []wrongPart
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range writers {
		g.Go(func() error {
			buf := source.Buffer(pieceBytes)
			for i := int(next.Add(1)) - 1; i < len(r.parts); i = int(next.Add(1)) - 1 {
				if !c.wrote.contains(i) {
					continue
				}
				if err := context.Cause(ctx); err != nil {
					return err
				}
				sum, err := c.readSum(r, r.parts[i], buf)
				if err != nil {
					return fmt.Errorf("read back: %w", err)
				}
				if sum != r.parts[i].sum {
					mu.Lock()
					found = append(found, wrongPart{i, sum})
					mu.Unlock()
					continue
				}
				c.countVerified(r, i)
			}
			return nil
		})
	}
	return found, g.Wait()
}

// countVerified counts a part as verified, if it is not counted yet.
func (c *Copy) countVerified(r *run, part int) {
	if c.proved.contains(part) {
		return // counted before a wrong part was rewritten
	}
	c.proved.add(part)
	n := c.outsideHeld(r, r.parts[part])
	c.verified.Add(n)
	c.Count(n)
}

// outsideHeld returns how many of a part's bytes lie outside the held first and last MiB.
func (c *Copy) outsideHeld(r *run, p *part) (n int64) {
	s := p.span()
	s.Off += r.Base
	splitSpan(s, c.heldSpans(), func(s source.Span, i int) {
		if i < 0 {
			n += s.Len
		}
	})
	return n
}

// readSum returns the sum of a part on the device. The held first and last MiB come from memory.
func (c *Copy) readSum(r *run, p *part, buf []byte) (uint64, error) {
	s := p.span()
	s.Off += r.Base
	var err error
	splitSpan(s, c.heldSpans(), func(part source.Span, i int) {
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

// maxRewrites is how many wrong parts are rewritten. A device with more is broken.
const maxRewrites = 64

// rewriteWrongParts writes the wrong parts again, reads all parts back, and returns those that are
// still wrong: on a device that wraps around, one part overwrites another. It does nothing if there
// are too many, or if the whole image would have to be decoded.
func (c *Copy) rewriteWrongParts(ctx context.Context, r *run, found []wrongPart) ([]wrongPart, error) {
	sections := r.src.Sections()
	if len(found) > maxRewrites || len(sections) < 2 && r.src.Form() != "raw" {
		return found, nil
	}
	var want spanList
	for _, p := range sortedParts(r, found) {
		want.append(p.span())
	}
	for i, section := range sections {
		these := overlapping(want, section)
		if len(these) == 0 {
			continue
		}
		err := r.src.Decode(ctx, i, these, func(p source.Piece) error {
			defer p.Free()
			return c.rewritePiece(ctx, r, p)
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

// rewritePiece writes a decoded piece to the device again, outside the held first and last MiB.
func (c *Copy) rewritePiece(ctx context.Context, r *run, p source.Piece) error {
	return eachOutside(source.Span{Off: r.Base + p.Off, Len: p.Len}, c.heldSpans(), func(s source.Span) error {
		if p.Data == nil {
			return c.writeZeros(ctx, s, nil)
		}
		return c.writeData(p.Data[s.Off-r.Base-p.Off:][:s.Len], s.Off)
	})
}

// sortedParts sorts found by the image's order, and returns its parts.
func sortedParts(r *run, found []wrongPart) []*part {
	slices.SortFunc(found, func(a, b wrongPart) int { return a.part - b.part })
	parts := make([]*part, len(found))
	for i, b := range found {
		parts[i] = r.parts[b.part]
	}
	return parts
}

// diagnoseWrongParts returns ErrSmaller if the wrong parts show a smaller device, else a lostError.
func (c *Copy) diagnoseWrongParts(r *run, found []wrongPart) error {
	first := sortedParts(r, found)[0]
	wrote := map[uint64]int64{}
	behind := 0 // written parts from the first wrong one on
	for i, p := range r.parts {
		if c.wrote.contains(i) {
			wrote[p.sum] = p.image
			if p.image >= first.image {
				behind++
			}
		}
	}
	for _, b := range found {
		if from, ok := wrote[b.sum]; ok {
			return fmt.Errorf("%w: what was written at %d is found at %d", ErrSmaller, r.Base+from, r.Base+r.parts[b.part].image)
		}
	}
	err := error(&lostError{r.Base + first.image, int64(first.length), "are not what was written"})
	if behind == len(found) && len(found) > 1 && first.image > 0 {
		return fmt.Errorf("%w: nothing is kept from there on: %w", ErrSmaller, err)
	}
	return err
}

// recheckUnwritten reads samples of the parts that were equal before, and of the zeroed spans. On a
// device that is smaller than it says, later writes have overwritten some: it returns ErrSmaller.
func (c *Copy) recheckUnwritten(ctx context.Context, r *run) error {
	buf := source.Buffer(pieceBytes)
	every := max(1, len(r.parts)/maxRechecks)
	for i := 0; i < len(r.parts) && c.left.Load() > 0; i += every {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		p := r.parts[i]
		if c.wrote.contains(i) || c.outsideHeld(r, p) < int64(p.length) {
			continue
		}
		got := buf[:min(sampleBytes, p.length)]
		if err := c.disk.readFull(got, r.Base+p.image); err != nil {
			return err
		}
		if maphash.Bytes(r.prover.seed, got) != p.first {
			return fmt.Errorf("%w: what was at %d is not there any more since other parts were written", ErrSmaller, r.Base+p.image)
		}
	}
	return c.checkZeros(ctx, r, buf)
}

// maxRechecks is how many blocks are read again, which takes some seconds on a card.
const maxRechecks = 4096
