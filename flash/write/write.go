// Package write copies one unpacked image onto many devices at once. It verifies the
// image, writes only what differs, then reads that back. Pieces of the image pass in
// order through a bounded window. An interrupted flash can resume, since the device's
// content is the only state. Package flash selects the devices.
package write

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"slipway/flash/source"
	"slipway/images/bmap"
)

// What to do with the spans that the image does not fill.
const (
	Zero = "zero" // reads as zeros afterwards
	Keep = "keep" // a part that the block map skips stays as it is; other zeros are content
)

// Options says how to write an image.
type Options struct {
	Name    string        // of the image, for errors
	Remedy  string        // advice if the image differs from its map
	Blocks  *bmap.Map     // digests and holes of the image; nil: all of it is content
	Size    int64         // of the unpacked image
	Base    int64         // its offset on the devices
	Except  []source.Span // of the image, ascending: proved but not written, since they get other content
	Holes   string        // "" is Zero
	Content []source.Span // of the image, ascending: their holes are zeroed, also with Keep
	Blind   bool          // nothing is read back
	Sums    *Sums         // of the image, for all runs that write it; nil: for this run
	Proved  bool          // the image is proved already, and its source returns nothing else: no digests
}

// DataBytes returns how many bytes are data, also those of Except. Without a map, zeros are data.
func (o Options) DataBytes() int64 {
	if o.Blocks == nil {
		return o.Size
	}
	return o.Blocks.Mapped()
}

// Proof is how the written image was verified.
type Proof struct {
	SHA256 string // of the unpacked image; "" if a block map proved it
	Ranges int64  // how many of the map's ranges were proved
}

// Run writes the image to each copy, verifies it, and reads it back. It returns an error of the
// image, or the end of ctx. An error of one device is that copy's Err, and the others continue. If
// all fail, Run returns an empty Proof and nil. After nil the caller must call Complete on each.
func Run(ctx context.Context, src *source.Image, to []*Copy, o Options) (Proof, error) {
	r := newRun(src, to, o)
	if err := r.transfer(ctx); err != nil {
		return Proof{}, err
	}
	if r.allFailed() {
		return Proof{}, nil
	}
	if err := src.CheckUnchanged(); err != nil {
		return Proof{}, err
	}
	if err := r.finishCopies(ctx); err != nil {
		return Proof{}, err
	}
	proof := Proof{Ranges: r.prover.proved.Load()}
	if o.Blocks == nil {
		proof.SHA256 = hex.EncodeToString(r.prover.whole.Sum(nil))
	}
	return proof, nil
}

// run is the state of one Run.
type run struct {
	Options
	src    *source.Image
	to     []*Copy
	queue  *reorderQueue
	prover *prover
	ranges []source.Span // of the map
	want   []source.Span // nil: everything
	parts  []*part       // in the image's order
	zeros  spanList      // content of the image
	holes  spanList      // holes of the map
	next   int64         // the end of the last piece
}

// newRun returns the state of a Run: by the map, the spans to decode, those to zero, and the holes.
func newRun(src *source.Image, to []*Copy, o Options) *run {
	r := &run{Options: o, src: src, to: to, queue: newReorderQueue(src.Sections())}
	if o.Blocks != nil {
		r.ranges = rangeSpans(*o.Blocks)
		r.want = wantedSpans(src, *o.Blocks, r.ranges)
		for off, length := range o.Blocks.Holes {
			_ = eachOutside(source.Span{Off: off, Len: length}, o.Except, func(s source.Span) error {
				splitSpan(s, o.Content, func(s source.Span, in int) {
					if in >= 0 {
						r.zeros.append(s)
					} else {
						r.holes.append(s)
					}
				})
				return nil
			})
		}
	}
	if r.prover = newProver(o, r.ranges); o.Proved {
		r.prover.proved.Store(int64(len(r.ranges)))
	}
	return r
}

// cores is how many processors Go used before tuneRuntime.
var cores = runtime.GOMAXPROCS(0)

// tuneRuntime raises GOMAXPROCS, once, because a write to a device occupies a processor until the
// scheduler notices. Nearly all memory is reused buffers, so the collector can begin earlier.
var tuneRuntime = sync.OnceFunc(func() {
	runtime.GOMAXPROCS(cores + 2*writers)
	debug.SetGCPercent(50)
})

var errAllFailed = errors.New("no device is left")

// transfer runs tuneRuntime, and then decodes, verifies and writes the image, all at once. If all
// copies have failed, it returns nil.
func (r *run) transfer(ctx context.Context) error {
	tuneRuntime()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writers sync.WaitGroup
	lost := func() {
		if r.allFailed() {
			cancel(errAllFailed)
		}
	}
	for _, c := range r.to {
		c.startWriters(ctx, r, lost, &writers)
	}
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { r.queue.fail(context.Cause(ctx)) })()
	r.startDecoders(ctx, g)
	for _, tasks := range r.prover.tasks {
		g.Go(func() error { return r.prover.runHasher(tasks) })
	}
	g.Go(func() error { return r.dispatchPieces(ctx) })
	err := g.Wait()
	writers.Wait()
	r.queue.freePieces()
	switch {
	case errors.Is(err, errAllFailed) || errors.Is(context.Cause(ctx), errAllFailed):
		return nil // each copy has its error
	case err != nil:
		return err
	}
	return r.prover.checkComplete()
}

// startDecoders starts goroutines that decode the sections and queue their pieces.
func (r *run) startDecoders(ctx context.Context, g *errgroup.Group) {
	sections := r.src.Sections()
	var next atomic.Int64
	for range min(cores, len(sections), r.src.Parallel()) {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < len(sections); i = int(next.Add(1)) - 1 {
				err := r.src.Decode(ctx, i, overlapping(r.want, sections[i]), func(p source.Piece) error { return r.queue.addPiece(i, p) })
				if err != nil {
					return err
				}
				r.queue.endSection(i)
			}
			return nil
		})
	}
}

// dispatchPieces passes the pieces in order to hashers and copies, checks the image's size at the
// end, and closes the queues.
func (r *run) dispatchPieces(ctx context.Context) error {
	defer func() {
		for _, c := range r.to {
			close(c.queue)
		}
		for _, tasks := range r.prover.tasks {
			close(tasks)
		}
	}()
	for n := len(r.src.Sections()); ; {
		p, more, err := r.queue.nextPiece(n)
		if err != nil || !more {
			return errors.Join(err, r.checkSize(err))
		}
		if err := r.dispatchPiece(ctx, p); err != nil {
			return err
		}
	}
}

// checkSize returns an error if the decoded image is not as long as r.Size. It checks nothing after
// the earlier error err, or if the size was known and only a map's ranges were decoded.
func (r *run) checkSize(err error) error {
	if err != nil || r.next == r.Size || r.Blocks != nil && r.src.SizeBytes() >= 0 {
		return nil
	}
	return fmt.Errorf("%s: it unpacks to %d bytes, not to %d; %s", r.Name, r.next, r.Size, r.Remedy)
}

// dispatchPiece passes one piece to the hashers, and its parts to write to all copies. It returns
// an error for a piece before r.next or beyond the image's size, and without a map for a gap.
func (r *run) dispatchPiece(ctx context.Context, p source.Piece) error {
	s := source.Span{Off: p.Off, Len: p.Len}
	if s.Off < r.next || s.Len <= 0 || r.Blocks == nil && s.Off != r.next || s.Off+s.Len > r.Size {
		p.Free()
		return fmt.Errorf("%s: it unpacks to more than %d bytes; %s", r.Name, r.Size, r.Remedy)
	}
	r.next = s.Off + s.Len
	if p.Data == nil {
		return r.dispatchZeros(ctx, s)
	}
	from := &sharedPiece{piece: p}
	from.users.Store(1)
	defer from.release()
	if err := r.prover.hashSpan(ctx, from, p.Data, s); err != nil {
		return err
	}
	return r.eachContent(s, func(s source.Span) error { return r.dispatchData(ctx, from, p.Data[s.Off-p.Off:][:s.Len], s) })
}

// eachContent calls work with the parts of s in the map's ranges (all without a map) and outside
// r.Except, until work fails.
func (r *run) eachContent(s source.Span, work func(source.Span) error) (err error) {
	if r.Blocks == nil {
		return eachOutside(s, r.Except, work)
	}
	splitSpan(s, r.want, func(part source.Span, i int) {
		mapped := part
		mapped.Len = min(mapped.Off+mapped.Len, r.mappedEnd()) - mapped.Off
		if i >= 0 && mapped.Len > 0 && err == nil {
			err = eachOutside(mapped, r.Except, work)
		}
	})
	return err
}

// mappedEnd returns the end of the map's last range. Wanted spans after it only tell the length.
func (r *run) mappedEnd() int64 {
	if len(r.ranges) == 0 {
		return 0
	}
	last := r.ranges[len(r.ranges)-1]
	return last.Off + last.Len
}

// dispatchZeros passes zeros of the image to the hashers, and adds those to write to r.zeros.
func (r *run) dispatchZeros(ctx context.Context, s source.Span) error {
	if err := r.prover.hashSpan(ctx, nil, nil, s); err != nil {
		return err
	}
	return r.eachContent(s, func(s source.Span) error {
		r.zeros.append(s)
		for _, c := range r.to {
			c.Count(s.Len)
		}
		return nil
	})
}

// dispatchData records a part of the image, queues it for summing unless Blind, and to each copy.
func (r *run) dispatchData(ctx context.Context, from *sharedPiece, data []byte, s source.Span) error {
	i, p := len(r.parts), r.prover.Sums.part(s)
	r.parts = append(r.parts, p)
	if !r.Blind {
		if err := r.prover.sumPart(ctx, from, data, p); err != nil {
			return err
		}
	}
	for _, c := range r.to {
		from.users.Add(1)
		select {
		case c.queue <- piece{from: from, data: data, off: r.Base + s.Off, part: i}:
		case <-ctx.Done():
			from.release()
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *run) allFailed() bool {
	return !slices.ContainsFunc(r.to, func(c *Copy) bool { return c.Err() == nil })
}

// finishCopies runs zeroAndReadBack on all copies at once. Each copy keeps its own error;
// finishCopies returns only that of ctx.
func (r *run) finishCopies(ctx context.Context) error {
	var g errgroup.Group
	for _, c := range r.to {
		g.Go(func() error {
			if c.Err() == nil {
				c.setError(c.zeroAndReadBack(ctx, r))
			}
			return nil
		})
	}
	_ = g.Wait() // each copy keeps its own error
	return context.Cause(ctx)
}
