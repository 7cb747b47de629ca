package trends

import (
	"math"
	"slices"
)

// This file finds levels of a series: parts between which the values change and within which they
// only scatter. The parts are those that cost least, where a part costs the sum of the distances to
// its median, in units of noise, and each a fixed price. Medians and distances give an odd run no
// weight of its own. The figures are from the simulation in levels_test.go.

const (
	leastAfter  = 4     // runs of a level: fewer may be chance
	leastPoints = 10    // runs of a series that has more than one level
	levelPrice  = 10    // of a level, in units of the noise
	shortSeries = 40    // runs; in fewer, the noise is less sure and a level costs more
	outlier     = 4     // what is further from the runs around it counts as this far
	aboveNoise  = 2     // a change is larger than the noise by this factor
	leastNoise  = 0.002 // as a part of the level: builds of the same thing differ as much
)

// level is a part of a series: the values [from, to), and their median.
type level struct {
	from, to int
	median   float64
}

// findLevels returns a series' levels, the oldest first. Medians of neighbours differ by at least
// the share least (0.05: 5 %), and by more than the noise. Below leastPoints, it returns one.
func findLevels(values []float64, least float64) []level {
	n := len(values)
	if n == 0 {
		return nil
	}
	noise := noiseOf(values)
	ends := []int{n}
	if n >= leastPoints {
		ends = partition(clipOutliers(values, noise), noise)
	}
	return mergeLevels(values, ends, func(a, b level) bool {
		change := math.Abs(b.median - a.median)
		return change >= least*math.Abs(a.median) && change > aboveNoise*noise && apart(values, a, b)
	})
}

// noiseOf estimates how far values scatter around their level, as the standard deviation of normal
// values. It takes a high quantile of the differences between runs up to four apart, so that one
// change of the level does not count, and jumps between two states do. Runs may depend on earlier
// ones, as in a cache that fills and empties, so the largest estimate counts. It needs a value, and
// never returns 0.
func noiseOf(values []float64) float64 {
	const quantile, ofNormal = 0.75, 1.1503
	n := len(values)
	size := make([]float64, n)
	for i, v := range values {
		size[i] = math.Abs(v)
	}
	slices.Sort(size)
	noise := max(leastNoise*size[n/2], 1e-6*size[n-1])
	for lag := 1; lag <= min(4, max(1, n/10)) && lag < n; lag++ {
		differences := make([]float64, 0, n)
		for i := lag; i < n; i++ {
			differences = append(differences, math.Abs(values[i]-values[i-lag]))
		}
		slices.Sort(differences)
		at := int(quantile * float64(len(differences)))
		noise = max(noise, differences[min(at, len(differences)-1)]/(ofNormal*math.Sqrt2))
	}
	return max(noise, 1e-300)
}

// clipOutliers returns the values, each limited to a distance of outlier times the noise from the
// median of the runs around it. A real change of the level moves that median too.
func clipOutliers(values []float64, noise float64) []float64 {
	clipped := make([]float64, len(values))
	for i, v := range values {
		around := medianOf(values[max(0, i-leastAfter):min(len(values), i+leastAfter+1)])
		clipped[i] = min(max(v, around-outlier*noise), around+outlier*noise)
	}
	return clipped
}

// partition splits the values into parts with the least sum of distances to their medians plus a
// price for each part, and returns their exclusive ends. Each has at least leastAfter values.
func partition(values []float64, noise float64) []int {
	n := len(values)
	price := levelPrice + max(0, float64(shortSeries-n)/8)
	best := make([]float64, n+1) // the least cost of the values before an index
	last := make([]int, n+1)     // the start of the last part of that
	for end := 1; end <= n; end++ {
		best[end] = math.Inf(1)
	}
	for from := 0; from <= n-leastAfter; from++ {
		if math.IsInf(best[from], 1) {
			continue
		}
		var part halves
		for end := from + 1; end <= n; end++ {
			part.add(values[end-1] / noise)
			if end-from < leastAfter {
				continue
			}
			if cost := best[from] + price + part.cost(); cost < best[end] {
				best[end], last[end] = cost, from
			}
		}
	}
	var ends []int
	for end := n; end > 0; end = last[end] {
		ends = append(ends, end)
	}
	slices.Reverse(ends)
	return ends
}

// halves keeps values sorted, with the sums of their lower and their upper half, for a fast cost.
type halves struct {
	sorted       []float64
	lower, upper float64
}

// add inserts a value into h.sorted, and updates the sums h.lower and h.upper.
func (h *halves) add(v float64) {
	n := len(h.sorted)
	k := n / 2
	at, _ := slices.BinarySearch(h.sorted, v)
	switch {
	case n%2 == 0 && at < k: // the greatest of the lower half becomes the middle
		h.lower += v - h.sorted[k-1]
	case n%2 == 0 && at > k:
		h.upper += v - h.sorted[k]
	case n%2 == 1 && at <= k: // the middle goes up
		h.lower, h.upper = h.lower+v, h.upper+h.sorted[k]
	case n%2 == 1:
		h.lower, h.upper = h.lower+h.sorted[k], h.upper+v
	}
	h.sorted = slices.Insert(h.sorted, at, v)
}

// cost returns the sum of the distances of the values to their median.
func (h *halves) cost() float64 { return h.upper - h.lower }

// mergeLevels joins neighbouring levels that do not differ, least change first. It overwrites ends.
func mergeLevels(values []float64, ends []int, differ func(a, b level) bool) []level {
	for {
		all := levelsOf(values, ends)
		weakest, least := -1, math.Inf(1)
		for i := 1; i < len(all); i++ {
			if change := math.Abs(all[i].median - all[i-1].median); change < least && !differ(all[i-1], all[i]) {
				weakest, least = i-1, change
			}
		}
		if weakest < 0 {
			return all
		}
		ends = slices.Delete(ends, weakest, weakest+1)
	}
}

// apart reports whether 80 % of each level's values are nearer to their own median than the other.
func apart(values []float64, a, b level) bool {
	const most = 0.8
	for _, pair := range [][2]level{{a, b}, {b, a}} {
		own, other := pair[0], pair[1]
		nearer := 0
		for _, v := range values[own.from:own.to] {
			if math.Abs(v-own.median) < math.Abs(v-other.median) {
				nearer++
			}
		}
		if float64(nearer) < most*float64(own.to-own.from) {
			return false
		}
	}
	return true
}

// levelsOf returns the levels that end at these indices.
func levelsOf(values []float64, ends []int) (all []level) {
	from := 0
	for _, end := range ends {
		all = append(all, level{from, end, medianOf(values[from:end])})
		from = end
	}
	return all
}

// medianOf returns the median of values in any order, or 0 for none.
func medianOf(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	if n == 0 {
		return 0
	}
	return s[(n-1)/2]/2 + s[n/2]/2
}
