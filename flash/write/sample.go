package write

import (
	"context"
	"errors"

	"slipway/flash/source"
)

// What is unpacked at most to prove a range before the first write: the map's first
// one, and two further back.
const (
	firstBytes   = 48 << 20
	furtherBytes = 8 << 20
)

// Sample proves some of the image by its map, so that the map of another image is
// refused while the devices are as they were. All of it is proved as it is written.
func Sample(ctx context.Context, src Source, o Options) error {
	if o.Blocks == nil {
		return nil
	}
	ranges := rangesOf(*o.Blocks)
	for _, i := range sampled(src, ranges) {
		if err := o.proveRange(ctx, src, ranges, i); err != nil {
			return err
		}
	}
	return nil
}

// sampled are the ranges that are proved: the first, where two images may have the same
// partition table, and the longest of either half behind it that is as cheap.
func sampled(src Source, ranges []source.Span) (found []int) {
	n := len(ranges)
	half := (n + 1) / 2
	for _, part := range []struct {
		from, to int
		most     int64
	}{{0, min(1, n), firstBytes}, {min(1, n), half, furtherBytes}, {max(1, half), n, furtherBytes}} {
		best := -1
		for i := part.from; i < part.to; i++ {
			if cost(src, ranges[i]) <= part.most && (best < 0 || ranges[i].Len > ranges[best].Len) {
				best = i
			}
		}
		if best >= 0 {
			found = append(found, best)
		}
	}
	return found
}

// cost is how much is unpacked for a range. A plain image is read where it is wanted.
func cost(src Source, s source.Span) int64 {
	from := s.Off
	if sections := src.Sections(); src.Form() != "raw" {
		from = 0
		if i := sectionAt(sections, s.Off); i < len(sections) {
			from = sections[i].Off
		}
	}
	return s.Off + s.Len - from
}

var errEnough = errors.New("the range is whole")

func (o Options) proveRange(ctx context.Context, src Source, ranges []source.Span, i int) error {
	digest, left := o.Blocks.Hash(), ranges[i].Len
	sections := src.Sections()
	for at := sectionAt(sections, ranges[i].Off); at < len(sections) && left > 0; at++ {
		err := src.Decode(ctx, at, ranges[i:i+1], func(p source.Piece) error {
			defer p.Free()
			digest.Write(p.Data)
			hashZeros(digest, p.Len-int64(len(p.Data)))
			if left -= p.Len; left <= 0 {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
	}
	if left > 0 {
		return o.errShort()
	}
	return o.compare(o.Blocks.Ranges[i], digest)
}
