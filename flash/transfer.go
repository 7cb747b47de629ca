package flash

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"io"
	"math/bits"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"slipway/images/bmap"
)

// workers is how many ranges are under way at once: while some wait for the
// disk, the others keep the cores busy with hashing.
const workers = 4

// transfer puts an image, of which it knows the block map, onto a disk.
//
// The map's digests prove the source while it is written. What is read back is
// compared by a checksum of what was written, seeded anew in each run and several
// times faster than the map's: reading back then costs little more than the reading.
type transfer struct {
	name   string // of the image, for errors
	remedy string // what to do where the image is not what its map says
	source io.ReaderAt
	blocks bmap.Map
	to     *disk
	base   int64  // where on the disk the image begins
	head   []byte // what the image begins with is kept here instead of being written
	count  func(bytes int64)

	seed maphash.Seed
	sums []uint64 // of the ranges as they were written
}

// write writes the mapped ranges and fails where the source is not what its
// block map says.
func (t *transfer) write(ctx context.Context) error {
	t.seed, t.sums = maphash.MakeSeed(), make([]uint64, len(t.blocks.Ranges))
	return t.each(ctx, func(ctx context.Context, i int, buf []byte) error {
		r, digest := t.blocks.Ranges[i], t.blocks.Hash()
		err := t.pieces(ctx, t.source, r, buf, func(p []byte, off int64) error {
			// A map of another maker may have one range for everything; hashing and
			// writing at the same time keeps both cores at work on that too.
			hashed := make(chan struct{})
			go func() {
				defer close(hashed)
				digest.Write(p)
				t.sums[i] = t.add(t.sums[i], p)
			}()
			err := t.put(p, off)
			<-hashed
			return err
		})
		if err != nil {
			return err
		}
		if got := hex.EncodeToString(digest.Sum(nil)); got != r.Sum {
			return fmt.Errorf("%s: blocks %d to %d have %s %s; the block map says %s; %s", t.name, r.First, r.Last, t.blocks.Algorithm, got, r.Sum, t.remedy)
		}
		return nil
	})
}

func (t *transfer) put(p []byte, off int64) error {
	if off < int64(len(t.head)) {
		copy(t.head[off:], p)
		return nil
	}
	if _, err := t.to.WriteAt(p, t.base+off); err != nil {
		return fmt.Errorf("write %d bytes at %d: %w", len(p), t.base+off, err)
	}
	return nil
}

// add folds a piece into a range's checksum, in a way that depends on the order.
func (t *transfer) add(sum uint64, p []byte) uint64 {
	return bits.RotateLeft64(sum, 1) ^ maphash.Bytes(t.seed, p)
}

// verify reads back what write wrote.
func (t *transfer) verify(ctx context.Context) error {
	if err := t.verifyHoles(ctx); err != nil {
		return err
	}
	return t.each(ctx, func(ctx context.Context, i int, buf []byte) error {
		r, sum := t.blocks.Ranges[i], uint64(0)
		err := t.pieces(ctx, written{t}, r, buf, func(p []byte, _ int64) error {
			sum = t.add(sum, p)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if sum != t.sums[i] {
			off, length := t.blocks.Span(r)
			return fmt.Errorf("read back: the %d bytes at %d are not what was written; the device is faulty", length, t.base+off)
		}
		return nil
	})
}

// written reads the image from the disk, and what was kept back from memory.
type written struct{ *transfer }

func (w written) ReadAt(p []byte, off int64) (int, error) {
	if off < int64(len(w.head)) {
		return copy(p, w.head[off:]), nil
	}
	return w.to.ReadAt(p, w.base+off)
}

// zeroHoles makes what the map leaves out read as zeros: dm-verity and file
// systems that rely on zeroed tables must not find a former owner's data.
func (t *transfer) zeroHoles(ctx context.Context) error {
	for off, length := range t.blocks.Holes {
		if err := t.to.zero(ctx, t.base+off, length); err != nil {
			return err
		}
	}
	return nil
}

// verifyHoles looks at the first block of each hole, which tells a device that
// ignores being told to zero. Reading all of them would cost as much as the data.
func (t *transfer) verifyHoles(ctx context.Context) error {
	for off, length := range t.blocks.Holes {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		zero, err := t.to.isZero(t.base+off, length)
		if err != nil {
			return err
		}
		if !zero {
			return fmt.Errorf("read back: byte %d and what follows was to be zero and is not; the device is faulty", t.base+off)
		}
	}
	return nil
}

// each hands the numbers of the ranges to the workers, in order.
func (t *transfer) each(ctx context.Context, work func(ctx context.Context, i int, buf []byte) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(workers, len(t.blocks.Ranges)) {
		g.Go(func() error {
			buf := alignedBuffer(pieceBytes)
			for i := int(next.Add(1)) - 1; i < len(t.blocks.Ranges); i = int(next.Add(1)) - 1 {
				if err := work(ctx, i, buf); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// pieces reads a range and hands it on piece by piece. No piece crosses a
// multiple of pieceBytes.
func (t *transfer) pieces(ctx context.Context, from io.ReaderAt, r bmap.Range, buf []byte, to func(p []byte, off int64) error) error {
	off, length := t.blocks.Span(r)
	for end := off + length; off < end; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		p := buf[:min(pieceBytes-off%pieceBytes, end-off)]
		if _, err := io.ReadFull(io.NewSectionReader(from, off, int64(len(p))), p); err != nil {
			return fmt.Errorf("read %d bytes of the image at %d: %w", len(p), off, err)
		}
		if err := to(p, off); err != nil {
			return err
		}
		off += int64(len(p))
		t.count(int64(len(p)))
	}
	return nil
}
