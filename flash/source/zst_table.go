package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The seekable format has a skippable frame at the end of the file, with the sizes of
// all frames before it.
const (
	tableMagic   = 0x184d2a5e
	footerMagic  = 0x8f92eab1
	footerBytes  = 9
	sumsInTable  = 1 << 7
	tableReserve = 0x7c
)

// findFrames returns the file's frames, by its table or by reading each block's header. So it
// detects an incomplete file before anything is written.
func findFrames(f packedFile) (frames, error) {
	footer := make([]byte, footerBytes)
	if f.sizeBytes > footerBytes {
		if _, err := f.ReadAt(footer, f.sizeBytes-footerBytes); err != nil {
			return frames{}, err
		}
		if binary.LittleEndian.Uint32(footer[5:]) == footerMagic {
			return readTable(f, footer)
		}
	}
	return walkFrames(f)
}

var errTable = errors.New("the table of its frames is not that of this file; fetch or build it again")

// readTable reads the frames' sizes from the seek table, whose footer was read already.
func readTable(f packedFile, footer []byte) (frames, error) {
	number, flags := int64(binary.LittleEndian.Uint32(footer)), footer[4]
	entryBytes := int64(8)
	if flags&sumsInTable != 0 {
		entryBytes = 12
	}
	lenBytes := number*entryBytes + footerBytes
	switch {
	case flags&tableReserve != 0, lenBytes+8 > f.sizeBytes:
		return frames{}, errTable
	case number > maxFrames:
		return frames{}, fmt.Errorf("it has %d frames; at most %d are taken: pack it again", number, maxFrames)
	}
	p := make([]byte, 8+lenBytes)
	begin := f.sizeBytes - int64(len(p))
	if _, err := f.ReadAt(p, begin); err != nil {
		return frames{}, err
	}
	if binary.LittleEndian.Uint32(p) != tableMagic || int64(binary.LittleEndian.Uint32(p[4:])) != lenBytes {
		return frames{}, errTable
	}
	found := frames{table: true, all: make([]frame, 0, number)}
	at := int64(0)
	for p = p[8:]; len(p) > footerBytes; p = p[entryBytes:] {
		next := frame{at: at, len: int64(binary.LittleEndian.Uint32(p)), off: found.sizeBytes, sizeBytes: int64(binary.LittleEndian.Uint32(p[4:]))}
		at, found.sizeBytes = at+next.len, min(found.sizeBytes+next.sizeBytes, maxImageBytes+1)
		found.all = append(found.all, next)
	}
	if at != begin || number == 0 {
		return frames{}, errTable
	}
	return found, found.limitWindows(f)
}

// limitWindows clears s.all, so that frames are unpacked one after the other, if a large frame
// needs too much memory for parallel decoding.
func (s *frames) limitWindows(f packedFile) error {
	look := &fileWindow{file: f}
	for _, next := range s.all {
		if next.sizeBytes <= maxParallelWindow() {
			continue
		}
		head, err := look.bytesAt(next.at, maxHeaderBytes)
		if err != nil {
			return err
		}
		h, err := parseFrameHeader(head)
		if err != nil {
			return err
		}
		if h.windowBytes > maxParallelWindow() {
			s.all = nil
			return nil
		}
	}
	return nil
}

// walkFrames finds the frames by the headers of their blocks, without reading the content.
func walkFrames(f packedFile) (frames, error) {
	look := &fileWindow{file: f}
	var found frames
	number, apart := 0, true
	for at := int64(0); at < f.sizeBytes; {
		head, err := look.bytesAt(at, maxHeaderBytes)
		if err != nil {
			return frames{}, err
		}
		h, err := parseFrameHeader(head)
		if err != nil {
			return frames{}, fmt.Errorf("at byte %d of the file: %w", at, err)
		}
		end := at + int64(h.lenBytes)
		if !h.skippable {
			if end, err = look.endOfBlocks(end); err != nil {
				return frames{}, err
			}
			if h.sum {
				end += 4
			}
			number++
			found.append(frame{at: at, len: end - at, off: found.sizeBytes, sizeBytes: h.sizeBytes})
			apart = apart && h.windowBytes <= maxParallelWindow()
		}
		if end > f.sizeBytes {
			return frames{}, io.ErrUnexpectedEOF
		}
		at = end
	}
	switch {
	case number == 0:
		return frames{}, errors.New("it holds no image, only what zstd skips; fetch or build it again")
	case number > 1 && !apart, number > maxFrames, found.sizeBytes < 0:
		found.all = nil
	}
	if found.sizeBytes > maxImageBytes {
		return frames{}, errTooLarge
	}
	return found, nil
}

func (s *frames) append(f frame) {
	if f.sizeBytes < 0 || s.sizeBytes < 0 {
		s.sizeBytes = -1
	} else {
		s.sizeBytes = min(s.sizeBytes+f.sizeBytes, maxImageBytes+1)
	}
	if s.sizeBytes >= 0 && len(s.all) <= maxFrames {
		s.all = append(s.all, f)
	}
}

// fileWindow caches a small part of a file, because block headers are often adjacent.
type fileWindow struct {
	file  packedFile
	bytes [512]byte
	off   int64
	n     int
	asked int64 // end of the kernel's read-ahead
}

// bytesAt returns n bytes of the file, or fewer at its end.
func (w *fileWindow) bytesAt(off int64, n int) ([]byte, error) {
	if off < w.off || off+int64(n) > w.off+int64(w.n) {
		if off+4<<20 > w.asked {
			// This part is read completely soon.
			w.asked = max(off, w.asked) + 8<<20
			if f, ok := w.file.File.(*os.File); ok {
				_ = unix.Fadvise(int(f.Fd()), w.asked-8<<20, 8<<20, unix.FADV_WILLNEED)
			}
		}
		got, err := w.file.ReadAt(w.bytes[:], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		w.off, w.n = off, got
	}
	p := w.bytes[off-w.off : w.n]
	return p[:min(n, len(p))], nil
}

// endOfBlocks returns the end of the blocks that start at off.
func (w *fileWindow) endOfBlocks(off int64) (int64, error) {
	for {
		head, err := w.bytesAt(off, 3)
		if err != nil {
			return 0, err
		}
		if len(head) < 3 {
			return 0, io.ErrUnexpectedEOF
		}
		b, err := parseBlockHeader(head)
		if err != nil {
			return 0, fmt.Errorf("at byte %d of the file: %w", off, err)
		}
		if off += 3 + b.storedBytes(); b.last {
			return off, nil
		}
	}
}
