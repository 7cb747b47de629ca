package flash

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"slipway/images/bmap"
)

// workers is how many ranges are under way at once: while some wait for the
// disk, the others keep the cores busy with hashing.
const workers = 4

// transfer puts an image, of which it knows the block map, onto a disk.
type transfer struct {
	name   string // of the image, for errors
	source io.ReaderAt
	blocks bmap.Map
	to     *disk
	base   int64  // where on the disk the image begins
	head   []byte // what the image begins with is kept here instead of being written
	count  func(bytes int64)
}

// write writes the mapped ranges and fails where the source is not what its
// block map says.
func (t *transfer) write(ctx context.Context) error {
	return t.each(ctx, func(ctx context.Context, r bmap.Range, buf []byte) error {
		return t.stream(ctx, t.source, r, buf, func(p []byte, off int64) error {
			if off < int64(len(t.head)) {
				copy(t.head[off:], p)
				return nil
			}
			_, err := t.to.WriteAt(p, t.base+off)
			return err
		})
	})
}

// verify reads back what write wrote.
func (t *transfer) verify(ctx context.Context) error {
	if err := t.verifyHoles(ctx); err != nil {
		return err
	}
	return t.each(ctx, func(ctx context.Context, r bmap.Range, buf []byte) error {
		return t.stream(ctx, written{t}, r, buf, func([]byte, int64) error { return nil })
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

// each hands the ranges to the workers, in order.
func (t *transfer) each(ctx context.Context, work func(context.Context, bmap.Range, []byte) error) error {
	g, ctx := errgroup.WithContext(ctx)
	ranges := t.blocks.Ranges
	var next atomic.Int64
	for range min(workers, len(ranges)) {
		g.Go(func() error {
			buf := alignedBuffer(pieceBytes)
			for i := next.Add(1) - 1; i < int64(len(ranges)); i = next.Add(1) - 1 {
				if err := work(ctx, ranges[i], buf); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// stream reads a range piece by piece, hands the pieces to sink and compares the
// range's digest. Pieces never cross a multiple of pieceBytes.
func (t *transfer) stream(ctx context.Context, from io.ReaderAt, r bmap.Range, buf []byte, sink func(p []byte, off int64) error) error {
	hash := t.blocks.Hash()
	off, length := t.blocks.Span(r)
	for end := off + length; off < end; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		p := buf[:min(pieceBytes-off%pieceBytes, end-off)]
		if _, err := io.ReadFull(io.NewSectionReader(from, off, int64(len(p))), p); err != nil {
			return fmt.Errorf("%s: read %d bytes at %d: %w", t.origin(from), len(p), off, err)
		}
		// A map of another maker may have one range for everything; hashing and
		// writing at the same time keeps both cores at work on that too.
		hashed := make(chan struct{})
		go func() {
			hash.Write(p)
			close(hashed)
		}()
		err := sink(p, off)
		<-hashed
		if err != nil {
			return fmt.Errorf("write %d bytes at %d: %w", len(p), t.base+off, err)
		}
		off += int64(len(p))
		t.count(int64(len(p)))
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != r.Sum {
		return fmt.Errorf("%s: blocks %d to %d have %s %s; the block map says %s", t.origin(from), r.First, r.Last, t.blocks.Algorithm, got, r.Sum)
	}
	return nil
}

func (t *transfer) origin(from io.ReaderAt) string {
	if _, ok := from.(written); ok {
		return "read back"
	}
	return t.name
}
