package write

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"strings"

	"slipway/flash/source"
)

// markBytes is the size of the held ends: the first MiB, with the partition table and a boot
// loader's first stage, and the last MiB, with the second copy of a GPT.
const markBytes = 1 << 20

// tableBytes has an MBR, or the first header of a GPT. It is not more than a disk writes at once.
const tableBytes = 4096

// heldEnd is the first or last MiB of a device: its old content, and the new one for Complete.
type heldEnd struct {
	off      int64
	old, now []byte
}

// readEnds reads the device's first and last MiB to c.held; only the first if it has up to 2 MiB.
func (c *Copy) readEnds() error {
	size := c.disk.sizeBytes
	c.held = []*heldEnd{{off: 0, now: source.Buffer(int(min(markBytes, size)))}}
	if size > 2*markBytes {
		c.held = append(c.held, &heldEnd{off: size - markBytes, now: source.Buffer(markBytes)})
	}
	for _, h := range c.held {
		h.old = source.Buffer(len(h.now))
		if err := c.disk.readFull(h.old, h.off); err != nil {
			return err
		}
	}
	return nil
}

// heldSpans returns the spans of the held ends: the first and last MiB of a marked device.
func (c *Copy) heldSpans() []source.Span {
	var found [2]source.Span
	for i, h := range c.held {
		found[i] = source.Span{Off: h.off, Len: int64(len(h.now))}
	}
	return found[:len(c.held)]
}

// keepHeld copies old to new content of the held first and last MiB, inside s, a hole of the map.
func (c *Copy) keepHeld(s source.Span) {
	splitSpan(s, c.heldSpans(), func(s source.Span, i int) {
		if i >= 0 {
			h := c.held[i]
			copy(h.now[s.Off-h.off:][:s.Len], h.old[s.Off-h.off:])
		}
	})
}

// beginWriting must run before each write. The first call, if Marked, saves the first and last MiB,
// zeroes them and checks the device's real size. Later calls return the first's error.
func (c *Copy) beginWriting() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun || c.beginErr != nil {
		return c.beginErr
	}
	if c.Marked {
		if c.beginErr = c.saveEnds(); c.beginErr != nil {
			return c.beginErr
		}
		if c.beginErr = c.zeroEnds(); c.beginErr == nil {
			c.beginErr = c.probeRoom()
		}
	}
	c.begun = true
	return c.beginErr
}

// saveEnds passes the old first and last MiB to c.Save, if set, in case the user wants them back.
// It skips zeros: an interrupted flash wrote those, and saved the old content.
func (c *Copy) saveEnds() error {
	for _, h := range c.held {
		if c.Save == nil || source.IsZero(h.old) {
			continue
		}
		if err := c.Save(h.old, h.off); err != nil {
			return fmt.Errorf("keep what is to be replaced: %w; nothing was written", err)
		}
	}
	return nil
}

// zeroEnds zeroes the held first and last MiB and reads them back. It returns an error for a device
// that is smaller than it says, which drops or misplaces writes to its end.
func (c *Copy) zeroEnds() error {
	empty := source.Buffer(markBytes)
	// The block with the partition table is zeroed alone, so that a card that is pulled out has no table,
	// or all that it had before.
	if err := c.disk.writeVerified(empty[:min(tableBytes, len(c.held[0].now))], 0); err != nil {
		return fmt.Errorf("erase the partition table: %w", err)
	}
	// Both ends at once, so that a crash hardly finds only one of them zeroed.
	for _, h := range c.held {
		if _, err := c.disk.WriteAt(empty[:len(h.now)], h.off); err != nil {
			return c.disk.explainError("erase the partition table", err)
		}
	}
	for i, h := range c.held {
		if i > 0 {
			if err := c.proveSize(h, empty); err != nil {
				return err
			}
		}
		clear(empty)
		if err := c.disk.writeVerified(empty[:len(h.now)], h.off); err != nil {
			return fmt.Errorf("erase the partition table: %w", err)
		}
	}
	return nil
}

// ErrSmaller is of a device with less room than it says.
var ErrSmaller = errors.New("it holds less than it says; such cards and sticks are sold as larger ones: do not use it")

// proveSize fills buf with random data, writes them to the last MiB, does not remove them, and
// reads them back. It also reads the offsets at which a smaller device that wraps around would put
// them. It returns ErrSmaller if the data are lost or at such an offset.
func (c *Copy) proveSize(end *heldEnd, buf []byte) error {
	rand.Read(buf)
	if err := c.disk.writeVerified(buf, end.off); err != nil {
		if errors.As(err, new(*lostError)) {
			return fmt.Errorf("%w: %w", ErrSmaller, err)
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
			return fmt.Errorf("%w: what was written at %d is found at %d", ErrSmaller, end.off, at)
		}
	}
	return nil
}

const (
	probes     = 16
	probeBytes = 4096
)

// probeRoom writes different random data to places behind c.ProbeFrom, and then reads all of them
// back. It returns ErrSmaller if one of them is lost. Without room behind it, it does nothing.
func (c *Copy) probeRoom() error {
	room := (c.disk.sizeBytes - markBytes - c.ProbeFrom) / probeBytes
	if c.ProbeFrom == 0 || room < probes {
		return nil
	}
	var places [probes]int64
	var wrote [probes][]byte
	for i := range places {
		places[i] = (c.ProbeFrom/probeBytes + int64(i)*room/probes + mathrand.Int64N(room/probes)) * probeBytes
		wrote[i] = source.Buffer(probeBytes)
		rand.Read(wrote[i])
		if _, err := c.disk.WriteAt(wrote[i], places[i]); err != nil {
			return c.disk.explainError("write to prove the size", err)
		}
	}
	if err := c.disk.Sync(); err != nil {
		return err
	}
	got := source.Buffer(probeBytes)
	for i, at := range places {
		if err := c.disk.readFull(got, at); err != nil {
			return err
		}
		if !bytes.Equal(got, wrote[i]) {
			return fmt.Errorf("%w: what was written at %d is not there", ErrSmaller, at)
		}
	}
	return nil
}

// Ends returns what Complete will write to the first and last MiB, for the caller to change. The
// last is nil for a device of up to 2 MiB.
func (c *Copy) Ends() (first, last []byte) {
	if len(c.held) < 2 {
		return c.held[0].now, nil
	}
	return c.held[0].now, c.held[1].now
}

// Reopen calls work, which closes the device and changes it outside of the first and last MiB, and
// opens it again. Before that, these are zero.
func (c *Copy) Reopen(work func() (*Disk, error)) error {
	err := c.beginWriting()
	if err == nil {
		err = c.disk.Sync()
	}
	if err != nil {
		return err
	}
	d, err := work()
	if err == nil {
		c.disk = d
	}
	return err
}

// Complete writes and reads back the held last MiB, and then the first. It does nothing if the copy
// has failed, and returns the copy's error.
func (c *Copy) Complete(ctx context.Context) error {
	if c.Err() == nil {
		c.setError(c.writeEnds(ctx))
	}
	return c.Err()
}

// writeEnds writes the held last MiB, then the first, unless the device has the image already.
func (c *Copy) writeEnds(ctx context.Context) error {
	if !c.Touched() && !c.heldChanged() {
		return context.Cause(ctx)
	}
	if err := c.beginWriting(); err != nil {
		return err
	}
	for i := len(c.held) - 1; i >= 0; i-- {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := c.writeEnd(c.held[i]); err != nil {
			return err
		}
	}
	return nil
}

// writeEnd writes the first or last MiB of the image and reads it back. If the device has other
// data than zeros at that place, it is smaller than it says: writeEnd returns ErrSmaller and writes
// nothing. If the write fails, it zeroes the place again.
func (c *Copy) writeEnd(h *heldEnd) error {
	n := int64(len(h.now))
	got := source.Buffer(len(h.now))
	if err := c.disk.readFull(got, h.off); err != nil {
		return err
	}
	if c.stamped && h.off == 0 && bytes.Equal(got[stampOffset:], h.now[stampOffset:]) {
		clear(got[stampOffset:])
	}
	if !source.IsZero(got) {
		return fmt.Errorf("%w: the %d bytes at %d, which were zeroed, hold something else by now", ErrSmaller, n, h.off)
	}
	if err := c.disk.writeVerified(h.now, h.off); err != nil {
		return errors.Join(err, c.disk.writeVerified(source.Buffer(len(h.now)), h.off))
	}
	c.written.Add(n)
	c.verified.Add(n)
	return nil
}

const (
	stampOffset = markBytes - 4096
	stampMagic  = "slipway place 1 "
	stampBytes  = 32 // of the text
)

// Stamp writes a text of stampBytes between the places of partition table and first partition of a
// marked device, if the image has nothing there, and syncs it. Complete keeps it.
func (c *Copy) Stamp(text string) error {
	if len(c.held) == 0 || len(text) != stampBytes {
		return nil
	}
	place := c.held[0].now
	if len(place) != markBytes || !source.IsZero(place[stampOffset:]) {
		return nil
	}
	copy(place[stampOffset:], stampMagic+text)
	if !c.Touched() && !c.heldChanged() {
		return nil
	}
	if err := c.beginWriting(); err != nil {
		return err
	}
	c.stamped = true
	return c.disk.writeVerified(place[stampOffset:], stampOffset)
}

// ReadStamp returns the text that Stamp put on a disk; "" if it has none.
func ReadStamp(disk io.ReaderAt) string {
	p := make([]byte, len(stampMagic)+stampBytes)
	if _, err := disk.ReadAt(p, stampOffset); err != nil || string(p[:len(stampMagic)]) != stampMagic {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789abcdef", r) {
			return r
		}
		return -1
	}, string(p[len(stampMagic):]))
}

// WithoutStamp reads a disk with zeros in the place of its stamp, if it has one: another disk that
// gets its image is not the same.
func WithoutStamp(disk io.ReaderAt) io.ReaderAt {
	if ReadStamp(disk) == "" {
		return disk
	}
	return unstamped{disk}
}

type unstamped struct{ io.ReaderAt }

// ReadAt reads the disk, with zeros in the place of the stamp.
func (u unstamped) ReadAt(p []byte, off int64) (int, error) {
	n, err := u.ReaderAt.ReadAt(p, off)
	if from, to := max(off, stampOffset), min(off+int64(n), markBytes); from < to {
		clear(p[from-off : to-off])
	}
	return n, err
}

// lostError is the error of a device that reads back other data than was written.
type lostError struct {
	off, length int64
	what        string
}

// ErrLost is of a device that reads back other data than was written.
var ErrLost = errors.New("it reads back other data than was written")

func (e *lostError) Is(target error) bool { return target == ErrLost }

func (e *lostError) Error() string {
	return fmt.Sprintf("read back: the %d bytes at %d %s; the device is faulty", e.length, e.off, e.what)
}

// writeVerified writes p, syncs, reads it back, and returns a lostError if that differs.
func (d *Disk) writeVerified(p []byte, off int64) error {
	if _, err := d.WriteAt(p, off); err != nil {
		return d.explainError(fmt.Sprintf("write %d bytes at %d", len(p), off), err)
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

// readFull reads len(p) bytes at off.
func (d *Disk) readFull(p []byte, off int64) error {
	if _, err := io.ReadFull(io.NewSectionReader(d, off, int64(len(p))), p); err != nil {
		return d.explainError(fmt.Sprintf("read %d bytes at %d", len(p), off), err)
	}
	return nil
}
