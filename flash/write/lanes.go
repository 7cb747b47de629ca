package write

import (
	"context"
	"sync"

	"slipway/flash/source"
)

const (
	// aheadBytes is the most that sections may have decoded before their turn, which is
	// most of the memory that a flash takes. It is enough for the blocks of xz -T0.
	aheadBytes = 40 << 20
	// aheadLeast keeps the writers busy where sections are small.
	aheadLeast = 4 << 20
	// nextPieces is how far the section whose turn it is may be ahead of the writers.
	nextPieces = 8
)

// lanes puts the pieces of sections that are decoded side by side into the image's
// order: digests are of runs of bytes, and cards are fastest when written in order.
type lanes struct {
	mu     sync.Mutex
	change *sync.Cond
	lane   map[int]*lane
	turn   int
	ahead  int64 // bytes in all lanes
	limit  int64
	err    error // ends everything
}

type lane struct {
	pieces []source.Piece
	done   bool
}

func newLanes(sections []source.Section) *lanes {
	l := &lanes{lane: map[int]*lane{}, limit: aheadLeast}
	for _, s := range sections {
		l.limit = min(max(l.limit, aheadLeast+s.Len*3/2), aheadBytes)
	}
	l.change = sync.NewCond(&l.mu)
	return l
}

// stop lets nobody wait any longer.
func (l *lanes) stop(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	l.change.Broadcast()
}

func (l *lanes) of(section int) *lane {
	if l.lane[section] == nil {
		l.lane[section] = &lane{}
	}
	return l.lane[section]
}

// put takes a piece of a section, which waits while too much is decoded before its turn.
func (l *lanes) put(section int, p source.Piece) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine, size := l.of(section), int64(len(p.Data))
	for l.err == nil && l.full(section, mine, size) {
		l.change.Wait()
	}
	if l.err != nil {
		p.Free()
		return l.err
	}
	mine.pieces = append(mine.pieces, p)
	l.ahead += size
	l.change.Broadcast()
	return nil
}

func (l *lanes) full(section int, mine *lane, size int64) bool {
	if section == l.turn {
		return len(mine.pieces) >= nextPieces && l.ahead+size > l.limit/2
	}
	return l.ahead+size > l.limit
}

// end says that a section has no more pieces.
func (l *lanes) end(section int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(section).done = true
	l.change.Broadcast()
}

// next is the image's next piece; false after that of the last of n sections.
func (l *lanes) next(n int) (source.Piece, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.err == nil && l.turn < n {
		mine := l.of(l.turn)
		switch {
		case len(mine.pieces) > 0:
			p := mine.pieces[0]
			mine.pieces[0] = source.Piece{}
			mine.pieces = mine.pieces[1:]
			l.ahead -= int64(len(p.Data))
			l.change.Broadcast()
			return p, true, nil
		case mine.done:
			delete(l.lane, l.turn)
			l.turn++
			l.change.Broadcast()
		default:
			l.change.Wait()
		}
	}
	return source.Piece{}, false, l.err
}

// drop gives back what nobody will take.
func (l *lanes) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range l.lane {
		for _, p := range lane.pieces {
			p.Free()
		}
	}
	l.lane = map[int]*lane{}
}

// watch stops the lanes with ctx.
func (l *lanes) watch(ctx context.Context) (end func() bool) {
	return context.AfterFunc(ctx, func() { l.stop(context.Cause(ctx)) })
}
