package source

import (
	"context"
	"errors"
	"fmt"
	"io"
)

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
		return nil
	})
	to.peeks = true
	defer to.freePiece()
	err := d.decodeSection(i, to)
	if err == nil {
		err = to.flush()
	}
	if errors.Is(to.failed, errPeeked) || errors.Is(err, io.EOF) {
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

// checkInside refuses compressed content that is no image.
func checkInside(d decoder, form string) error {
	head, err := peekImage(context.Background(), d, headBytes)
	if err != nil {
		return err
	}
	if k := findForm(head); k != nil {
		return fmt.Errorf("it is packed twice, by %s and by %s; unpack the outer one first", form, k.name)
	}
	return checkNotImage(head)
}
