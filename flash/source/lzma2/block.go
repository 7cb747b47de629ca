package lzma2

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"slipway/flash/source/inflate"
)

// maxSpare is how many workspaces are kept for further blocks.
const maxSpare = 16

var errTooLong = errors.New("it has more than the index says")

// workspace is the decoder and memory for one block.
type workspace struct {
	decoder
	memory []byte
	src    *bufio.Reader
}

// getWorkspace returns a spare or new workspace with memory for the dictionary.
func (f *File) getWorkspace(dictionary int) *workspace {
	var w *workspace
	select {
	case w = <-f.spare:
	default:
		w = &workspace{src: bufio.NewReaderSize(nil, 64<<10)}
		w.in = make([]byte, 1<<16+mostInput)
	}
	if len(w.memory) < ringBytes(dictionary) {
		w.memory = nil // freed before the larger one is made
		w.memory = make([]byte, ringBytes(dictionary))
	}
	w.ring = newRing(w.memory, dictionary)
	return w
}

// putWorkspace keeps w for another block, unless enough workspaces are kept.
func (f *File) putWorkspace(w *workspace) {
	select {
	case f.spare <- w:
	default:
	}
}

// Decode decodes block i into out, and verifies its check. Its errors wrap those of out. Goroutines
// may decode other blocks.
func (f *File) Decode(i int, out inflate.Out) error {
	b := &f.Blocks[i]
	w := f.getWorkspace(b.Dictionary)
	defer f.putWorkspace(w)
	to := &checkedOutput{check: checks[b.check](), out: out, left: b.Len}
	err := w.decodeInto(io.NewSectionReader(f.src, b.at+int64(b.header), b.compressedBytes()), to)
	if err == nil {
		err = f.verifyCheck(b, to)
	}
	if err != nil {
		return corruptError("block %d of %d, at %d: %w", i+1, len(f.Blocks), b.at, err)
	}
	return nil
}

// decodeInto decodes the chunks in data into to. They must end where data ends.
func (w *workspace) decodeInto(data io.Reader, to inflate.Out) error {
	w.src.Reset(data)
	c := chunkReader{decoder: &w.decoder, src: w.src, out: to}
	if err := c.readAll(); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("it has less than the index says")
		}
		return err
	}
	if _, err := w.src.ReadByte(); err != io.EOF {
		return errors.New("something follows its data")
	}
	return nil
}

// verifyCheck compares the stored check, its padding, and the index's length with the output.
func (f *File) verifyCheck(b *Block, to *checkedOutput) error {
	size := to.checkBytes()
	pad := int(-b.size & 3)
	at := b.at + b.size - int64(size)
	// The padding is between the data and the check.
	p, err := f.readAt(at, size+pad)
	if err != nil {
		return err
	}
	for _, v := range p[:pad] {
		if v != 0 {
			return errors.New("it is filled up with something else than zeros")
		}
	}
	if to.left != 0 || !bytes.Equal(to.checkSum(), p[pad:]) {
		return fmt.Errorf("the unpacked data does not match its checksum, or is not as long as the index says")
	}
	return nil
}
