package write

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"slipway/flash/source"
	"slipway/images/bmap"
)

// hashers is how many goroutines hash. The map's ranges alternate between them. Of a long range,
// one computes the digest and the other the sums.
const hashers = 2

// queued is how many pieces may wait for a hasher or for a device's writers.
const queued = 8

// sharedPiece is a piece that several goroutines read. The last one frees it.
type sharedPiece struct {
	piece source.Piece
	users atomic.Int32
}

// release ends one use of the piece. The last one frees it.
func (s *sharedPiece) release() {
	if s.users.Add(-1) == 0 {
		s.piece.Free()
	}
}

// hashTask is a span to add to a range's digest, or a part to sum.
type hashTask struct {
	from  *sharedPiece // nil: zeros
	data  []byte
	zeros int64
	last  bool  // of its range
	of    int   // the range
	sum   *part // nil: a digest
}

// prover verifies the image by its map's digests, or computes the SHA-256 of an image without a
// map. It also computes a sum of each written part for the read-back. The sums have a new seed in
// each run, unless runs share Options.Sums, and are several times faster than digests.
type prover struct {
	Options
	ranges []source.Span
	tasks  [hashers]chan hashTask
	seed   maphash.Seed
	whole  hash.Hash
	proved atomic.Int64
}

// newProver returns a prover with empty queues. It starts no hasher.
func newProver(o Options, ranges []source.Span) *prover {
	if o.Sums == nil {
		o.Sums = NewSums()
	}
	p := &prover{Options: o, ranges: ranges, seed: o.Sums.seed, whole: sha256.New()}
	for i := range p.tasks {
		p.tasks[i] = make(chan hashTask, queued)
	}
	return p
}

// runHasher runs one hasher's tasks and returns the first error, after which it only frees pieces.
func (p *prover) runHasher(tasks chan hashTask) (err error) {
	digest := p.whole
	if p.Blocks != nil {
		digest = sha256.New()
	}
	for t := range tasks {
		if err == nil {
			err = p.hashPart(t, digest)
		}
		if t.from != nil {
			t.from.release()
		}
	}
	return err
}

// hashPart sums a part, or adds a span to digest, and at the end of a range checks and counts that.
func (p *prover) hashPart(t hashTask, digest hash.Hash) error {
	if t.sum != nil {
		t.sum.once.Do(func() {
			t.sum.sum = maphash.Bytes(p.seed, t.data)
			t.sum.first = maphash.Bytes(p.seed, t.data[:min(sampleBytes, len(t.data))])
		})
		return nil
	}
	digest.Write(t.data)
	source.WriteZeros(digest, t.zeros)
	if !t.last {
		return nil
	}
	err := p.checkRange(p.Blocks.Ranges[t.of], digest)
	digest.Reset()
	if err == nil {
		p.proved.Add(1)
	}
	return err
}

// checkRange returns an error if the digest is not the map's for the range.
func (o Options) checkRange(r bmap.Range, digest hash.Hash) error {
	if got := hex.EncodeToString(digest.Sum(nil)); got != r.Sum {
		return fmt.Errorf("%s: blocks %d to %d have sha256 %s; the block map has %s; %s", o.Name, r.First, r.Last, got, r.Sum, o.Remedy)
	}
	return nil
}

func (o Options) shortImageError() error {
	return fmt.Errorf("%s: it unpacks to less than its block map's %d bytes; %s", o.Name, o.Blocks.ImageSize, o.Remedy)
}

// hashSpan queues a span for its ranges' digests, or without a map the image's. nil data is zeros.
// It does nothing for an image that is proved already.
func (p *prover) hashSpan(ctx context.Context, from *sharedPiece, data []byte, s source.Span) error {
	if p.Proved {
		return nil
	}
	if p.Blocks == nil {
		return p.queueTask(ctx, 0, hashTask{from: from, data: data, zeros: s.Len - int64(len(data))})
	}
	var err error
	splitSpan(s, p.ranges, func(part source.Span, i int) {
		if i < 0 || err != nil {
			return
		}
		t := hashTask{from: from, of: i, last: part.Off+part.Len == p.ranges[i].Off+p.ranges[i].Len}
		if data != nil {
			t.data = data[part.Off-s.Off:][:part.Len]
		} else {
			t.zeros = part.Len
		}
		err = p.queueTask(ctx, i%hashers, t)
	})
	return err
}

// queueTask queues a task for a hasher. The task uses its piece until the hasher releases it.
func (p *prover) queueTask(ctx context.Context, to int, t hashTask) error {
	if t.from != nil {
		t.from.users.Add(1)
	}
	select {
	case p.tasks[to] <- t:
		return nil
	case <-ctx.Done():
		if t.from != nil {
			t.from.release()
		}
		return context.Cause(ctx)
	}
}

// sumPart queues a part for summing, on the hasher that is not busy with the same bytes' digest.
func (p *prover) sumPart(ctx context.Context, from *sharedPiece, data []byte, to *part) error {
	i := 1
	if p.Blocks != nil {
		splitSpan(source.Span{Off: to.image, Len: 1}, p.ranges, func(_ source.Span, r int) { i = (r + 1) % hashers })
	}
	return p.queueTask(ctx, i, hashTask{from: from, data: data, sum: to})
}

// checkComplete returns an error if the image ended before all of the map's ranges were verified.
func (p *prover) checkComplete() error {
	if p.Blocks == nil || int(p.proved.Load()) == len(p.ranges) {
		return nil
	}
	return p.shortImageError()
}

// zeros is a shared buffer of zeros.
var zeros = sync.OnceValue(func() []byte { return source.Buffer(pieceBytes) })

// part is a run of the image's data that one call writes.
type part struct {
	image  int64 // offset in the image
	length int32
	once   sync.Once // for the sums
	sum    uint64
	first  uint64 // the sum of its first block
}

// Sums keeps the parts of an image with their sums for the runs that write it, also at once, so that
// only the first to need a sum computes it. All of them must write the same image.
type Sums struct {
	seed  maphash.Seed
	parts sync.Map // *part by its span
}

// NewSums returns Sums with a new random seed.
func NewSums() *Sums { return &Sums{seed: maphash.MakeSeed()} }

// part returns the image's part of a span, which runs share.
func (s *Sums) part(span source.Span) *part {
	if p, found := s.parts.Load(span); found {
		return p.(*part)
	}
	p, _ := s.parts.LoadOrStore(span, &part{image: span.Off, length: int32(span.Len)})
	return p.(*part)
}

func (p *part) span() source.Span { return source.Span{Off: p.image, Len: int64(p.length)} }
