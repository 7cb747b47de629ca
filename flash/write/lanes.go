package write

import (
	"sync"

	"slipway/flash/source"
)

const (
	// aheadBytes is how much may be decoded ahead, which is most of a flash's memory.
	// It is enough for the blocks of xz -T0.
	aheadBytes = 40 << 20
	// aheadLeast is the minimum, which keeps the writers busy where sections are small.
	aheadLeast = 4 << 20
	// nextPieces is how many pieces the current section may be ahead of the writers.
	nextPieces = 8
)

// reorderQueue puts the pieces of sections that are decoded in parallel into the image's order.
// Digests need that order, and cards are fastest when written in it.
type reorderQueue struct {
	mu      sync.Mutex
	changed *sync.Cond
	queues  map[int]*sectionQueue
	current int
	ahead   int64 // bytes in all queues
	limit   int64
	err     error // ends everything
}

type sectionQueue struct {
	pieces []source.Piece
	done   bool
}

// newReorderQueue returns an empty queue. Its limit grows with the longest section, to aheadBytes.
func newReorderQueue(sections []source.Section) *reorderQueue {
	l := &reorderQueue{queues: map[int]*sectionQueue{}, limit: aheadLeast}
	for _, s := range sections {
		l.limit = min(max(l.limit, aheadLeast+s.Len*3/2), aheadBytes)
	}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// fail makes all waiting and later calls return err, or the error of an earlier fail.
func (l *reorderQueue) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	l.changed.Broadcast()
}

// sectionQueue returns the queue of a section, and creates it if there is none.
func (l *reorderQueue) sectionQueue(section int) *sectionQueue {
	if l.queues[section] == nil {
		l.queues[section] = &sectionQueue{}
	}
	return l.queues[section]
}

// addPiece queues a section's piece. It waits while too much is decoded. A failed queue frees it.
func (l *reorderQueue) addPiece(section int, p source.Piece) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine, size := l.sectionQueue(section), int64(len(p.Data))
	for l.err == nil && l.isFull(section, mine, size) {
		l.changed.Wait()
	}
	if l.err != nil {
		p.Free()
		return l.err
	}
	mine.pieces = append(mine.pieces, p)
	l.ahead += size
	l.changed.Broadcast()
	return nil
}

// isFull reports whether a section must wait before it adds size bytes.
func (l *reorderQueue) isFull(section int, mine *sectionQueue, size int64) bool {
	if section == l.current {
		return len(mine.pieces) >= nextPieces && l.ahead+size > l.limit/2
	}
	return l.ahead+size > l.limit
}

// endSection marks a section as complete: it has no further pieces.
func (l *reorderQueue) endSection(section int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sectionQueue(section).done = true
	l.changed.Broadcast()
}

// nextPiece waits for and returns the image's next piece; false after the last piece of n sections.
func (l *reorderQueue) nextPiece(n int) (source.Piece, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.err == nil && l.current < n {
		mine := l.sectionQueue(l.current)
		switch {
		case len(mine.pieces) > 0:
			p := mine.pieces[0]
			mine.pieces[0] = source.Piece{}
			mine.pieces = mine.pieces[1:]
			l.ahead -= int64(len(p.Data))
			l.changed.Broadcast()
			return p, true, nil
		case mine.done:
			delete(l.queues, l.current)
			l.current++
			l.changed.Broadcast()
		default:
			l.changed.Wait()
		}
	}
	return source.Piece{}, false, l.err
}

// freePieces frees the pieces that nobody took.
func (l *reorderQueue) freePieces() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range l.queues {
		for _, p := range lane.pieces {
			p.Free()
		}
	}
	l.queues = map[int]*sectionQueue{}
}
