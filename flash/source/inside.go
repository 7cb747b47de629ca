package source

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// sparseInside is a sparse image inside a compressed file, as simg.xz.
type sparseInside struct {
	outer decoder
	name  string // of the outer form
	size  int64
}

func (n *sparseInside) formName() string {
	if n.name == "" {
		return "sparse"
	}
	return "sparse in " + n.name
}

func (n *sparseInside) unpackedBytes() int64 { return n.size }
func (n *sparseInside) sections() []Section  { return []Section{{0, n.size}} }
func (n *sparseInside) checkRest() error     { return n.outer.checkRest() }
func (n *sparseInside) close()               { n.outer.close() }

// decodeSection decodes the outer file's sections in order.
func (n *sparseInside) decodeSection(_ int, to *cutter) error {
	u := newSparseStream(to)
	var failed error
	for i, s := range n.outer.sections() {
		through := newCutter(to.ctx, s, []Span{{0, maxImageBytes}}, func(p Piece) error {
			defer p.Free()
			if p.Data == nil {
				failed = u.writeZeros(p.Len)
			} else {
				failed = u.write(p.Data)
			}
			return failed
		})
		err := n.outer.decodeSection(i, through)
		if err == nil {
			err = through.finishSection()
		}
		through.freePiece()
		if failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
	}
	return u.checkEnd()
}

// wholeFile is a file as one section.
type wholeFile struct{ packedFile }

func (w wholeFile) unpackedBytes() int64 { return w.sizeBytes }
func (w wholeFile) sections() []Section  { return []Section{{0, w.sizeBytes}} }
func (w wholeFile) checkRest() error     { return checkUnchanged(w.packedFile) }
func (w wholeFile) close()               {}
func (w wholeFile) decodeSection(_ int, to *cutter) error {
	return to.readFrom(w.File, 0, w.sizeBytes)
}

var errPeeked = errors.New("enough was seen")

// peekImage unpacks the first n bytes of an image. They are rarely in several sections.
func peekImage(ctx context.Context, d decoder, n int64) ([]byte, error) {
	var head []byte
	for i, s := range d.sections() {
		if s.Off >= n {
			break
		}
		p, err := peekSection(ctx, d, i, n)
		if err != nil {
			return nil, err
		}
		head = append(head, p...)
	}
	return head, nil
}

func peekSection(ctx context.Context, d decoder, i int, n int64) ([]byte, error) {
	var head []byte
	s := d.sections()[i]
	to := newCutter(ctx, s, []Span{{0, n}}, func(p Piece) error {
		defer p.Free()
		if p.Data == nil {
			p.Data = make([]byte, min(p.Len, n))
		}
		head = append(head, p.Data...)
		if s.Off+int64(len(head)) >= n {
			return errPeeked
		}
		return nil
	})
	defer to.freePiece()
	err := d.decodeSection(i, to)
	if err == nil {
		err = to.flush()
	}
	if to.failed != nil || errors.Is(err, io.EOF) {
		err = nil
	}
	return head, err
}

// Head unpacks the first n bytes of the image, or all of a shorter one.
func (m *Image) Head(ctx context.Context, n int64) ([]byte, error) {
	head, err := peekImage(ctx, m.decoder, n)
	if err != nil && context.Cause(ctx) == nil {
		err = fmt.Errorf("%s: %w", m.name, explainEOF(err))
	}
	return head, err
}

// lookInside refuses compressed content that is no image, and detects a sparse image.
func lookInside(d decoder, form, name string) (decoder, error) {
	head, err := peekImage(context.Background(), d, headBytes)
	switch {
	case err != nil:
		return nil, err
	case len(head) >= sparseHeadBytes && string(head[:4]) == sparseMagic:
		h, err := parseSparseHead(head)
		if err == nil {
			err = refusePart(trimForm(name))
		}
		return &sparseInside{outer: d, name: form, size: h.sizeBytes()}, err
	}
	if k := findForm(head); k != nil {
		return nil, fmt.Errorf("it is packed twice, by %s and by %s; unpack the outer one first", form, k.name)
	}
	return d, checkNotImage(head)
}
