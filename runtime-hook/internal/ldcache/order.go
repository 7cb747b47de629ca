package ldcache

import "cmp"

// orderOf returns the comparison that sorts a cache's entries, for the machine of given. ld.so
// finds a name by binary search, then takes its first fitting entry. Greater names come first, then
// greater flags: plain "ELF", which fits every machine, is 1. Equal entries may differ in hwcap.
func orderOf(given []entry) func(a, b entry) int {
	signed := len(given) > 0 && signedChars[given[0].flags]
	return func(a, b entry) int {
		if n := compareNames(b.name, a.name, signed); n != 0 {
			return n
		}
		return cmp.Compare(b.flags, a.flags)
	}
}

// compareNames compares names as ld.so does: digits by value, in 32 bits, with ld.so's overflow.
// signed: the machine's char is.
func compareNames(a, b string, signed bool) int {
	for {
		i := 0
		for i < len(a) && i < len(b) && a[i] == b[i] && !isDigit(a[i]) {
			i++
		}
		a, b = a[i:], b[i:]
		x, y := firstByte(a), firstByte(b)
		switch {
		case isDigit(x) && !isDigit(y):
			return 1
		case isDigit(y) && !isDigit(x):
			return -1
		case !isDigit(x) && signed:
			return cmp.Compare(int8(x), int8(y))
		case !isDigit(x):
			return cmp.Compare(x, y)
		}
		var m, n int32
		m, a = cutNumber(a)
		n, b = cutNumber(b)
		if m != n {
			return cmp.Compare(m-n, 0)
		}
	}
}

// firstByte returns the first byte of s, or the NUL after it.
func firstByte(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// cutNumber cuts the digits off the front of s, and returns their value in 32 bits.
func cutNumber(s string) (n int32, rest string) {
	for s != "" && isDigit(s[0]) {
		n, s = n*10+int32(s[0]-'0'), s[1:]
	}
	return n, s
}
