package ldcache

import "cmp"

// orderOf is the order of the entries of a cache for the machine of given: ld.so
// finds a name by halving, and among those of one name takes the first that fits.
// Greater names come first, then greater flags: the plain "ELF", which fits every
// machine, is 1. Entries that are equal differ in the processors that they are for.
func orderOf(given []entry) func(a, b entry) int {
	signed := len(given) > 0 && signedChars[given[0].flags]
	return func(a, b entry) int {
		if n := compare(b.name, a.name, signed); n != 0 {
			return n
		}
		return cmp.Compare(b.flags, a.flags)
	}
}

// compare orders names as ld.so does: runs of digits by their value. It counts in
// 32 bits, beyond which ld.so wraps.
func compare(a, b string, signed bool) int {
	for {
		i := 0
		for i < len(a) && i < len(b) && a[i] == b[i] && !digit(a[i]) {
			i++
		}
		a, b = a[i:], b[i:]
		x, y := first(a), first(b)
		switch {
		case digit(x) && !digit(y):
			return 1
		case digit(y) && !digit(x):
			return -1
		case !digit(x):
			return compareChars(x, y, signed)
		}
		var m, n int32
		m, a = number(a)
		n, b = number(b)
		if m != n {
			return cmp.Compare(m-n, 0)
		}
	}
}

// first is the first byte of s, or the NUL behind it.
func first(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

func compareChars(a, b byte, signed bool) int {
	if signed {
		return cmp.Compare(int8(a), int8(b))
	}
	return cmp.Compare(a, b)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// number takes the digits off the front of s.
func number(s string) (n int32, rest string) {
	for s != "" && digit(s[0]) {
		n, s = n*10+int32(s[0]-'0'), s[1:]
	}
	return n, s
}
