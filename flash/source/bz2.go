package source

import (
	"bufio"
	"compress/bzip2"
	"io"
)

type bz2 struct{ packedFile }

func openBz2(f packedFile) (decoder, error) { return bz2{f}, nil }

func (bz2) sections() []Section { return []Section{{0, -1}} }

func (b bz2) decodeSection(_ int, to *cutter) error {
	in := bufio.NewReaderSize(io.NewSectionReader(b.File, 0, b.sizeBytes), readBytes)
	return copyAll(to, bzip2.NewReader(in))
}

// copyAll copies r to the cutter until io.EOF. It marks r's errors as damage, but not the cutter's.
func copyAll(to *cutter, r io.Reader) error {
	w := &sinkWriter{cutter: to}
	_, err := io.CopyBuffer(w, r, make([]byte, readBytes))
	switch {
	case w.err != nil:
		return w.err
	case err != nil:
		return damagedError(err)
	}
	return nil
}

// sinkWriter keeps the cutter's errors, so that copyAll can tell them from the decoder's.
type sinkWriter struct {
	cutter *cutter
	err    error
}

// Write passes p to the cutter and keeps the error.
func (n *sinkWriter) Write(p []byte) (int, error) {
	var k int
	k, n.err = n.cutter.Write(p)
	return k, n.err
}
