package source

import (
	"bufio"
	"compress/bzip2"
	"io"
)

type bz2 struct{ packed }

func openBz2(f packed) (decoder, error) { return bz2{f}, nil }

func (bz2) unpackedBytes() int64 { return -1 }
func (bz2) sections() []Section  { return []Section{{0, -1}} }
func (b bz2) finish() error      { return unchanged(b.packed) }
func (bz2) close()               {}

func (b bz2) decode(_ int, to *cutter) error {
	in := bufio.NewReaderSize(io.NewSectionReader(b.File, 0, b.sizeBytes), readBytes)
	return copyAll(to, bzip2.NewReader(in))
}

// copyAll takes the output of a decoder that knows where its input ends.
func copyAll(to *cutter, r io.Reader) error {
	w := &noted{to: to}
	_, err := io.CopyBuffer(w, r, make([]byte, readBytes))
	switch {
	case w.err != nil:
		return w.err
	case err != nil:
		return damaged(err)
	}
	return nil
}

// noted tells the cutter's errors from the decoder's.
type noted struct {
	to  *cutter
	err error
}

func (n *noted) Write(p []byte) (int, error) {
	var k int
	k, n.err = n.to.Write(p)
	return k, n.err
}
