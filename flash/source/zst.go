package source

import (
	"bufio"
	"errors"
	"io"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

const (
	// blocksAhead is how many blocks of a frame are decoded at once.
	blocksAhead = 8
	// wideBytes is the largest window of a file inside a zip archive.
	wideBytes = 8 << 20
)

// cores is how many goroutines can run at once.
var cores = runtime.GOMAXPROCS(0)

// zst decodes the frames of a file one after the other.
type zst struct {
	packedFile
	frames
}

// openZst checks the headers of all frames and blocks, and returns a decoder of the file.
func openZst(f packedFile) (decoder, error) {
	found, err := walkFrames(f)
	if err != nil {
		return nil, err
	}
	return &zst{packedFile: f, frames: found}, nil
}

func (z *zst) sections() []Section { return []Section{{0, z.unpackedBytes}} }

// decodeSection decodes all frames in their order, and skips the skippable ones.
func (z *zst) decodeSection(_ int, to *cutter) error {
	d, err := z.newDecoder()
	if err != nil {
		return err
	}
	defer d.Close()
	in := bufio.NewReaderSize(io.NewSectionReader(z.File, 0, z.sizeBytes), readBytes)
	for {
		h, err := nextFrame(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && !h.skippable {
			err = unpackFrame(d, in, h, to)
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

// unpackFrame decodes the frame whose header was read, and verifies its size and checksum.
func unpackFrame(d *zstd.Decoder, in *bufio.Reader, h frameHeader, to *cutter) error {
	s := newZeroSkipper(in, h, to)
	err := d.Reset(s)
	if err == nil {
		_, err = d.WriteTo(s)
	}
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

// newDecoder returns a decoder for all frames, which ignores checksums. With more than two cores,
// it decodes in parallel steps, which costs a third more processor time. It holds twice the window,
// or if that is too much the window and 1 MiB, and then moves the window with each MiB.
func (z *zst) newDecoder() (*zstd.Decoder, error) {
	steps := 1
	if cores > 2 {
		steps = blocksAhead
	}
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(steps), zstd.WithDecoderLowmem(z.windowBytes > maxWindowBytes/2),
		zstd.WithDecoderMaxWindow(maxWindowBytes), zstd.IgnoreChecksum(true))
}
