package write

import (
	"bytes"
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

// provers is how many goroutines hash. Ranges of a map take turns on them; of one
// that is longer than the window, the digest keeps one busy and the sums the other.
const provers = 2

// queued is how many pieces may wait before a prover or a device's writers.
const queued = 8

// shared is a piece that several goroutines read. The last one frees it.
type shared struct {
	piece source.Piece
	users atomic.Int32
}

func (s *shared) done() {
	if s.users.Add(-1) == 0 {
		s.piece.Free()
	}
}

// task is work for a prover: a part of a range's digest, or the sum of a part.
type task struct {
	from  *shared // nil: zeros
	data  []byte
	zeros int64
	last  bool  // of its range
	of    int   // the range
	sum   *part // nil: a digest
}

// prover proves the image by its map's digests or, where it has none, computes its
// own, and sums up what is written, for those who read it back. The sums are seeded
// anew in each run and several times faster than the digests.
type prover struct {
	Options
	ranges []source.Span
	tasks  [provers]chan task
	seed   maphash.Seed
	whole  hash.Hash
	proved atomic.Int64
}

func newProver(o Options, ranges []source.Span) *prover {
	p := &prover{Options: o, ranges: ranges, seed: maphash.MakeSeed(), whole: sha256.New()}
	for i := range p.tasks {
		p.tasks[i] = make(chan task, queued)
	}
	return p
}

func (p *prover) close() {
	for _, c := range p.tasks {
		close(c)
	}
}

// work is one prover. After a fault it goes on only to free what it is given.
func (p *prover) work(tasks chan task) (err error) {
	digest := p.whole
	if p.Blocks != nil {
		digest = p.Blocks.Hash()
	}
	for t := range tasks {
		if err == nil {
			err = p.do(t, digest)
		}
		if t.from != nil {
			t.from.done()
		}
	}
	return err
}

func (p *prover) do(t task, digest hash.Hash) error {
	if t.sum != nil {
		t.sum.sum = maphash.Bytes(p.seed, t.data)
		t.sum.first = maphash.Bytes(p.seed, t.data[:min(sampleBytes, len(t.data))])
		return nil
	}
	digest.Write(t.data)
	hashZeros(digest, t.zeros)
	if !t.last {
		return nil
	}
	err := p.compare(p.Blocks.Ranges[t.of], digest)
	digest.Reset()
	if err == nil {
		p.proved.Add(1)
	}
	return err
}

func hashZeros(digest hash.Hash, n int64) {
	for ; n > 0; n -= pieceBytes {
		digest.Write(zeros()[:min(n, pieceBytes)])
	}
}

// compare proves a range of the map by its digest.
func (o Options) compare(r bmap.Range, digest hash.Hash) error {
	if got := hex.EncodeToString(digest.Sum(nil)); got != r.Sum {
		return fmt.Errorf("%s: blocks %d to %d have %s %s; the block map says %s; %s", o.Name, r.First, r.Last, o.Blocks.Algorithm, got, r.Sum, o.Remedy)
	}
	return nil
}

func (o Options) errShort() error {
	return fmt.Errorf("%s: it unpacks to less than its block map's %d bytes; %s", o.Name, o.Blocks.ImageSize, o.Remedy)
}

// prove hands a part of the image to those who hash it.
func (p *prover) prove(ctx context.Context, from *shared, data []byte, s source.Span) error {
	if p.Blocks == nil {
		return p.send(ctx, 0, task{from: from, data: data, zeros: s.Len - int64(len(data))})
	}
	var err error
	split(s, p.ranges, func(part source.Span, i int) {
		if i < 0 || err != nil {
			return
		}
		t := task{from: from, of: i, last: part.Off+part.Len == p.ranges[i].Off+p.ranges[i].Len}
		if data != nil {
			t.data = data[part.Off-s.Off:][:part.Len]
		} else {
			t.zeros = part.Len
		}
		err = p.send(ctx, i%provers, t)
	})
	return err
}

func (p *prover) send(ctx context.Context, to int, t task) error {
	if t.from != nil {
		t.from.users.Add(1)
	}
	select {
	case p.tasks[to] <- t:
		return nil
	case <-ctx.Done():
		if t.from != nil {
			t.from.done()
		}
		return context.Cause(ctx)
	}
}

// sum hands a part to the prover that does not have the digest of the same bytes.
func (p *prover) sum(ctx context.Context, from *shared, data []byte, to *part) error {
	i := 1
	if p.Blocks != nil {
		split(source.Span{Off: to.image, Len: 1}, p.ranges, func(_ source.Span, r int) { i = (r + 1) % provers })
	}
	return p.send(ctx, i, task{from: from, data: data, sum: to})
}

// short says where the image ended too early, if it did.
func (p *prover) short() error {
	if p.Blocks == nil || int(p.proved.Load()) == len(p.ranges) {
		return nil
	}
	return p.errShort()
}

// zeros serve whoever needs some.
var zeros = sync.OnceValue(func() []byte { return source.Buffer(pieceBytes) })

func isZero(p []byte) bool { return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }

// part is a run of the image's data that is written by one call.
type part struct {
	image  int64 // offset in the image
	length int32
	sum    uint64
	first  uint64 // the sum of its first block
}

func (p part) span() source.Span { return source.Span{Off: p.image, Len: int64(p.length)} }

// parts are in the image's order. Their addresses stay while more are added.
type parts struct {
	blocks [][]part
	count  int
}

const partsInBlock = 1 << 10

func (l *parts) add(p part) (*part, int) {
	if l.count%partsInBlock == 0 {
		l.blocks = append(l.blocks, make([]part, 0, partsInBlock))
	}
	last := &l.blocks[len(l.blocks)-1]
	*last = append(*last, p)
	l.count++
	return &(*last)[len(*last)-1], l.count - 1
}

func (l *parts) at(i int) part { return l.blocks[i/partsInBlock][i%partsInBlock] }
