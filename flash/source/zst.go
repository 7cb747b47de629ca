package source

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// smallBytes is the largest frame that is unpacked at once, directly into pieces.
	smallBytes = 2 << 20
	// slackBytes after the end let the decoder copy without a check of each byte.
	slackBytes = 4 << 10
	// blocksAhead is how many blocks of a single frame are decoded at once.
	blocksAhead = 8
	// wideBytes is the largest window of a decoder that is kept.
	wideBytes = 8 << 20
)

// cores is how many goroutines can run at once.
var cores = runtime.GOMAXPROCS(0)

// maxParallelWindow returns the largest window of frames that are unpacked in parallel. A decoder
// holds twice the window, and each core may run one.
func maxParallelWindow() int64 {
	const all = 64 << 20
	return min(wideBytes, all/2/int64(cores))
}

// frame is the position of a frame in the file and in the image.
type frame struct {
	at, len   int64
	off       int64
	sizeBytes int64 // unpacked
}

// frames describes a file's frames before any is unpacked.
type frames struct {
	all       []frame // nil: unpack them one after the other
	sizeBytes int64   // of all; -1: unknown
	table     bool    // found by a table at the file's end
}

type zst struct {
	packedFile
	frames
	parts    []Section
	first    []int // the first frame of each section, then the number of frames
	decoders sync.Pool
	small    *zstd.Decoder // several frames at once
}

func openZst(f packedFile) (decoder, error) {
	found, err := findFrames(f)
	if err != nil {
		return nil, err
	}
	z := &zst{packedFile: f, frames: found}
	z.groupFrames()
	z.small, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(cores),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(maxWindowBytes))
	return z, err
}

// groupFrames joins the frames in one tile of the image to a section, so that sections are neither
// tiny nor larger than a range of Slipway's own block maps.
func (z *zst) groupFrames() {
	if z.all == nil {
		z.parts = []Section{{0, z.frames.sizeBytes}}
		return
	}
	for i, f := range z.all {
		n, last := len(z.parts), max(f.off, f.off+f.sizeBytes-1)
		if n > 0 && last/sectionBytes == z.parts[n-1].Off/sectionBytes {
			z.parts[n-1].Len += f.sizeBytes
			continue
		}
		z.parts, z.first = append(z.parts, Section{f.off, f.sizeBytes}), append(z.first, i)
	}
	z.first = append(z.first, len(z.all))
}

func (z *zst) formName() string {
	if z.table {
		return "framed zst"
	}
	return "zst"
}

func (z *zst) unpackedBytes() int64 { return z.frames.sizeBytes }
func (z *zst) sections() []Section  { return z.parts }
func (z *zst) checkRest() error     { return checkUnchanged(z.packedFile) }
func (z *zst) close()               { z.small.Close() }

func (z *zst) decodeSection(i int, to *cutter) error {
	if z.all == nil {
		return z.decodeAll(to)
	}
	for _, f := range z.all[z.first[i]:z.first[i+1]] {
		if err := z.decodeFrame(f, to); err != nil {
			return fmt.Errorf("in the frame at byte %d of the file: %w", f.at, err)
		}
		if to.off != f.off+f.sizeBytes {
			return errDamaged
		}
	}
	return nil
}

// decodeAll decodes all frames, one after the other.
func (z *zst) decodeAll(to *cutter) error {
	in := bufio.NewReaderSize(io.NewSectionReader(z.File, 0, z.packedFile.sizeBytes), readBytes)
	for {
		h, err := nextFrame(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && !h.skippable {
			err = z.unpackFrame(in, h, to)
		}
		if err != nil {
			return err
		}
	}
}

const readBytes = 256 << 10

// nextFrame reads a frame's header, and a skippable frame completely; io.EOF if there is none.
func nextFrame(in *bufio.Reader) (frameHeader, error) {
	head, err := in.Peek(maxHeaderBytes)
	if len(head) == 0 || err != nil && !errors.Is(err, io.EOF) {
		return frameHeader{}, err
	}
	h, err := parseFrameHeader(head)
	if err == nil {
		_, err = io.CopyN(io.Discard, in, int64(h.lenBytes))
		err = unexpectedEOF(err)
	}
	return h, err
}

// decodeFrame decodes one frame: a small one in one call, others as a stream. It returns errDamaged
// if the size in the file differs from f's.
func (z *zst) decodeFrame(f frame, to *cutter) error {
	// Zeros compress to a 30000th. A frame below a 1024th of its content is checked at
	// once.
	if f.len <= smallBytes && (f.sizeBytes <= smallBytes || f.len < f.sizeBytes/1024) {
		done, err := z.decodeSmall(f, to)
		if done || err != nil {
			return err
		}
	}
	in := bufio.NewReaderSize(io.NewSectionReader(z.File, f.at, f.len), readBytes)
	h, err := nextFrame(in)
	if err != nil || h.skippable {
		return err
	}
	if h.sizeBytes < 0 {
		h.sizeBytes = f.sizeBytes
	}
	if h.sizeBytes != f.sizeBytes {
		return errDamaged
	}
	// A table that calls a frame small must not cause several large windows at once.
	h.windowBytes = min(h.windowBytes, h.sizeBytes)
	if err := z.unpackFrame(in, h, to); err != nil {
		return err
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		return errDamaged // in the table, the frame is longer
	}
	return nil
}

// unpackFrame decodes the frame whose header was read, with a decoder of its own, and verifies its
// size and checksum.
func (z *zst) unpackFrame(in *bufio.Reader, h frameHeader, to *cutter) error {
	d, err := z.getDecoder(h.windowBytes)
	if err != nil {
		return err
	}
	s := newZeroSkipper(in, h, to)
	if err = d.Reset(s); err == nil {
		_, err = d.WriteTo(s)
	}
	z.putDecoder(d, h.windowBytes)
	switch {
	case s.err != nil:
		return s.err
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return damagedError(err)
	case err != nil:
		return err
	}
	return s.checkEnd()
}

// getDecoder returns a decoder for a window. For a file of a single section, with more than two
// cores, it decodes in parallel steps, which costs a third more processor time. The decoder holds
// twice the window. If that is too much, it holds the window and 1 MiB, and moves the window with
// each MiB.
func (z *zst) getDecoder(window int64) (*zstd.Decoder, error) {
	if d, ok := z.decoders.Get().(*zstd.Decoder); ok && window <= wideBytes {
		return d, nil
	}
	steps := 1
	if len(z.parts) == 1 && cores > 2 {
		steps = blocksAhead
	}
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(steps), zstd.WithDecoderLowmem(window > maxWindowBytes/2),
		zstd.WithDecoderMaxWindow(maxWindowBytes), zstd.IgnoreChecksum(true))
}

// putDecoder keeps a decoder with a small window for the next frame, and closes any other.
func (z *zst) putDecoder(d *zstd.Decoder, window int64) {
	if window <= wideBytes && d.Reset(nil) == nil {
		z.decoders.Put(d)
	} else {
		d.Close()
	}
}

var packedPool = sync.Pool{New: func() any { p := make([]byte, smallBytes); return &p }}

// decodeSmall unpacks a small frame, or one of zeros, in one call. It returns false, and has done
// nothing, if the frame is too large.
func (z *zst) decodeSmall(f frame, to *cutter) (bool, error) {
	buf := packedPool.Get().(*[]byte)
	defer packedPool.Put(buf)
	p := (*buf)[:f.len]
	if _, err := z.ReadAt(p, f.at); err != nil {
		return false, unexpectedEOF(err)
	}
	h, err := parseFrameHeader(p)
	switch {
	case err != nil:
		return false, err
	case h.skippable:
		return true, nil
	case h.sizeBytes >= 0 && h.sizeBytes != f.sizeBytes:
		return false, errDamaged
	case h.isZeros(p[h.lenBytes:], f.sizeBytes):
		return true, to.skipZeros(f.sizeBytes)
	case f.sizeBytes > smallBytes:
		return false, nil
	}
	from := largeFrame
	if f.sizeBytes <= pieceBytes {
		from = mediumFrame
	}
	m := getMemory(from)
	out, err := z.small.DecodeAll(p, m.bytes[:0])
	if err != nil || int64(len(out)) != f.sizeBytes {
		m.release()
		return false, damagedError(err)
	}
	return true, to.addMemory(m, f.sizeBytes)
}
