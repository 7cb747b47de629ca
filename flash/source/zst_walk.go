package source

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// frames describes a file's frames before any is unpacked.
type frames struct {
	unpackedBytes int64 // -1: unknown
	windowBytes   int64 // the largest window
}

// walkFrames returns the unpacked size and largest window of a file's frames. It reads only the
// headers of frames and blocks, and so detects an incomplete file before anything is written. It
// refuses a file without content, and one that is larger than any image.
func walkFrames(f packedFile) (frames, error) {
	look := &fileWindow{file: f}
	var found frames
	number := 0
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
			found.add(h)
		}
		if end > f.sizeBytes {
			return frames{}, io.ErrUnexpectedEOF
		}
		at = end
	}
	switch {
	case number == 0:
		return frames{}, errors.New("it holds no image, only what zstd skips; fetch or build it again")
	case found.unpackedBytes > maxImageBytes:
		return frames{}, errTooLarge
	}
	return found, nil
}

// add adds a frame's size to the sum, unknown if one size is, and keeps the larger window.
func (s *frames) add(h frameHeader) {
	s.windowBytes = max(s.windowBytes, h.windowBytes)
	if h.sizeBytes < 0 || s.unpackedBytes < 0 {
		s.unpackedBytes = -1
	} else {
		s.unpackedBytes = min(s.unpackedBytes+h.sizeBytes, maxImageBytes+1)
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

// bytesAt returns n bytes, fewer at the end, valid until the next call. The kernel reads ahead.
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

// endOfBlocks returns the end of the blocks that start at off, by their headers.
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
