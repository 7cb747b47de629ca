package source

import (
	"errors"

	"golang.org/x/sys/unix"
)

// sectionBytes is how much of a plain image one goroutine reads: also what a block
// map of ours has as its largest range.
const sectionBytes = 8 << 20

// maxParts is the most sections of a plain or sparse image: what it says of its size
// costs nothing, and must not cost memory.
const maxParts = 1 << 18

type raw struct {
	packed
	parts []Section
}

func newRaw(f packed) *raw {
	return &raw{packed: f, parts: partsOf(f.sizeBytes)}
}

func partsOf(size int64) []Section {
	each := int64(sectionBytes)
	for size/each >= maxParts {
		each *= 2
	}
	parts := make([]Section, 0, (size+each-1)/each)
	for off := int64(0); off < size; off += each {
		parts = append(parts, Section{off, min(each, size-off)})
	}
	return parts
}

func (r *raw) unpackedBytes() int64 { return r.sizeBytes }
func (r *raw) sections() []Section  { return r.parts }
func (r *raw) close()               {}

func (r *raw) finish() error { return unchanged(r.packed) }

var errChanged = errors.New("the file changed while it was read; wait until it is whole")

// unchanged finds a file that was cut or grew while it was read.
func unchanged(f packed) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != f.sizeBytes {
		return errChanged
	}
	return nil
}

func (r *raw) decode(i int, to *cutter) error {
	end := r.parts[i].Off + r.parts[i].Len
	for off := r.parts[i].Off; off < end; {
		data, hole, err := r.nextData(off, end)
		if err != nil {
			return err
		}
		if err := to.skipZeros(data - off); err != nil {
			return err
		}
		if err := to.readFrom(r.File, data, hole-data); err != nil {
			return err
		}
		off = hole
	}
	return nil
}

// nextData asks the file system where data is from off on. It says end where there
// is none; a file system that cannot tell says that all of it is data. The offset of
// the file that this moves is nobody's.
func (r *raw) nextData(off, end int64) (data, hole int64, err error) {
	data, err = unix.Seek(int(r.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
		return end, end, nil
	}
	if err != nil {
		return 0, 0, err
	}
	hole, err = unix.Seek(int(r.Fd()), data, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) || err == nil && hole <= data {
		return 0, 0, errChanged // it was cut between the two
	}
	return data, min(hole, end), err
}
