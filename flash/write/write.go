// Package write puts one unpacked image onto many devices at once: what it is made of
// is proved before it counts, what differs is written, what was written is read back.
// Which devices those may be, and who agreed to it, is flash's.
//
// The image is decoded once, and its pieces pass in their order through a bounded
// window: they are hashed, compared with what each device holds, and written where
// that differs. A flash that was cut off goes on by the same way: the device's content
// is all that has to be known of it.
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

// Source is what the image is unpacked from; *source.Image is one. Its methods are
// called as that says.
type Source interface {
	Form() string
	SizeBytes() int64
	Sections() []source.Section
	Decode(ctx context.Context, i int, want []source.Span, sink func(source.Piece) error) error
	Finish() error
}

// The ways with what the image does not fill.
const (
	Zero    = "zero"    // reads as zeros afterwards
	Discard = "discard" // is discarded, and reads as zeros afterwards
	Keep    = "keep"    // stays as it is where the block map leaves it out; other zeros are content
)

// Options is how an image is written.
type Options struct {
	Name    string        // of the image, for errors
	Remedy  string        // what to do where the image is not what its map says
	Blocks  *bmap.Map     // proves the image, and says what it leaves out; nil: all of it is content
	Size    int64         // of the unpacked image
	Base    int64         // where on the devices it begins
	Except  []source.Span // of the image, ascending: proved and not written, as something else will lie there
	Holes   string        // "" is Zero
	Content []source.Span // of the image, ascending: what the map leaves out of these spans is zeroed, also with Keep
	Blind   bool          // what was written is not read back
}

// Work is what a copy will count: each byte of data once as it is written or compared,
// and once as it is read back. Without a map, zeros count as data.
func (o Options) Work() int64 {
	if o.Blocks == nil {
		return o.steps() * o.Size
	}
	return o.steps() * o.Blocks.Mapped()
}

func (o Options) steps() int64 {
	if o.Blind {
		return 1
	}
	return 2
}

// Proof is what is known of the image once it was written.
type Proof struct {
	SHA256 string // of all of the unpacked image; "" where a block map's digests proved it
	Ranges int64  // whose digests did
}

// Run writes the image to each copy. Its error is the image's fault, or the end of
// ctx; what is wrong with a single device is that copy's Err, and the others go on.
// A copy is whole after its Complete.
func Run(ctx context.Context, src Source, to []*Copy, o Options) (Proof, error) {
	r := newRun(src, to, o)
	if err := r.transfer(ctx); err != nil {
		return Proof{}, err
	}
	if r.nobodyLeft() {
		return Proof{}, nil
	}
	if err := src.Finish(); err != nil {
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

// run is one Run.
type run struct {
	Options
	src    Source
	to     []*Copy
	lanes  *lanes
	prover *prover
	ranges []source.Span // of the map
	want   []source.Span // nil: everything
	parts  parts
	zeros  spans // content of the image
	holes  spans // what the map leaves out
	next   int64 // behind the last piece that was seen
}

func newRun(src Source, to []*Copy, o Options) *run {
	r := &run{Options: o, src: src, to: to, lanes: newLanes(src.Sections())}
	if o.Blocks != nil {
		r.ranges = rangesOf(*o.Blocks)
		r.want = wanted(src, *o.Blocks, r.ranges)
		for off, length := range o.Blocks.Holes {
			split(source.Span{Off: off, Len: length}, o.Except, func(s source.Span, in int) {
				if in >= 0 {
					return
				}
				r.holes.addOutside(s, o.Content)
				split(s, o.Content, func(s source.Span, in int) {
					if in >= 0 {
						r.zeros.add(s)
					}
				})
			})
		}
	}
	r.prover = newProver(o, r.ranges)
	return r
}

// cores is how many goroutines can work at once.
var cores = runtime.GOMAXPROCS(0)

// settings are the process's, made once. Go is told of more cores, as a write to a
// device keeps one from the others until the scheduler notices; and its collector to
// begin early, as nearly all memory is buffers that are used again and again.
var settings = sync.OnceFunc(func() {
	runtime.GOMAXPROCS(cores + 2*writers)
	debug.SetGCPercent(50)
})

var errNobodyLeft = errors.New("no device is left")

// transfer decodes the image and has each copy take what differs.
func (r *run) transfer(ctx context.Context) error {
	settings()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writers sync.WaitGroup
	lost := func() {
		if r.nobodyLeft() {
			cancel(errNobodyLeft)
		}
	}
	for _, c := range r.to {
		c.startWriters(ctx, r, lost, &writers)
	}
	g, ctx := errgroup.WithContext(ctx)
	defer r.lanes.watch(ctx)()
	r.decode(ctx, g)
	for _, tasks := range r.prover.tasks {
		g.Go(func() error { return r.prover.work(tasks) })
	}
	g.Go(func() error { return r.dispatch(ctx) })
	err := g.Wait()
	writers.Wait()
	r.lanes.drop()
	switch {
	case errors.Is(err, errNobodyLeft) || errors.Is(context.Cause(ctx), errNobodyLeft):
		return nil // each copy says why
	case err != nil:
		return err
	}
	return r.prover.short()
}

// decode starts the workers, which take the sections in their order.
func (r *run) decode(ctx context.Context, g *errgroup.Group) {
	sections := r.src.Sections()
	var next atomic.Int64
	for range min(cores, len(sections)) {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < len(sections); i = int(next.Add(1)) - 1 {
				err := r.src.Decode(ctx, i, within(r.want, sections[i]), func(p source.Piece) error { return r.lanes.put(i, p) })
				if err != nil {
					return err
				}
				r.lanes.end(i)
			}
			return nil
		})
	}
}

// dispatch takes the pieces in their order, and hands them to all who want them.
func (r *run) dispatch(ctx context.Context) error {
	defer r.prover.close()
	defer func() {
		for _, c := range r.to {
			close(c.queue)
		}
	}()
	for n := len(r.src.Sections()); ; {
		p, more, err := r.lanes.next(n)
		if err != nil || !more {
			return errors.Join(err, r.ended(err))
		}
		if err := r.hand(ctx, p); err != nil {
			return err
		}
	}
}

// ended looks whether the image was as long as it was said to be.
func (r *run) ended(err error) error {
	if err != nil || r.next == r.Size || r.Blocks != nil && r.src.SizeBytes() >= 0 {
		return nil
	}
	return fmt.Errorf("%s: it unpacks to %d bytes, not to %d; %s", r.Name, r.next, r.Size, r.Remedy)
}

func (r *run) hand(ctx context.Context, p source.Piece) error {
	s := source.Span{Off: p.Off, Len: p.Len}
	if s.Off < r.next || s.Len <= 0 || r.Blocks == nil && s.Off != r.next || s.Off+s.Len > r.Size {
		p.Free()
		return fmt.Errorf("%s: it unpacks to more than %d bytes; %s", r.Name, r.Size, r.Remedy)
	}
	r.next = s.Off + s.Len
	if p.Data == nil {
		return r.handZeros(ctx, s)
	}
	from := &shared{piece: p}
	from.users.Store(1)
	defer from.done()
	if err := r.prover.prove(ctx, from, p.Data, s); err != nil {
		return err
	}
	return r.each(s, func(s source.Span) error { return r.handData(ctx, from, p.Data[s.Off-p.Off:][:s.Len], s) })
}

// each calls work with what of s is content, and is to be written.
func (r *run) each(s source.Span, work func(source.Span) error) (err error) {
	if r.Blocks == nil {
		return outside(s, r.Except, work)
	}
	split(s, r.want, func(part source.Span, i int) {
		mapped := part
		mapped.Len = min(mapped.Off+mapped.Len, r.mappedEnd()) - mapped.Off
		if i >= 0 && mapped.Len > 0 && err == nil {
			err = outside(mapped, r.Except, work)
		}
	})
	return err
}

// mappedEnd is the end of the last range; what is wanted behind it only tells how
// long the image is.
func (r *run) mappedEnd() int64 {
	if len(r.ranges) == 0 {
		return 0
	}
	last := r.ranges[len(r.ranges)-1]
	return last.Off + last.Len
}

func (r *run) handZeros(ctx context.Context, s source.Span) error {
	if err := r.prover.prove(ctx, nil, nil, s); err != nil {
		return err
	}
	return r.each(s, func(s source.Span) error {
		r.zeros.add(s)
		for _, c := range r.to {
			c.Count(r.steps() * s.Len)
		}
		return nil
	})
}

func (r *run) handData(ctx context.Context, from *shared, data []byte, s source.Span) error {
	p, i := r.parts.add(part{image: s.Off, length: int32(s.Len)})
	if !r.Blind {
		if err := r.prover.sum(ctx, from, data, p); err != nil {
			return err
		}
	}
	for _, c := range r.to {
		from.users.Add(1)
		select {
		case c.queue <- piece{from: from, data: data, off: r.Base + s.Off, part: i}:
		case <-ctx.Done():
			from.done()
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *run) nobodyLeft() bool {
	return !slices.ContainsFunc(r.to, func(c *Copy) bool { return c.Err() == nil })
}

// finishCopies zeroes, reads back and rewrites wrong parts, on all copies at once.
func (r *run) finishCopies(ctx context.Context) error {
	var g errgroup.Group
	for _, c := range r.to {
		g.Go(func() error {
			if c.Err() == nil {
				c.fail(c.zeroAndReadBack(ctx, r))
			}
			return nil
		})
	}
	_ = g.Wait() // each copy keeps its own fault
	return context.Cause(ctx)
}
