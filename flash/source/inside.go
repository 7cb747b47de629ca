package source

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// inside is a sparse image inside a packed file, as simg.xz.
type inside struct {
	outer decoder
	name  string // of the outer form
	size  int64
}

func (n *inside) form() string {
	if n.name == "" {
		return "sparse"
	}
	return "sparse in " + n.name
}

func (n *inside) unpackedBytes() int64 { return n.size }
func (n *inside) sections() []Section  { return []Section{{0, n.size}} }
func (n *inside) finish() error        { return n.outer.finish() }
func (n *inside) close()               { n.outer.close() }

// decode goes through the outer file's sections in order.
func (n *inside) decode(_ int, to *cutter) error {
	u := newUnsparse(to)
	var failed error
	for i, s := range n.outer.sections() {
		through := newCutter(to.ctx, s, []Span{{0, maxImageBytes}}, func(p Piece) error {
			defer p.Free()
			if p.Data == nil {
				failed = u.zeros(p.Len)
			} else {
				failed = u.write(p.Data)
			}
			return failed
		})
		err := n.outer.decode(i, through)
		if err == nil {
			err = through.whole()
		}
		through.drop()
		if failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
	}
	return u.finish()
}

// wholeFile is a file as it is, in one section.
type wholeFile struct{ packed }

func (w wholeFile) unpackedBytes() int64 { return w.sizeBytes }
func (w wholeFile) sections() []Section  { return []Section{{0, w.sizeBytes}} }
func (w wholeFile) finish() error        { return unchanged(w.packed) }
func (w wholeFile) close()               {}
func (w wholeFile) decode(_ int, to *cutter) error {
	return to.readFrom(w.File, 0, w.sizeBytes)
}

var errPeeked = errors.New("enough was seen")

// peek unpacks the first n bytes of an image, which are rarely in several sections.
func peek(ctx context.Context, d decoder, n int64) ([]byte, error) {
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
	defer to.drop()
	err := d.decode(i, to)
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
	head, err := peek(ctx, m.decoder, n)
	if err != nil && context.Cause(ctx) == nil {
		err = fmt.Errorf("%s: %w", m.name, cut(err))
	}
	return head, err
}

// lookInside refuses what is packed and is no image, and knows a sparse one.
func lookInside(d decoder, form, name string) (decoder, error) {
	head, err := peek(context.Background(), d, headBytes)
	switch {
	case err != nil:
		return nil, err
	case len(head) >= sparseHeadBytes && string(head[:4]) == sparseMagic:
		h, err := parseSparse(head)
		if err == nil {
			err = refusePart(plainName(name))
		}
		return &inside{outer: d, name: form, size: h.sizeBytes()}, err
	}
	if k := formOf(head); k != nil {
		return nil, fmt.Errorf("it is packed twice, by %s and by %s; unpack the outer one first", form, k.name)
	}
	return d, notImage(head)
}
