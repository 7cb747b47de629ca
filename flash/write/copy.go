package write

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"slipway/flash/source"
	"slipway/layers/plaintext"
)

// writers is how many goroutines write to a device. Two keep it busy while one waits for a core.
const writers = 2

// CopyOptions says how a Copy treats its device.
type CopyOptions struct {
	Fresh bool // the disk is a new file that is one hole: nothing is compared or zeroed
	// Marked is for devices, which cannot be renamed at the end. Their first and last MiB are zero
	// until Complete, so that an incomplete device does not boot.
	Marked bool
	// ProbeFrom is an offset behind the image, from which on a Marked device is proved to keep data at
	// random places, which are not restored. 0: only its end is proved.
	ProbeFrom int64
	Phase     func(what string, bytes int64)    // called at the start of each phase, with the number of bytes that it counts
	Count     func(bytes int64)                 // called during a phase
	Save      func(old []byte, off int64) error // receives the replaced ends, once, before the first write
}

// Copy writes an image to one device or file.
type Copy struct {
	CopyOptions
	disk *Disk
	held []*heldEnd

	mu       sync.Mutex // for the first write
	begun    bool
	stamped  bool  // the stamp is on the device
	beginErr error // saving or zeroing the ends failed; nothing else is written

	dataSampling, zeroSampling sampling
	queue                      chan piece
	wrote, proved              bitSet // the run's parts that are written, and read back correctly

	fault struct {
		sync.Mutex
		error
	}
	written, left, verified, zeroed atomic.Int64
}

// piece is a piece of the image in a Copy's queue.
type piece struct {
	from *sharedPiece
	data []byte
	off  int64 // on the device
	part int
}

// Result counts the bytes that a Copy handled.
type Result struct {
	Written  int64 // bytes of data that differed, or were not compared
	Left     int64 // bytes of data that the device held already, all compared
	Verified int64 // written bytes that were read back and compared
	Zeroed   int64 // bytes that were made zero or were zero
}

// NewCopy returns a Copy. If o.Marked, it reads the device's first and last MiB. It writes nothing.
func NewCopy(d *Disk, o CopyOptions) (*Copy, error) {
	c := &Copy{CopyOptions: o, disk: d}
	if o.Count == nil {
		c.Count = func(int64) {}
	}
	if o.Phase == nil {
		c.Phase = func(string, int64) {}
	}
	if !o.Marked {
		return c, nil
	}
	return c, c.readEnds()
}

// Result returns the counts so far. It may be called at any time.
func (c *Copy) Result() Result {
	return Result{c.written.Load(), c.left.Load(), c.verified.Load(), c.zeroed.Load()}
}

// Touched reports whether Slipway has begun to write to the device.
func (c *Copy) Touched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

// Err returns the error that ended the copy, or nil.
func (c *Copy) Err() error {
	c.fault.Lock()
	defer c.fault.Unlock()
	return c.fault.error
}

// setError keeps err, unless an earlier error is kept.
func (c *Copy) setError(err error) {
	c.fault.Lock()
	defer c.fault.Unlock()
	if c.fault.error == nil {
		c.fault.error = err
	}
}

// startWriters makes c.queue, empties c.wrote and c.proved, begins the phase, and starts the
// goroutines that write the pieces. After an error they call lost, and only free further pieces.
func (c *Copy) startWriters(ctx context.Context, r *run, lost func(), done *sync.WaitGroup) {
	c.queue, c.wrote, c.proved = make(chan piece, queued), bitSet{}, bitSet{}
	c.Phase(plaintext.Either(c.Fresh, "writing", "comparing and writing"), r.DataBytes())
	for range writers {
		done.Go(func() {
			buf := source.Buffer(pieceBytes)
			for p := range c.queue {
				if c.Err() == nil && ctx.Err() == nil {
					if err := c.writePiece(p, buf); err != nil {
						c.setError(err)
						lost()
					}
				}
				p.from.release()
			}
		})
	}
}

// writePiece writes a piece to the device. The held first and last MiB go to memory, for Complete.
func (c *Copy) writePiece(p piece, buf []byte) (err error) {
	splitSpan(source.Span{Off: p.off, Len: int64(len(p.data))}, c.heldSpans(), func(s source.Span, h int) {
		data := p.data[s.Off-p.off:][:s.Len]
		switch {
		case err != nil:
		case h >= 0:
			copy(c.held[h].now[s.Off-c.held[h].off:], data)
			c.Count(s.Len)
		default:
			err = c.writeDiffering(data, s.Off, p.part, buf)
		}
	})
	return err
}

// writeDiffering writes data at off and records part as written, unless the device has it already.
func (c *Copy) writeDiffering(data []byte, off int64, part int, buf []byte) error {
	n := int64(len(data))
	if c.holdsData(data, off, buf, &c.dataSampling) {
		c.left.Add(n)
		c.Count(n)
		return nil
	}
	if err := c.writeData(data, off); err != nil {
		return err
	}
	c.wrote.add(part)
	c.written.Add(n)
	c.Count(n)
	return nil
}

// writeData writes all data to the device. Before the first, it saves and zeroes the device's ends.
func (c *Copy) writeData(data []byte, off int64) error {
	if err := c.beginWriting(); err != nil {
		return err
	}
	if _, err := c.disk.WriteAt(data, off); err != nil {
		return c.disk.explainError(fmt.Sprintf("write %d bytes at %d", len(data), off), err)
	}
	return nil
}

const (
	// sampleBytes is read first, where a difference is likely.
	sampleBytes = 4096
	// maxMisses is how many differences in a row show that the device has other content.
	maxMisses = 8
	// sampleEvery is how often a part is sampled from then on.
	sampleEvery = 16
)

// sampling decides which parts of a device to compare before the write. After maxMisses different
// parts in a row, it selects every sampleEvery-th, until one is equal: on a new card this costs
// less than 1 % of the writing. A nil sampling selects all parts.
type sampling struct {
	sync.Mutex
	misses, skipped int
	agreed          bool // whether the last sampled part agreed
}

// samplePart returns whether to compare the next part, and if the last was equal. nil: true, true.
func (l *sampling) samplePart() (look, agreed bool) {
	if l == nil {
		return true, true
	}
	l.Lock()
	defer l.Unlock()
	if l.misses < maxMisses {
		return true, l.agreed
	}
	l.skipped++
	if l.skipped < sampleEvery {
		return false, false
	}
	l.skipped = 0
	return true, false
}

// recordSample records whether the compared part was equal.
func (l *sampling) recordSample(same bool) {
	if l == nil {
		return
	}
	l.Lock()
	defer l.Unlock()
	l.agreed = same
	if same {
		l.misses = 0
	} else {
		l.misses++
	}
}

// holdsData reports whether the device has data at off. It is false without a comparison for a
// fresh file, and if l skips this part. It is also false after a read error, because a sector that
// was never written may be unreadable.
func (c *Copy) holdsData(data []byte, off int64, buf []byte, l *sampling) bool {
	if c.Fresh {
		return false
	}
	looked, agreed := l.samplePart()
	if !looked {
		return false
	}
	same := agreed || c.hasSample(data, off, buf)
	if same {
		n, err := c.disk.ReadAt(buf[:len(data)], off)
		same = err == nil && n == len(data) && bytes.Equal(buf[:n], data)
	}
	l.recordSample(same)
	return same
}

// hasSample compares one block of data with the device, and returns true for data of up to four
// blocks. It prefers a block that is not all zeros, because zeros are everywhere on a disk.
func (c *Copy) hasSample(data []byte, off int64, buf []byte) bool {
	if len(data) <= 4*sampleBytes {
		return true // as cheap to compare at once
	}
	at := 0
	for at+2*sampleBytes <= len(data) && source.IsZero(data[at:at+sampleBytes]) {
		at += sampleBytes
	}
	n, err := c.disk.ReadAt(buf[:sampleBytes], off+int64(at))
	return err == nil && n == sampleBytes && bytes.Equal(buf[:n], data[at:at+sampleBytes])
}

// bitSet is a set of small integers that goroutines share.
type bitSet struct {
	mu    sync.Mutex
	words []uint64
}

func (b *bitSet) add(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i/64 >= len(b.words) {
		b.words = append(b.words, 0)
	}
	b.words[i/64] |= 1 << (i % 64)
}

func (b *bitSet) contains(i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return i/64 < len(b.words) && b.words[i/64]&(1<<(i%64)) != 0
}
