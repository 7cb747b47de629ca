package lzma2

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// maxSpare is how many workspaces are kept for the next blocks.
const maxSpare = 16

var errTooLong = errors.New("it has more than the index says")

// workspace is the memory that decoding a block takes.
type workspace struct {
	decoder
	memory []byte
	src    *bufio.Reader
}

// getWorkspace finds a workspace, and makes it large enough.
func (f *File) getWorkspace(dictionary int) *workspace {
	var w *workspace
	select {
	case w = <-f.spare:
	default:
		w = &workspace{src: bufio.NewReaderSize(nil, 64<<10)}
		w.in = make([]byte, 1<<16+mostInput)
	}
	if len(w.memory) < ringBytes(dictionary) {
		w.memory = nil // before the larger one is made
		w.memory = make([]byte, ringBytes(dictionary))
	}
	w.ring = newRing(w.memory, dictionary)
	return w
}

func (f *File) putWorkspace(w *workspace) {
	select {
	case f.spare <- w:
	default:
	}
}

// Decode decodes block i into out, and proves it. It may be called for several blocks
// at once.
func (f *File) Decode(i int, out Out) error {
	b := &f.Blocks[i]
	w := f.getWorkspace(b.Dictionary)
	defer f.putWorkspace(w)
	to := &proved{check: checks[b.check](), out: &failing{out: out}, left: b.Len}
	err := b.decode(w, io.NewSectionReader(f.src, b.at+int64(b.header), b.packed()), to)
	if failed := to.out.(*failing).err; failed != nil {
		return failed
	}
	if err == nil {
		err = f.prove(b, to)
	}
	if err != nil {
		return corrupt("block %d of %d, at %d: %s", i+1, len(f.Blocks), b.at, err)
	}
	return nil
}

// failing keeps the error of an output apart from those of the input.
type failing struct {
	out Out
	err error
}

func (f *failing) Write(p []byte) (n int, err error) {
	n, f.err = f.out.Write(p)
	return n, f.err
}

func (f *failing) SkipZeros(n int64) error {
	f.err = f.out.SkipZeros(n)
	return f.err
}

func (b *Block) decode(w *workspace, data io.Reader, to Out) error {
	w.src.Reset(data)
	end := func() error { return nil }
	for _, f := range b.chain { // the last one to pack is the first to unpack
		s := f.stage(to)
		to, end = s, both(s.flush, end)
	}
	c := chunks{decoder: &w.decoder, src: w.src, out: to}
	if err := c.all(); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("it has less than the index says")
		}
		return err
	}
	if _, err := w.src.ReadByte(); err != io.EOF {
		return errors.New("something follows its data")
	}
	return end()
}

func both(a, b func() error) func() error {
	return func() error { return errors.Join(a(), b()) }
}

// prove compares the check behind the data with what came out.
func (f *File) prove(b *Block, to *proved) error {
	size := to.size()
	pad := int(-b.size & 3)
	at := b.at + b.size - int64(size)
	// The padding lies between the data and the check.
	p, err := f.read(at, size+pad)
	if err != nil {
		return err
	}
	for _, v := range p[:pad] {
		if v != 0 {
			return errors.New("it is filled up with something else than zeros")
		}
	}
	if !to.matches(p[pad:]) {
		return fmt.Errorf("what came out does not match its checksum, or is not as long as the index says")
	}
	return nil
}
