package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
)

var (
	errPeeked = errors.New("enough was seen")
	errClosed = errors.New("the head was closed")
)

// Head is the beginning of an unpacked image, for one goroutine. It unpacks only what is read.
type Head struct {
	pieces []Piece // they ascend, without gaps
	end    int64   // of the last one
	next   func() (Piece, error, bool)
	stop   func()
	err    error
}

// Head returns a Head of the image's first n bytes, or of all if it is shorter. Call its Close.
func (m *Image) Head(ctx context.Context, n int64) *Head {
	h := &Head{}
	h.next, h.stop = iter.Pull2(func(yield func(Piece, error) bool) {
		err := peekImage(ctx, m.decoder, n, func(p Piece) error {
			if !yield(p, nil) {
				return errClosed
			}
			return nil
		})
		if err == nil || errors.Is(err, errClosed) {
			return
		}
		if context.Cause(ctx) == nil {
			err = fmt.Errorf("%s: %w", m.file.name, explainEOF(m.file.name, err))
		}
		yield(Piece{}, err)
	})
	return h
}

// ReadAt unpacks the image as far as p needs, and keeps that until Close. It returns io.EOF, maybe
// with fewer bytes, at the end of the head.
func (h *Head) ReadAt(p []byte, off int64) (n int, err error) {
	for h.end < off+int64(len(p)) && h.err == nil {
		piece, err, more := h.next()
		switch {
		case !more:
			h.err = io.EOF
		case err != nil:
			h.err = err
		default:
			h.pieces, h.end = append(h.pieces, piece), piece.Off+piece.Len
		}
	}
	for _, piece := range h.pieces {
		skip := off + int64(n) - piece.Off
		if n == len(p) || skip >= piece.Len {
			continue
		}
		part := p[n:min(int64(len(p)), int64(n)+piece.Len-skip)]
		if piece.Data == nil {
			clear(part)
		} else {
			copy(part, piece.Data[skip:])
		}
		n += len(part)
	}
	if n < len(p) {
		err = h.err
	}
	return n, err
}

// Err returns the error that ended the unpacking; nil for none, or for the end of the head.
func (h *Head) Err() error {
	if errors.Is(h.err, io.EOF) {
		return nil
	}
	return h.err
}

// Close stops the unpacking and frees the memory.
func (h *Head) Close() {
	h.stop()
	for _, p := range h.pieces {
		p.Free()
	}
	h.pieces = nil
}

// peekImage unpacks the first n bytes of an image and sends their pieces to the sink.
func peekImage(ctx context.Context, d decoder, n int64, sink func(Piece) error) error {
	for i, s := range d.sections() {
		if s.Off >= n {
			break
		}
		if err := peekSection(ctx, d, i, n, sink); err != nil {
			return err
		}
	}
	return nil
}

// peekSection sends the bytes of section i that lie before n, and stops. It returns nil for the
// decoder's io.EOF.
func peekSection(ctx context.Context, d decoder, i int, n int64, sink func(Piece) error) error {
	to := newCutter(ctx, d.sections()[i], []Span{{0, n}}, sink)
	to.peeks = true
	defer to.freePiece()
	err := d.decodeSection(i, to)
	if err == nil {
		err = to.flush()
	}
	switch {
	case errors.Is(to.failed, errPeeked) || errors.Is(err, io.EOF):
		return nil
	case to.failed != nil:
		return to.failed
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	}
	return err
}

// checkInside refuses unpacked content that begins as a packed form or that checkNotPacked refuses.
func checkInside(d decoder, form string) error {
	var head []byte
	err := peekImage(context.Background(), d, headBytes, func(p Piece) error {
		defer p.Free()
		if p.Data == nil {
			p.Data = make([]byte, min(p.Len, headBytes))
		}
		head = append(head, p.Data...)
		return nil
	})
	if err != nil {
		return err
	}
	if k := findForm(head); k != nil {
		return fmt.Errorf("it is packed twice, by %s and by %s; unpack the outer one first", form, k.name)
	}
	return checkNotPacked(head)
}
