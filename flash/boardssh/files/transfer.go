package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/flash/boardssh"
)

// A long round trip limits one channel, because its window is 2 MiB, however fast the line is. Each
// further connection has a window of its own, and a process and a core on the board.
const (
	severalBytes  = 32 << 20             // smaller files arrive before another connection opens
	manyBytes     = 256 << 20            // up to this size, more connections still pay
	longRoundTrip = 5 * time.Millisecond // from here on, the window limits the rate before the processor does
	windowBytes   = 2 << 20
	processorRate = 150 << 20 // bytes a second that a slow processor reads, hashes, encrypts and sends
)

// stream is one channel to the board's files. The first stream of a transfer uses the connection
// that everything uses. Each of the others has a connection of its own.
type stream struct {
	conn  *boardssh.Conn
	files boardFiles
	file  pieceWriter // open after the pieces were written; otherwise nil
	err   error
}

// finalError is an error that no other stream can fix: of the local file, or of a refused write.
type finalError struct{ error }

func (f finalError) Unwrap() error { return f.error }

// transfer sends one file over several streams.
type transfer struct {
	conn  *boardssh.Conn
	src   source
	name  string      // on the board; the file exists
	file  pieceWriter // that file, open since it was created; nil: the first stream opens it
	queue *pieceQueue
	early *earlyStreams

	roundTrip  time.Duration
	pieceBytes int64 // the most that a stream takes at once

	mu      sync.Mutex
	streams []*stream
}

// sendAll sends all pieces, first over b, then over more streams as they open, up to n in all. It
// returns a stream that works, to finish the file on. k.close closes the other streams.
func (k *transfer) sendAll(ctx context.Context, b boardFiles, n int) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.pieceBytes = b.pieceBytes()
	opening, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	k.startStream(ctx, &all, &stream{conn: k.conn, files: b, file: k.file})
	all.Go(func() { k.addStreams(opening, ctx, &all, n-1) })
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-k.queue.done:
	case <-ended: // no stream is left
	}
	stop()
	if k.queue.failure() != nil {
		cancel()
	}
	<-ended
	return k.workingStream(ctx)
}

// countStreams returns how many streams, 1 to 6, to use for this many bytes. A rate limit that one
// stream reaches, or few bytes, need only one.
func countStreams(c *boardssh.Conn, left int64, roundTrip time.Duration) int {
	switch {
	case left < severalBytes || rateFits(c.Rate(), windowBytes, roundTrip):
		return 1
	case roundTrip < longRoundTrip:
		return 2
	case left < manyBytes:
		return min(4, fillingStreams(runtime.NumCPU(), roundTrip))
	}
	return fillingStreams(runtime.NumCPU(), roundTrip)
}

// fillingStreams returns how many streams, 2 to 6, carry what this machine's processors can send.
// More streams would only cost processor time, here and on the board.
func fillingStreams(processors int, roundTrip time.Duration) int {
	windows := float64(processors) * processorRate * roundTrip.Seconds() / windowBytes
	return int(min(6, max(2, math.Round(windows))))
}

// unknownRoundTrip is used for a round trip that was not measured. It is longer than any real one.
const unknownRoundTrip = time.Hour

// measureRoundTrip starts to measure the round trip before data fill the line, and returns a
// function that waits for the result. For a small file that is unknownRoundTrip, without measuring.
func measureRoundTrip(ctx context.Context, c *boardssh.Conn, size int64) func() time.Duration {
	if size < severalBytes {
		return func() time.Duration { return unknownRoundTrip }
	}
	rtt := sync.OnceValue(func() time.Duration {
		if best, known := c.RoundTrip(ctx); known {
			return best
		}
		return unknownRoundTrip // the transfer will report the error
	})
	go rtt()
	return rtt
}

// openersAtOnce is how many logins run at once, since each waits for a dozen answers. sshd refuses
// some if ten are pending, and dropbear if five of one address are.
const openersAtOnce = 3

// addStreams adds up to n streams as they open, until opening ends, to send within ctx. It stops if
// the board accepts no more connections, or offers another kind of channel (SFTP or shell).
func (k *transfer) addStreams(opening, ctx context.Context, group *sync.WaitGroup, n int) {
	for range n {
		w := k.early.nextStream(opening)
		if w == nil {
			return
		}
		if w.files.pieceBytes() != k.pieceBytes { // not the same kind of channel: SFTP and shell
			w.conn.Close()
			return
		}
		k.startStream(ctx, group, w)
	}
}

// openStream makes one more connection to the board, with a channel to its files.
func openStream(ctx context.Context, c *boardssh.Conn) (*stream, error) {
	conn, err := c.DialAgain(ctx)
	if err != nil {
		return nil, err
	}
	b, err := openChannel(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &stream{conn: conn, files: b}, nil
}

// earlyStreams opens streams before Slipway knows how many the file needs.
type earlyStreams struct {
	opened chan *stream // is closed when there are no more
	ended  atomic.Bool
}

// openEarlyStreams starts to open all streams but the first, while the first finds out what the
// board already has of the file. several returns how many streams are needed. If two is set, the
// second stream does not wait for that.
func openEarlyStreams(ctx context.Context, c *boardssh.Conn, two bool, several func() int) *earlyStreams {
	e := &earlyStreams{opened: make(chan *stream)}
	go func() {
		defer close(e.opened)
		var openers errgroup.Group
		openers.SetLimit(openersAtOnce)
		n := 1
		if two {
			openers.Go(func() error { return e.openOne(ctx, c) })
			n++
		}
		for ; n < several(); n++ {
			openers.Go(func() error { return e.openOne(ctx, c) })
		}
		_ = openers.Wait() // if the board refuses more, the transfer uses those that are open
	}()
	return e
}

// openOne opens a stream and hands it to nextStream. After an error or close, it does nothing.
func (e *earlyStreams) openOne(ctx context.Context, c *boardssh.Conn) error {
	if e.ended.Load() {
		return nil
	}
	w, err := openStream(ctx, c)
	if err != nil {
		e.ended.Store(true)
		return err
	}
	e.opened <- w
	return nil
}

// nextStream waits for the next open stream. It returns nil if there are no more, or if ctx ends.
func (e *earlyStreams) nextStream(ctx context.Context) *stream {
	select {
	case w := <-e.opened:
		return w
	case <-ctx.Done():
		return nil
	}
}

// close closes the streams that nobody has taken, in the background. It does not interrupt logins:
// sshd remembers addresses that break logins off, and refuses them for a while.
func (e *earlyStreams) close() {
	e.ended.Store(true)
	go func() {
		for w := range e.opened {
			w.conn.Close()
		}
	}()
}

// startStream adds w to k.streams, and sends pieces over it in a goroutine of group. After an
// error, it sets w.err and closes w's own connection.
func (k *transfer) startStream(ctx context.Context, group *sync.WaitGroup, w *stream) {
	k.mu.Lock()
	k.streams = append(k.streams, w)
	k.mu.Unlock()
	group.Go(func() {
		err := w.files.do(ctx, func() error { return k.servePieces(ctx, w) })
		k.mu.Lock()
		defer k.mu.Unlock()
		if w.err = err; err != nil && w.conn != k.conn {
			w.conn.Close()
		}
	})
}

// servePieces sends pieces over w, several at once, to the last. w.file is nil only on an error.
func (k *transfer) servePieces(ctx context.Context, w *stream) (err error) {
	file := w.file
	w.file = nil
	if file == nil {
		if file, err = w.files.openFile(k.name); err != nil {
			return err
		}
	}
	workers, working := errgroup.WithContext(ctx)
	for range w.files.inFlight(k.roundTrip) {
		workers.Go(func() error { return k.sendPieces(working, w, file) })
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	w.file = file
	return nil
}

// sendPieces sends one piece after the other from the queue, until there are no more or one fails.
func (k *transfer) sendPieces(ctx context.Context, w *stream, file pieceWriter) error {
	for {
		p, ok := k.queue.nextPiece(ctx, k.pieceBytes)
		if !ok {
			return context.Cause(ctx)
		}
		err := file.writePiece(ctx, k.src.data, p)
		k.queue.recordAnswer(p, err)
		if err != nil {
			return err
		}
	}
}

// workingStream returns a working stream if the whole file has arrived, else the transfer's error.
func (k *transfer) workingStream(ctx context.Context) (*stream, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch err := k.queue.failure(); {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	for _, w := range k.streams {
		if w.err == nil && k.queue.bytesLeft() == 0 {
			return w, nil
		}
	}
	return nil, fmt.Errorf("write: %w", k.streams[0].err)
}

// syncFile syncs the file on w to the disk while the other streams close it, because a program that
// is open for writing cannot run. mayBeOpen: another stream did not confirm its close.
func (k *transfer) syncFile(ctx context.Context, w *stream) (mayBeOpen bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var closed atomic.Int64
	var all errgroup.Group
	for _, other := range k.streams {
		if other == w || other.file == nil {
			continue
		}
		all.Go(func() error {
			if other.files.do(ctx, other.file.Close) == nil {
				closed.Add(1)
			}
			return nil
		})
	}
	all.Go(func() error { return w.file.sync(ctx, k.src.size) })
	err = all.Wait()
	return closed.Load() < int64(len(k.streams)-1), err
}

// close closes the connections of all streams except the first, which others use.
func (k *transfer) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.streams {
		if w.conn != k.conn {
			w.conn.Close()
		}
	}
}

// piece is a range of a file.
type piece struct{ offset, length int64 }

// pieceWriter is a file on the board that is open for pieces, in any order and several at once.
type pieceWriter interface {
	writePiece(ctx context.Context, src io.ReaderAt, p piece) error
	// sync writes the file's size bytes to the disk, or leaves that to finish.
	sync(ctx context.Context, size int64) error
	// finish gives the file its mode and closes it.
	finish(ctx context.Context, mode fs.FileMode) error
	Close() error
}

// pieceQueue holds the pieces of a file that the board has not confirmed. A stream takes the next
// piece when it has space for it, so a slow one takes few. Others get a failed stream's pieces.
type pieceQueue struct {
	count func(int64) // called with the number of bytes that arrived
	done  chan struct{}

	mu      sync.Mutex
	todo    []piece
	out     map[piece]bool // taken by a stream, and not answered
	left    int64          // bytes in todo and out
	err     error
	changed chan struct{} // closed and replaced when pieces are returned

	arrived chan struct{} // has an element if a piece has arrived since the last waitForArrival
}

// newQueue makes a queue of todo, done at once if that is empty. count gets the bytes that arrive.
func newQueue(todo []piece, count func(int64)) *pieceQueue {
	q := &pieceQueue{count: count, done: make(chan struct{}), todo: todo, out: map[piece]bool{}, changed: make(chan struct{}), arrived: make(chan struct{}, 1)}
	for _, p := range todo {
		q.left += p.length
	}
	if q.left == 0 {
		close(q.done)
	}
	return q
}

// nextPiece takes a piece of at most the given size, and waits if there is none. It returns false
// when all pieces have arrived, the transfer has failed, or ctx ends.
func (q *pieceQueue) nextPiece(ctx context.Context, most int64) (piece, bool) {
	for {
		p, ok, changed := q.popPiece(most)
		if ok {
			return p, true
		}
		select {
		case <-ctx.Done():
			return piece{}, false
		case <-q.done:
			return piece{}, false
		case <-changed:
		}
	}
}

// popPiece takes a piece of up to most bytes. If none is left, also when all have arrived, or after
// an error, it returns false and a channel that closes when pieces come back.
func (q *pieceQueue) popPiece(most int64) (piece, bool, chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p, ok := q.cutPiece(most)
	if !ok || q.err != nil {
		return piece{}, false, q.changed
	}
	q.out[p] = true
	return p, true, nil
}

// cutPiece takes up to most bytes from the first piece of todo. It returns false if there is none.
func (q *pieceQueue) cutPiece(most int64) (piece, bool) {
	if len(q.todo) == 0 {
		return piece{}, false
	}
	p := q.todo[0]
	if p.length <= most {
		q.todo = q.todo[1:]
		return p, true
	}
	q.todo[0] = piece{p.offset + most, p.length - most}
	return piece{p.offset, most}, true
}

// recordAnswer records the board's answer to a piece. A failed piece goes back into the queue. A
// finalError, or the last piece, ends the transfer.
func (q *pieceQueue) recordAnswer(p piece, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.out, p)
	switch {
	case err == nil:
		q.left -= p.length
		q.count(p.length)
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	case errors.As(err, new(finalError)):
		q.finishAll(err)
	default:
		q.todo = append([]piece{p}, q.todo...)
		close(q.changed)
		q.changed = make(chan struct{})
	}
	if q.left == 0 {
		q.finishAll(nil)
	}
}

// finishAll ends the transfer with err; nil is success. Only the first call counts.
func (q *pieceQueue) finishAll(err error) {
	select {
	case <-q.done:
	default:
		q.err = err
		close(q.done)
	}
}

// waitForArrival waits until a piece has arrived. It returns false when no more will, or ctx ends.
func (q *pieceQueue) waitForArrival(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-q.arrived:
		return true
	case <-q.done:
		return false
	}
}

// contiguousBytes returns how many of a file's first bytes have arrived without a gap.
func (q *pieceQueue) contiguousBytes(size int64) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.todo {
		size = min(size, p.offset)
	}
	for p := range q.out {
		size = min(size, p.offset)
	}
	return size
}

// bytesLeft returns how many bytes the board has not confirmed.
func (q *pieceQueue) bytesLeft() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.left
}

// failure returns the finalError that ended the transfer, or nil.
func (q *pieceQueue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// rateFits reports whether a channel that carries window bytes in each round trip reaches the rate
// limit. Without a limit it returns false.
func rateFits(rate boardssh.Rate, window int64, roundTrip time.Duration) bool {
	return rate != 0 && float64(rate)*roundTrip.Seconds() <= float64(window)
}
