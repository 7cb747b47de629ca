package ldcache

import (
	"cmp"
	"strconv"
)

// order is that of the entries in a cache: ld.so finds a name by halving, and
// among those of one name takes the first that fits. Greater names come first,
// then greater flags (the plain "ELF", which fits all, is 1), then entries for
// some processors only. An entry that is like one of given is neither before nor
// after it.
func order(given []entry) func(a, b entry) int {
	signed := len(given) > 0 && signedChars[given[0].flags]
	return func(a, b entry) int {
		return cmp.Or(
			-compare(a.name, b.name, signed),
			-cmp.Compare(a.flags, b.flags),
			-cmp.Compare(a.hwcap>>hwcapNamed&1, b.hwcap>>hwcapNamed&1),
		)
	}
}

// hwcapNamed is the bit that says that hwcap is a number in the extension.
const hwcapNamed = 62

// compare orders names as ld.so does: runs of digits by their value. It counts in
// 32 bits, beyond which ld.so wraps.
func compare(a, b string, signed bool) int {
	for a != "" {
		x, y := a[0], first(b)
		if digit(x) != digit(y) {
			return cmp.Compare(bit(digit(x)), bit(digit(y)))
		}
		if !digit(x) {
			if x != y {
				return compareChars(x, y, signed)
			}
			a, b = a[1:], b[1:]
			continue
		}
		var m, n int32
		m, a = number(a)
		n, b = number(b)
		if m != n {
			return cmp.Compare(m-n, 0)
		}
	}
	return compareChars(0, first(b), signed)
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

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// number takes the digits off the front of s.
func number(s string) (n int32, rest string) {
	for s != "" && digit(s[0]) {
		n, s = n*10+int32(s[0]-'0'), s[1:]
	}
	return n, s
}

// canonical is the same for names that compare as equal: libx.so.01 is libx.so.1.
func canonical(name string) string {
	for i := 0; i < len(name); i++ {
		if !digit(name[i]) || i > 0 && digit(name[i-1]) {
			continue
		}
		n, rest := number(name[i:])
		if end := len(name) - len(rest); name[i] == '0' && end > i+1 || end > i+9 {
			return name[:i] + strconv.FormatUint(uint64(uint32(n)), 10) + canonical(rest)
		}
	}
	return name
}
