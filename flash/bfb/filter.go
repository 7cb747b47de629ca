package bfb

import "slices"

// Filter removes images of a stream that hardware of one version does not use.
type Filter struct {
	Version int // the hardware's
	// Strip removes only the images of this version. -1 removes all that are not of the
	// hardware's version.
	Strip int
	// Careless also removes the newest image that the hardware can use.
	Careless bool
}

func (f Filter) removeUnused(pieces []piece) []piece {
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
