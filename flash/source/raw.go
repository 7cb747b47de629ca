package source

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// sectionBytes is the size of a plain image's sections, and of the largest range of Slipway's maps.
const sectionBytes = 8 << 20

// maxParts is the largest number of sections of a plain image. Larger images get larger sections,
// because a file can have any size, which must not cost memory.
const maxParts = 1 << 18

type raw struct {
	packedFile
	parts []Section
}

// splitSections splits size bytes, if any, into sections of 8 MiB, or at most maxParts larger ones.
func splitSections(size int64) []Section {
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

func (r *raw) sections() []Section { return r.parts }

var errChanged = errors.New("the file changed while it was read; wait until it is whole")

// decodeSection passes section i's data to the cutter, and holes as zeros without reading them.
func (r *raw) decodeSection(i int, to *cutter) error {
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

// nextData returns where the next data from off on begins and ends, by the file system's record of
// holes; end and end if there is none. All of a sealed file counts as data, because somebody may
// have punched holes in it. nextData moves the file's offset, which no other code uses.
func (r *raw) nextData(off, end int64) (data, hole int64, err error) {
	f, ok := r.File.(*os.File)
	if !ok {
		return off, end, nil
	}
	data, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
		return end, end, nil
	}
	if err != nil {
		return 0, 0, err
	}
	hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) || err == nil && hole <= data {
		return 0, 0, errChanged // the file was truncated in between
	}
	return data, min(hole, end), err
}
