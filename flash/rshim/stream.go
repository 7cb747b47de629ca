package rshim

import (
	"context"
	"fmt"
	"io"

	"slipway/layers/localfile"
)

// Part is a piece of the pushed stream: the boot stream, a bf.cfg, a root file system.
type Part struct {
	Name      string
	Data      io.ReaderAt
	SizeBytes int64
}

// stream joins the parts for one push.
type stream struct {
	io.Reader

	sizeBytes int64
	readBytes int64
	open      func()            // called once boot is open and the DPU resets
	count     func(bytes int64) // called with the bytes that the driver took
}

func newStream(ctx context.Context, parts []Part) *stream {
	s := &stream{open: func() {}, count: func(int64) {}}
	var readers []io.Reader
	for _, p := range parts {
		readers = append(readers, &partReader{part: p, in: io.NewSectionReader(p.Data, 0, p.SizeBytes)})
		s.sizeBytes += p.SizeBytes
	}
	s.Reader = localfile.WithContext(ctx, io.MultiReader(readers...), nil)
	return s
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.readBytes += int64(n)
	return n, err
}

func (s *stream) reportOpen()         { s.open() }
func (s *stream) reportTaken(n int64) { s.count(n) }
func (s *stream) checkComplete() error {
	if s.readBytes != s.sizeBytes {
		return fmt.Errorf("%d of %d bytes were pushed", s.readBytes, s.sizeBytes)
	}
	return nil
}

// partReader detects a file that became shorter, since the DPU would wait for the rest.
type partReader struct {
	part Part
	in   io.Reader
	read int64
}

func (w *partReader) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	w.read += int64(n)
	if err == io.EOF && w.read < w.part.SizeBytes {
		err = fmt.Errorf("%s became shorter while it was pushed: %d bytes of %d", w.part.Name, w.read, w.part.SizeBytes)
	}
	return n, err
}
