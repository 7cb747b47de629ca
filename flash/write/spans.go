package write

import (
	"cmp"
	"slices"

	"slipway/flash/source"
	"slipway/images/bmap"
)

// spans ascend, and do not touch.
type spans []source.Span

// add puts s behind all others.
func (l *spans) add(s source.Span) {
	if s.Len <= 0 {
		return
	}
	if n := len(*l); n > 0 && (*l)[n-1].Off+(*l)[n-1].Len == s.Off {
		(*l)[n-1].Len += s.Len
		return
	}
	*l = append(*l, s)
}

// addOutside adds what of s lies in none of others, which ascend.
func (l *spans) addOutside(s source.Span, others []source.Span) {
	split(s, others, func(part source.Span, inside int) {
		if inside < 0 {
			l.add(part)
		}
	})
}

// split cuts s at the ends of others, which ascend and do not overlap, and says of
// each part in which of them it lies: -1 for none.
func split(s source.Span, others []source.Span, yield func(part source.Span, inside int)) {
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

// rangesOf is where a map's ranges lie, one span for each.
func rangesOf(m bmap.Map) []source.Span {
	found := make([]source.Span, len(m.Ranges))
	for i, r := range m.Ranges {
		found[i].Off, found[i].Len = m.Span(r)
	}
	return found
}

// mostBytes is more than any image has, see source.
const mostBytes = 1 << 50

// wanted is what the map's image is asked for. Where only decoding tells how long the
// image is, its last byte is asked for too, and what lies behind it.
func wanted(src Source, m bmap.Map, ranges []source.Span) []source.Span {
	want := make(spans, 0, len(ranges))
	for _, s := range ranges {
		want.add(s)
	}
	if src.SizeBytes() >= 0 {
		return want
	}
	end := int64(0)
	if n := len(want); n > 0 {
		end = want[n-1].Off + want[n-1].Len
	}
	if end < m.ImageSize {
		want.add(source.Span{Off: m.ImageSize - 1, Len: 1})
	}
	want.add(source.Span{Off: m.ImageSize, Len: mostBytes - m.ImageSize})
	return want
}

// within is those of want that overlap a section.
func within(want []source.Span, s source.Section) []source.Span {
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

// sectionAt is the section that a byte lies in; none is len(sections).
func sectionAt(sections []source.Section, off int64) int {
	i, _ := slices.BinarySearchFunc(sections, off, func(s source.Section, off int64) int {
		if s.Len < 0 {
			return 0
		}
		return cmp.Compare(s.Off+s.Len-1, off)
	})
	return i
}

// outside calls work with what of s lies in none of others.
func outside(s source.Span, others []source.Span, work func(source.Span) error) (err error) {
	split(s, others, func(part source.Span, i int) {
		if i < 0 && err == nil {
			err = work(part)
		}
	})
	return err
}
