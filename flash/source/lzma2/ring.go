package lzma2

// ring holds what was decoded last, as far back as a match can reach. A lap ends
// where a symbol ends, so that none of them goes around the ring's end.
type ring struct {
	bytes  []byte
	at     int   // of the next byte
	begin  int   // where the dictionary begins in this lap
	before int64 // bytes of the dictionary before this lap
	last   int   // where the last lap ended
	reach  int   // how far back a match can reach
	zeros  []run // known, in this lap, since they were last handed on
}

// run is a part of the ring that is known to be zeros.
type run struct{ from, to int }

const (
	// Shorter runs are not worth a mention.
	minRunBytes = 8 << 10
	// What a copy may write too much. What lies there no match may reach any more.
	overrun = 64
	// What does not go into dictionaries: the end of a lap's last symbol.
	ringSlack = maxMatch + 2*overrun
)

// ringBytes is how large a ring is for a dictionary.
func ringBytes(dictionary int) int { return dictionary + ringSlack }

func newRing(memory []byte, dictionary int) ring {
	return ring{bytes: memory[:ringBytes(dictionary)], reach: dictionary}
}

// forget begins a new dictionary.
func (r *ring) forget() { r.begin, r.before = r.at, 0 }

// lapEnd is where a lap ends, or up to a match behind that.
func (r *ring) lapEnd() int { return r.reach + overrun }

// around begins the next lap where this one has ended.
func (r *ring) around() {
	if r.at < r.lapEnd() {
		return
	}
	r.before += int64(r.at - r.begin)
	r.last, r.at, r.begin = r.at, 0, 0
}

// back is the byte dist before at, and 0 before the first one.
func (r *ring) back(at, dist int) byte {
	from := at - dist
	if from >= r.begin {
		return r.bytes[from]
	}
	if int64(dist) > r.before+int64(at-r.begin) || dist > r.reach {
		return 0
	}
	return r.bytes[from+r.last]
}

// repeat writes what is not simple to copy: a match that overlaps itself, or lies in
// the last lap. It returns false where there is no such match.
func (r *ring) repeat(at, dist, n int) bool {
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
		at, n, dist = at+k, n-k, dist+k // what was just written repeats it too
	}
	return true
}

// noteZeros joins runs between which there is nothing. A run is noted before it is
// known to be long, as it comes in matches; short ones are dropped by the next.
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
