package write

import (
	"cmp"
	"slices"

	"slipway/flash/source"
	"slipway/images/bmap"
)

// spanList holds spans in ascending order that do not touch.
type spanList []source.Span

// append adds s, which lies after all others, or joins it to the last. It omits an empty s.
func (l *spanList) append(s source.Span) {
	if s.Len <= 0 {
		return
	}
	if n := len(*l); n > 0 && (*l)[n-1].Off+(*l)[n-1].Len == s.Off {
		(*l)[n-1].Len += s.Len
		return
	}
	*l = append(*l, s)
}

// splitSpan cuts s at the ends of others, which ascend and do not overlap. It calls yield with each
// part and the index of the span that it lies in, -1 for none.
func splitSpan(s source.Span, others []source.Span, yield func(part source.Span, inside int)) {
	end := s.Off + s.Len
	i, _ := slices.BinarySearchFunc(others, s.Off, func(o source.Span, off int64) int { return cmp.Compare(o.Off+o.Len-1, off) })
	for off := s.Off; off < end; i++ {
		if i >= len(others) || others[i].Off >= end {
			yield(source.Span{Off: off, Len: end - off}, -1)
			return
		}
		if o := others[i]; o.Off > off {
			yield(source.Span{Off: off, Len: o.Off - off}, -1)
			off = o.Off
		}
		to := min(end, others[i].Off+others[i].Len)
		yield(source.Span{Off: off, Len: to - off}, i)
		off = to
	}
}

// rangeSpans returns the span of each of a map's ranges.
func rangeSpans(m bmap.Map) []source.Span {
	found := make([]source.Span, len(m.Ranges))
	for i, r := range m.Ranges {
		found[i].Off, found[i].Len = m.Span(r)
	}
	return found
}

// mostBytes is the size limit for an image; see source.
const mostBytes = 1 << 50

// wantedSpans returns the spans to decode: the map's ranges. If only decoding tells the image's
// length, it adds the image's last byte and everything that may follow.
func wantedSpans(src *source.Image, m bmap.Map, ranges []source.Span) []source.Span {
	want := make(spanList, 0, len(ranges))
	for _, s := range ranges {
		want.append(s)
	}
	if src.SizeBytes() >= 0 {
		return want
	}
	end := int64(0)
	if n := len(want); n > 0 {
		end = want[n-1].Off + want[n-1].Len
	}
	if end < m.ImageSize {
		want.append(source.Span{Off: m.ImageSize - 1, Len: 1})
	}
	want.append(source.Span{Off: m.ImageSize, Len: mostBytes - m.ImageSize})
	return want
}

// overlapping returns those of want that overlap a section; all if its length is unknown.
func overlapping(want []source.Span, s source.Section) []source.Span {
	if s.Len < 0 || want == nil {
		return want
	}
	first, _ := slices.BinarySearchFunc(want, s.Off, func(w source.Span, off int64) int { return cmp.Compare(w.Off+w.Len-1, off) })
	last, _ := slices.BinarySearchFunc(want, s.Off+s.Len, func(w source.Span, off int64) int { return cmp.Compare(w.Off, off) })
	if last < first {
		last = first
	}
	return want[first:last]
}

// sectionAt returns the index of the section that a byte lies in, or len(sections).
func sectionAt(sections []source.Section, off int64) int {
	i, _ := slices.BinarySearchFunc(sections, off, func(s source.Section, off int64) int {
		if s.Len < 0 {
			return 0
		}
		return cmp.Compare(s.Off+s.Len-1, off)
	})
	return i
}

// eachOutside calls work with the parts of s that lie in none of others, until work fails.
func eachOutside(s source.Span, others []source.Span, work func(source.Span) error) (err error) {
	splitSpan(s, others, func(part source.Span, i int) {
		if i < 0 && err == nil {
			err = work(part)
		}
	})
	return err
}
