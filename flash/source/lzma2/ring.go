package lzma2

// ring holds the last decoded bytes, as far back as a match can reach. A lap ends where
// a symbol ends, so that no symbol crosses the ring's end.
type ring struct {
	bytes  []byte
	at     int   // of the next byte
	begin  int   // start of the dictionary in this lap
	before int64 // bytes of the dictionary before this lap
	last   int   // end of the last lap
	reach  int   // how far back a match can reach
	zeros  []run // known in this lap and not yet sent
}

// run is a part of the ring that is known to be zeros.
type run struct{ from, to int }

const (
	// Shorter runs are written as bytes.
	minRunBytes = 8 << 10
	// How many bytes a copy may write too many. No match can reach them any more.
	overrun = 64
	// The part that is no dictionary: the end of a lap's last symbol.
	ringSlack = maxMatch + 2*overrun
)

// ringBytes returns the size of a ring for a dictionary.
func ringBytes(dictionary int) int { return dictionary + ringSlack }

func newRing(memory []byte, dictionary int) ring {
	return ring{bytes: memory[:ringBytes(dictionary)], reach: dictionary}
}

// resetDictionary begins a new dictionary.
func (r *ring) resetDictionary() { r.begin, r.before = r.at, 0 }

// lapEnd returns where a lap ends. A match may end later.
func (r *ring) lapEnd() int { return r.reach + overrun }

// wrapAround begins the next lap if this one has ended.
func (r *ring) wrapAround() {
	if r.at < r.lapEnd() {
		return
	}
	r.before += int64(r.at - r.begin)
	r.last, r.at, r.begin = r.at, 0, 0
}

// byteBefore returns the byte at distance dist before at, or 0 outside of the dictionary.
func (r *ring) byteBefore(at, dist int) byte {
	from := at - dist
	if from >= r.begin {
		return r.bytes[from]
	}
	if int64(dist) > r.before+int64(at-r.begin) || dist > r.reach {
		return 0
	}
	return r.bytes[from+r.last]
}

// copyMatch copies a match, which may overlap itself or begin in the last lap, and notes zeros. It
// returns false if the distance is outside the dictionary.
func (r *ring) copyMatch(at, dist, n int) bool {
	from := at - dist
	if dist > r.reach || int64(dist) > r.before+int64(at-r.begin) {
		return false
	}
	if from < r.begin {
		k := copy(r.bytes[at:at+n], r.bytes[from+r.last:r.last])
		at, n = at+k, n-k
	}
	if dist == 1 && n > 0 && r.bytes[at-1] == 0 {
		clear(r.bytes[at : at+n])
		r.noteZeros(run{at, at + n})
		return true
	}
	for n > 0 {
		k := copy(r.bytes[at:at+n], r.bytes[at-dist:at])
		at, n, dist = at+k, n-k, dist+k // the bytes just written repeat too
	}
	return true
}

// noteZeros adds a run to r.zeros, or extends the last one by it. A run is recorded before it is
// known to be long, since it consists of many matches. The next run replaces a short one.
func (r *ring) noteZeros(z run) {
	if n := len(r.zeros); n > 0 {
		if r.zeros[n-1].to == z.from {
			r.zeros[n-1].to = z.to
			return
		}
		if r.zeros[n-1].to-r.zeros[n-1].from < minRunBytes {
			r.zeros = r.zeros[:n-1]
		}
	}
	r.zeros = append(r.zeros, z)
}
