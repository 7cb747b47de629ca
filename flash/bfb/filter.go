package bfb

import "slices"

// Filter takes images out of a stream that hardware of one version has no use for.
type Filter struct {
	Version int // the hardware's
	// Strip takes out only the images of this version; -1 takes out all that are not of
	// the hardware's.
	Strip int
	// Careless takes out an image even where it is the newest that the hardware could
	// use, and no other of its kind is left.
	Careless bool
}

func (f Filter) apply(pieces []piece) []piece {
	newest := map[uint8]int{} // that the hardware can use
	for _, p := range pieces {
		if p.Version <= f.Version {
			newest[p.ID] = max(newest[p.ID], p.Version)
		}
	}
	return slices.DeleteFunc(pieces, func(p piece) bool {
		if v, ok := newest[p.ID]; ok && v == p.Version && !f.Careless {
			return false
		}
		if f.Strip >= 0 {
			return p.Version == f.Strip
		}
		return p.Version != f.Version
	})
}
