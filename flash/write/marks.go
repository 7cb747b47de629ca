package write

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"slipway/flash/source"
)

// markBytes is what is written last at either end of a device. The first holds the
// partition table and a boot loader's first stage, the last a GPT's second copy.
const markBytes = 1 << 20

// held is an end of the device.
type held struct {
	off      int64
	old, now []byte
}

func (h *held) changed() bool { return !bytes.Equal(h.old, h.now) }

func (c *Copy) hold() error {
	size := c.disk.sizeBytes
	c.held = []*held{{off: 0, now: source.Buffer(int(min(markBytes, size)))}}
	if size > 2*markBytes {
		c.held = append(c.held, &held{off: size - markBytes, now: source.Buffer(markBytes)})
	}
	for _, h := range c.held {
		h.old = source.Buffer(len(h.now))
		if err := c.disk.readFull(h.old, h.off); err != nil {
			return err
		}
	}
	return nil
}

func (c *Copy) heldSpans() []source.Span {
	var found [2]source.Span
	for i, h := range c.held {
		found[i] = source.Span{Off: h.off, Len: int64(len(h.now))}
	}
	return found[:len(c.held)]
}

// keepHeld leaves in the marked ends what a block map leaves out.
func (c *Copy) keepHeld(s source.Span) {
	split(s, c.heldSpans(), func(s source.Span, i int) {
		if i >= 0 {
			h := c.held[i]
			copy(h.now[s.Off-h.off:][:s.Len], h.old[s.Off-h.off:])
		}
	})
}

// start is called before each write. The first one finds the ends of the device saved
// and zero, and the device as large as it says.
func (c *Copy) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun || c.unmarked != nil {
		return c.unmarked
	}
	if c.Marked {
		if c.unmarked = c.save(); c.unmarked != nil {
			return c.unmarked
		}
		c.unmarked = c.mark()
	}
	c.begun = true
	return c.unmarked
}

// save keeps what a person may want back. What an earlier flash left has been saved
// before, and is zero.
func (c *Copy) save() error {
	for _, h := range c.held {
		if c.Save == nil || isZero(h.old) {
			continue
		}
		if err := c.Save(h.old, h.off); err != nil {
			return fmt.Errorf("keep what is to be replaced: %w; nothing was written", err)
		}
	}
	return nil
}

// mark zeroes the ends, the beginning first, and shows a device that is smaller than
// it says: such a one drops what is written to its end, or writes it elsewhere.
func (c *Copy) mark() error {
	empty := source.Buffer(markBytes)
	// At once, so that hardly a moment is left in which only one of them is gone.
	for _, h := range c.held {
		if _, err := c.disk.WriteAt(empty[:len(h.now)], h.off); err != nil {
			return c.disk.explain("erase the partition table", err)
		}
	}
	for i, h := range c.held {
		if i > 0 {
			if err := c.probe(h, empty); err != nil {
				return err
			}
		}
		clear(empty)
		if err := c.disk.place(empty[:len(h.now)], h.off); err != nil {
			return fmt.Errorf("erase the partition table: %w", err)
		}
	}
	return nil
}

var errSmaller = errors.New("it holds less than it says; such cards and sticks are sold as larger ones: do not use it")

// probe writes something new to the end of the device, and looks for it there and in
// the places where a smaller device that counts in a circle would put it.
func (c *Copy) probe(end *held, buf []byte) error {
	rand.Read(buf)
	if err := c.disk.place(buf, end.off); err != nil {
		var lost *lostError
		if errors.As(err, &lost) {
			return fmt.Errorf("%w: %w", errSmaller, err)
		}
		return err
	}
	got := source.Buffer(sampleBytes)
	for size := c.disk.sizeBytes / 2; size > 2*markBytes && size%alignment == 0; size /= 2 {
		at := end.off % size
		if err := c.disk.readFull(got, at); err != nil {
			return err
		}
		if bytes.Equal(got, buf[:sampleBytes]) {
			return fmt.Errorf("%w: what was written at %d is found at %d", errSmaller, end.off, at)
		}
	}
	return nil
}

// Complete makes the device whole: its end first, its beginning last.
func (c *Copy) Complete(ctx context.Context) error {
	if c.Err() == nil {
		c.fail(c.complete(ctx))
	}
	return c.Err()
}

func (c *Copy) complete(ctx context.Context) error {
	if c.Dry {
		c.compareHeld()
		return context.Cause(ctx)
	}
	if !c.Touched() && !c.heldChanged() {
		return context.Cause(ctx)
	}
	if err := c.start(); err != nil {
		return err
	}
	for i := len(c.held) - 1; i >= 0; i-- {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := c.finish(c.held[i]); err != nil {
			return err
		}
	}
	return nil
}

// compareHeld counts the ends of the device as a flash would.
func (c *Copy) compareHeld() {
	for _, h := range c.held {
		if n := int64(len(h.now)); h.changed() {
			c.written.Add(n)
		} else {
			c.left.Add(n)
		}
	}
}

func (c *Copy) finish(h *held) error {
	n := int64(len(h.now))
	got := source.Buffer(len(h.now))
	if err := c.disk.readFull(got, h.off); err != nil {
		return err
	}
	if !isZero(got) {
		return fmt.Errorf("%w: the %d bytes at %d, which were zeroed, hold something else by now", errSmaller, n, h.off)
	}
	if err := c.disk.place(h.now, h.off); err != nil {
		return errors.Join(err, c.disk.place(source.Buffer(len(h.now)), h.off))
	}
	c.written.Add(n)
	c.verified.Add(n)
	return nil
}

// lostError is a device that did not keep what it took.
type lostError struct {
	off, length int64
	what        string
}

func (e *lostError) Error() string {
	return fmt.Sprintf("read back: the %d bytes at %d %s; the device is faulty", e.length, e.off, e.what)
}

// place writes p and makes sure that the device has it.
func (d *Disk) place(p []byte, off int64) error {
	if _, err := d.WriteAt(p, off); err != nil {
		return d.explain(fmt.Sprintf("write %d bytes at %d", len(p), off), err)
	}
	if err := d.Sync(); err != nil {
		return err
	}
	got := source.Buffer(len(p))
	if err := d.readFull(got, off); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if !bytes.Equal(got, p) {
		return &lostError{off, int64(len(p)), "are not what was written"}
	}
	return nil
}

func (d *Disk) readFull(p []byte, off int64) error {
	if _, err := io.ReadFull(io.NewSectionReader(d, off, int64(len(p))), p); err != nil {
		return d.explain(fmt.Sprintf("read %d bytes at %d", len(p), off), err)
	}
	return nil
}
