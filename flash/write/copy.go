package write

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"slipway/flash/source"
)

// writers is how many goroutines write to one device. Two keep it busy while one of
// them waits for a core; more gain nothing.
const writers = 2

// CopyOptions is what a copy is to be.
type CopyOptions struct {
	Fresh bool // the disk is a new file, all of it a hole: nothing is compared, nothing zeroed
	// Marked is for what has no name that it could get last. Its first and last MiB are
	// zero from the first write on, and are written by Complete alone: nothing takes it
	// for whole, and nothing boots from it.
	Marked bool
	Dry    bool                              // compare, and write nothing
	Count  func(bytes int64)                 // called as the work goes on; the sum of all calls is Work's
	Detail func(what string)                 // called where another kind of work begins
	Save   func(old []byte, off int64) error // is given what the marks replace, once, before the first write
}

// Copy is what one device or file gets of an image.
type Copy struct {
	CopyOptions
	disk *Disk
	held []*held

	mu       sync.Mutex // for the first write
	begun    bool
	unmarked error // the ends could not be made zero; nothing else is written then

	look, zeroLook look
	queue          chan piece
	wrote, proved  bits  // the parts of the run that is under way: written, and read back as they should be
	steps          int64 // that each byte of data takes

	fault struct {
		sync.Mutex
		error
	}
	written, left, verified, zeroed atomic.Int64
}

// piece is a part of the image on its way to a device.
type piece struct {
	from *shared
	data []byte
	off  int64 // on the device
	part int
}

// Result is what was done to a device.
type Result struct {
	Written  int64 // bytes of data that differed, or were not compared
	Left     int64 // bytes of data that were there already, as a comparison with all of them proved
	Verified int64 // bytes of what was written that were read back and compared
	Zeroed   int64 // bytes that were made zero, or found to be
}

// NewCopy looks at what the marks would replace, and changes nothing.
func NewCopy(d *Disk, o CopyOptions) (*Copy, error) {
	c := &Copy{CopyOptions: o, disk: d}
	if o.Count == nil {
		c.Count = func(int64) {}
	}
	if o.Detail == nil {
		c.Detail = func(string) {}
	}
	if !o.Marked {
		return c, nil
	}
	return c, c.hold()
}

// Result may be asked for at any time.
func (c *Copy) Result() Result {
	return Result{c.written.Load(), c.left.Load(), c.verified.Load(), c.zeroed.Load()}
}

// Touched says whether anything was written to the device.
func (c *Copy) Touched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

// Err is why the device is not whole, and will not be.
func (c *Copy) Err() error {
	c.fault.Lock()
	defer c.fault.Unlock()
	return c.fault.error
}

func (c *Copy) fail(err error) {
	c.fault.Lock()
	defer c.fault.Unlock()
	if c.fault.error == nil {
		c.fault.error = err
	}
}

// startWriters starts the copy's writers for one run. Where its device fails, they only free
// what they are given; when no device is left, lost is called.
func (c *Copy) startWriters(ctx context.Context, r *run, lost func(), done *sync.WaitGroup) {
	c.queue, c.wrote, c.proved, c.steps = make(chan piece, queued), bits{}, bits{}, r.steps()
	c.Detail("writing")
	for range writers {
		done.Go(func() {
			buf := source.Buffer(pieceBytes)
			for p := range c.queue {
				if c.Err() == nil && ctx.Err() == nil {
					if err := c.put(p, buf); err != nil {
						c.fail(err)
						lost()
					}
				}
				p.from.done()
			}
		})
	}
}

// put brings one part to the device.
func (c *Copy) put(p piece, buf []byte) (err error) {
	split(source.Span{Off: p.off, Len: int64(len(p.data))}, c.heldSpans(), func(s source.Span, h int) {
		data := p.data[s.Off-p.off:][:s.Len]
		switch {
		case err != nil:
		case h >= 0:
			copy(c.held[h].now[s.Off-c.held[h].off:], data)
			c.Count(c.steps * s.Len)
		default:
			err = c.place(data, s.Off, p.part, buf)
		}
	})
	return err
}

// place writes data where it differs from what is there.
func (c *Copy) place(data []byte, off int64, part int, buf []byte) error {
	n := int64(len(data))
	if c.has(data, off, buf, &c.look) {
		c.left.Add(n)
		c.Count(c.steps * n)
		return nil
	}
	if err := c.write(data, off); err != nil {
		return err
	}
	c.wrote.set(part)
	c.written.Add(n)
	c.Count(n)
	return nil
}

// write is every write's way to the device.
func (c *Copy) write(data []byte, off int64) error {
	if c.Dry {
		return nil
	}
	if err := c.start(); err != nil {
		return err
	}
	if _, err := c.disk.WriteAt(data, off); err != nil {
		return c.disk.explain(fmt.Sprintf("write %d bytes at %d", len(data), off), err)
	}
	return nil
}

const (
	// sampleBytes is what is read first, where a difference is likely.
	sampleBytes = 4096
	// patience is how many differences in a row show that the device holds something else.
	patience = 8
	// lookEvery is how often one of the parts is looked at from then on.
	lookEvery = 16
)

// look decides what is compared. On a card that is flashed for the first time it costs
// less than 1 % of the writing: a block of each of the first parts, then one of every
// lookEvery-th. Once one agrees, all that follow are compared again.
type look struct {
	sync.Mutex
	misses, skipped int
	agreed          bool // the last that was looked at
}

func (l *look) next() (look, agreed bool) {
	if l == nil {
		return true, true
	}
	l.Lock()
	defer l.Unlock()
	if l.misses < patience {
		return true, l.agreed
	}
	l.skipped++
	if l.skipped < lookEvery {
		return false, false
	}
	l.skipped = 0
	return true, false
}

func (l *look) saw(same bool) {
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

// has says whether the device holds data at off already. What cannot be read does not
// count as a fault: a sector that was never written may be unreadable.
func (c *Copy) has(data []byte, off int64, buf []byte, l *look) bool {
	if c.Fresh {
		return false
	}
	looked, agreed := l.next()
	if !looked {
		return false
	}
	same := agreed || c.hasSample(data, off, buf)
	if same {
		n, err := c.disk.ReadAt(buf[:len(data)], off)
		same = err == nil && n == len(data) && bytes.Equal(buf[:n], data)
	}
	l.saw(same)
	return same
}

// hasSample compares a block that is not zero: zeros are in every place of a disk.
func (c *Copy) hasSample(data []byte, off int64, buf []byte) bool {
	if len(data) <= 4*sampleBytes {
		return true // as cheap to compare at once
	}
	at := 0
	for at+2*sampleBytes <= len(data) && isZero(data[at:at+sampleBytes]) {
		at += sampleBytes
	}
	n, err := c.disk.ReadAt(buf[:sampleBytes], off+int64(at))
	return err == nil && n == sampleBytes && bytes.Equal(buf[:n], data[at:at+sampleBytes])
}

// bits is a set of numbers.
type bits struct {
	mu    sync.Mutex
	words []uint64
}

func (b *bits) set(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i/64 >= len(b.words) {
		b.words = append(b.words, 0)
	}
	b.words[i/64] |= 1 << (i % 64)
}

func (b *bits) has(i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return i/64 < len(b.words) && b.words[i/64]&(1<<(i%64)) != 0
}
