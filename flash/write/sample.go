package write

import (
	"context"
	"crypto/sha256"
	"errors"

	"slipway/flash/source"
)

const (
	// Sample unpacks at most firstBytes for the map's first range, furtherBytes for two others.
	firstBytes   = 48 << 20
	furtherBytes = 8 << 20
)

// Sample verifies up to three ranges of the image by the block map's digests, so that a map of
// another image is refused before the first write. Without a map it does nothing.
func Sample(ctx context.Context, src *source.Image, o Options) error {
	if o.Blocks == nil {
		return nil
	}
	ranges := rangeSpans(*o.Blocks)
	for _, i := range sampledRanges(src, ranges) {
		if err := o.proveRange(ctx, src, ranges, i); err != nil {
			return err
		}
	}
	return nil
}

// sampledRanges returns the indexes of the ranges for Sample: the first, if affordable, and the
// longest affordable one of each half of the others. Two images may share a partition table.
func sampledRanges(src *source.Image, ranges []source.Span) (found []int) {
	n := len(ranges)
	half := (n + 1) / 2
	for _, part := range []struct {
		from, to int
		most     int64
	}{{0, min(1, n), firstBytes}, {min(1, n), half, furtherBytes}, {max(1, half), n, furtherBytes}} {
		best := -1
		for i := part.from; i < part.to; i++ {
			if unpackCost(src, ranges[i]) <= part.most && (best < 0 || ranges[i].Len > ranges[best].Len) {
				best = i
			}
		}
		if best >= 0 {
			found = append(found, best)
		}
	}
	return found
}

// unpackCost returns how many bytes must be unpacked for a span; plain images are read directly.
func unpackCost(src *source.Image, s source.Span) int64 {
	from := s.Off
	if sections := src.Sections(); src.Form() != "raw" {
		from = 0
		if i := sectionAt(sections, s.Off); i < len(sections) {
			from = sections[i].Off
		}
	}
	return s.Off + s.Len - from
}

var errRangeDone = errors.New("the range is whole")

// proveRange unpacks range i and compares its digest with the map's.
func (o Options) proveRange(ctx context.Context, src *source.Image, ranges []source.Span, i int) error {
	digest, left := sha256.New(), ranges[i].Len
	sections := src.Sections()
	for at := sectionAt(sections, ranges[i].Off); at < len(sections) && left > 0; at++ {
		err := src.Decode(ctx, at, ranges[i:i+1], func(p source.Piece) error {
			defer p.Free()
			digest.Write(p.Data)
			source.WriteZeros(digest, p.Len-int64(len(p.Data)))
			if left -= p.Len; left <= 0 {
				return errRangeDone
			}
			return nil
		})
		if err != nil && !errors.Is(err, errRangeDone) {
			return err
		}
	}
	if left > 0 {
		return o.shortImageError()
	}
	return o.checkRange(o.Blocks.Ranges[i], digest)
}
