package rshim

import (
	"context"
	"fmt"
	"io"
)

// Part is a piece of what is pushed: the boot stream, a bf.cfg, a root file system.
type Part struct {
	Name      string
	Data      io.ReaderAt
	SizeBytes int64
}

// stream is the parts one after another, on their way.
type stream struct {
	io.Reader

	sizeBytes int64
	readBytes int64
	open      func()            // boot is open, the DPU resets
	count     func(bytes int64) // what the driver took
}

func newStream(ctx context.Context, parts []Part) *stream {
	s := &stream{open: func() {}, count: func(int64) {}}
	var readers []io.Reader
	for _, p := range parts {
		readers = append(readers, &whole{part: p, in: io.NewSectionReader(p.Data, 0, p.SizeBytes)})
		s.sizeBytes += p.SizeBytes
	}
	s.Reader = &ending{ctx, io.MultiReader(readers...)}
	return s
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.readBytes += int64(n)
	return n, err
}

func (s *stream) opened()      { s.open() }
func (s *stream) took(n int64) { s.count(n) }
func (s *stream) whole() error {
	if s.readBytes != s.sizeBytes {
		return fmt.Errorf("%d of %d bytes were pushed", s.readBytes, s.sizeBytes)
	}
	return nil
}

// whole notices a file that became shorter: the DPU would wait for the rest.
type whole struct {
	part Part
	in   io.Reader
	read int64
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	w.read += int64(n)
	if err == io.EOF && w.read < w.part.SizeBytes {
		err = fmt.Errorf("%s became shorter while it was pushed: %d bytes of %d", w.part.Name, w.read, w.part.SizeBytes)
	}
	return n, err
}

// ending is a reader that ends with its context.
type ending struct {
	ctx context.Context
	in  io.Reader
}

func (e *ending) Read(p []byte) (int, error) {
	if err := context.Cause(e.ctx); err != nil {
		return 0, err
	}
	return e.in.Read(p)
}
