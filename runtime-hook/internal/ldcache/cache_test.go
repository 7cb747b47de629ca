package ldcache

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// search is how ld.so looks for name in a cache, step by step, on a processor that
// has all that hwcap requests: by halving, then over the neighbours of that name.
func search(entries []entry, name string, flags uint32, signed bool) string {
	left, right := 0, len(entries)-1
	for left <= right {
		middle := (left + right) / 2
		order := referenceCompare(name, entries[middle].name, signed)
		if order < 0 {
			left = middle + 1
			continue
		}
		if order > 0 {
			right = middle - 1
			continue
		}
		for middle > 0 && referenceCompare(name, entries[middle-1].name, signed) == 0 {
			middle--
		}
		best := ""
		for ; middle <= right && referenceCompare(name, entries[middle].name, signed) == 0; middle++ {
			e := entries[middle]
			if e.flags != flags && e.flags != 1 {
				continue
			}
			named := e.hwcap>>62&1 == 1
			if !named && best != "" {
				break
			}
			if best == "" || !named {
				best = e.path
			}
			if !named && e.flags == flags {
				break
			}
		}
		return best
	}
	return ""
}

// referenceCompare walks both names with two indices, as the C code's pointers do.
func referenceCompare(a, b string, signed bool) int {
	char := func(s string, i int) int {
		switch {
		case i >= len(s):
			return 0
		case signed:
			return int(int8(s[i]))
		}
		return int(s[i])
	}
	isDigit := func(c int) bool { return c >= '0' && c <= '9' }
	i, j := 0, 0
	for char(a, i) != 0 {
		x, y := char(a, i), char(b, j)
		switch {
		case isDigit(x) && isDigit(y):
			var m, n int32
			for ; isDigit(char(a, i)); i++ {
				m = m*10 + int32(char(a, i)-'0')
			}
			for ; isDigit(char(b, j)); j++ {
				n = n*10 + int32(char(b, j)-'0')
			}
			if m != n {
				return int(m - n)
			}
		case isDigit(x):
			return 1
		case isDigit(y):
			return -1
		case x != y:
			return x - y
		default:
			i, j = i+1, j+1
		}
	}
	return char(a, i) - char(b, j)
}

// randomName is one of few, so that names meet, with digits and with signs that sort on both sides
// of them. Its numbers are none that wrap: no order holds among those.
func randomName(r *rand.Rand) string {
	parts := []string{"lib", "a", "b", "+", "-", "_", ".so", ".so.", "1", "2", "10", "010", "9", "99", "000000000012", ".", "Z", "~"}
	s := "lib"
	for n := 1 + r.Intn(5); n > 0; n-- {
		if part := parts[r.Intn(len(parts))]; !isDigit(s[len(s)-1]) || !isDigit(part[0]) {
			s += part
		}
	}
	return s
}

var machineFlags = []uint32{0x0303, 0x0003, 0x0a03, 0x0903, 1}

// randomCache is one as ldconfig sorts it.
func randomCache(r *rand.Rand, signed bool) *cache {
	c := &cache{hwcaps: []string{"x86-64-v2", "x86-64-v3"}, generator: "some ldconfig"}
	for n := r.Intn(60); n > 0; n-- {
		name := randomName(r)
		e := entry{flags: machineFlags[r.Intn(len(machineFlags))], name: name, path: fmt.Sprintf("/image/%d/%s", n, name)}
		if r.Intn(4) == 0 {
			e.hwcap = 1<<62 | uint64(r.Intn(2))
		}
		if r.Intn(8) == 0 {
			e.path = "/image/other"
		}
		c.entries = append(c.entries, e)
	}
	slices.SortStableFunc(c.entries, func(a, b entry) int {
		if n := referenceCompare(b.name, a.name, signed); n != 0 {
			return n
		}
		if a.flags != b.flags {
			return int(b.flags) - int(a.flags)
		}
		return int(b.hwcap>>62) - int(a.hwcap>>62)
	})
	return c
}

// After add, ld.so finds each given name at its path, and every other as before;
// also when the cache was written and read again.
func TestAdd(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for run := 0; run < 500; run++ {
		flags := machineFlags[r.Intn(4)]
		signed := signedChars[flags]
		before := randomCache(r, signed)
		var given []entry
		want := map[string]string{}
		for n := r.Intn(10); n > 0; n-- {
			g := entry{flags: flags, name: randomName(r), path: fmt.Sprintf("/board/%d", n)}
			given = append(given, g)
			same := slices.ContainsFunc(given[:len(given)-1], func(o entry) bool { return referenceCompare(o.name, g.name, signed) == 0 })
			if !same {
				want[g.name] = g.path
			}
		}
		after := &cache{slices.Clone(before.entries), before.hwcaps, before.generator, r.Intn(2) == 0}
		after.addEntries(slices.Clone(given))
		read, err := parseCache(after.encode())
		must(t, err)
		if !reflect.DeepEqual(read, after) && len(after.entries) > 0 {
			t.Fatalf("run %d: wrote %+v, read %+v", run, after, read)
		}
		for name, path := range want {
			if got := search(read.entries, name, flags, signed); got != path {
				t.Fatalf("run %d: ld.so finds %s at %q; want %q; in %+v", run, name, got, path, read.entries)
			}
		}
		for _, e := range before.entries {
			isGiven := slices.ContainsFunc(given, func(g entry) bool { return referenceCompare(g.name, e.name, signed) == 0 })
			if e.flags == 1 || isGiven && e.flags == flags {
				continue
			}
			had, has := search(before.entries, e.name, e.flags, signed), search(read.entries, e.name, e.flags, signed)
			if had != has {
				t.Fatalf("run %d: ld.so of %x found %s at %q; now at %q", run, e.flags, e.name, had, has)
			}
		}
		added := slices.Clone(after.entries)
		if after.addEntries(slices.Clone(given)); !slices.Equal(after.entries, added) {
			t.Fatalf("run %d: the second add changed something", run)
		}
		after.removeEntries(func(path string) bool { return strings.HasPrefix(path, "/board/") })
		for _, e := range before.entries {
			if !slices.Contains(after.entries, e) && e.hwcap == 0 {
				t.Fatalf("run %d: the image's %+v went with what was given", run, e)
			}
		}
	}
}

func TestCompare(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	sign := func(n int) int { return min(1, max(-1, n)) }
	for i := 0; i < 20000; i++ {
		a, b := randomName(r), randomName(r)
		if r.Intn(10) == 0 {
			a += "é"
		}
		if r.Intn(10) == 0 {
			b += "4294967306"
		}
		for _, signed := range []bool{false, true} {
			if got, want := compareNames(a, b, signed), sign(referenceCompare(a, b, signed)); got != want {
				t.Fatalf("compare(%q, %q, %v) = %d; want %d", a, b, signed, got, want)
			}
		}
	}
}

// A cache that is not in order is put into order.
func TestAddUnsorted(t *testing.T) {
	c := &cache{entries: []entry{{flags: 0x303, name: "liba.so.1", path: "/a"}, {flags: 0x303, name: "libz.so.1", path: "/z"}, {flags: 0x303, name: "libm.so.1", path: "/m"}}}
	c.addEntries([]entry{{flags: 0x303, name: "libm.so.1", path: "/ours"}})
	for name, want := range map[string]string{"liba.so.1": "/a", "libm.so.1": "/ours", "libz.so.1": "/z"} {
		if got := search(c.entries, name, 0x303, true); got != want {
			t.Errorf("%s at %q; want %q", name, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	good := (&cache{entries: []entry{{flags: 0x303, name: "liba.so.1", path: "/lib/liba.so.1"}}, hwcaps: []string{"x86-64-v2"}, generator: "g"}).encode()
	change := func(f func(b []byte) []byte) []byte { return f(slices.Clone(good)) }
	set := func(at int, n uint32) []byte {
		return change(func(b []byte) []byte { le.PutUint32(b[at:], n); return b })
	}
	old := func(entries, pad int) []byte {
		b := make([]byte, oldHeader+entries*oldEntrySize+pad)
		copy(b, oldMagic)
		le.PutUint32(b[12:], uint32(entries))
		return b
	}
	extension := int(le.Uint32(good[32:]))
	// behind is good behind the older form, from which the extension's places count.
	behind := func(old []byte) []byte {
		move := uint32(len(old))
		return append(old, change(func(b []byte) []byte {
			for _, at := range []int{32, extension + 8 + 8, extension + 8 + sectionSize + 8} {
				le.PutUint32(b[at:], le.Uint32(b[at:])+move)
			}
			return b
		})...)
	}
	tests := []struct {
		name  string
		input []byte
		want  error
	}{
		{"good", good, nil},
		{"empty", nil, nil},
		{"behind the old form, aligned by 8", behind(old(1, 4)), nil},
		{"behind the old form, aligned by 4", behind(old(1, 0)), nil},
		{"an extension in the old form", append(old(9, 4), good...), errBroken},
		{"only the old form", old(3, 100), errUnknown},
		{"half of the old form", old(3, 0)[:20], errBroken},
		{"another version", []byte("glibc-ld.so.cache2.0" + string(good[20:])), errUnknown},
		{"text", []byte("hello"), errUnknown},
		{"the magic alone", good[:20], errBroken},
		{"big-endian", change(func(b []byte) []byte { b[28] = endianBig; return b }), errUnknown},
		{"half written", change(func(b []byte) []byte { b[28] = 1; return b }), errBroken},
		{"of before endianness", change(func(b []byte) []byte { b[28] = 0; return b }), nil},
		{"too many entries", set(20, 1<<30), errUnknown},
		{"more entries than bytes", set(20, 1000), errBroken},
		{"a name outside", set(headerSize+4, 1<<31), errBroken},
		{"a path outside", set(headerSize+8, 1<<31), errBroken},
		{"no extension", set(32, 0), nil},
		{"an extension outside", set(32, 1<<31), errBroken},
		{"an extension at an odd place", set(32, uint32(extension+1)), errBroken},
		{"another extension", set(extension, 1), errBroken},
		{"many sections", set(extension+4, 1<<31), errBroken},
		{"a section outside", set(extension+8+12, 1<<31), errBroken},
		{"an unknown section", set(extension+8, 77), nil},
		{"a name without an end", good[:extension-1], errBroken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parseCache(tt.input)
			if !errors.Is(err, tt.want) {
				t.Errorf("parse = %v; want %v", err, tt.want)
			}
			if strings.HasPrefix(tt.name, "behind") && !reflect.DeepEqual(c.hwcaps, []string{"x86-64-v2"}) {
				t.Errorf("hwcaps %q", c.hwcaps)
			}
		})
	}
}

// Names of a hostile cache that all are parts of one do not grow when they are written.
func TestParseOverlap(t *testing.T) {
	c := &cache{entries: make([]entry, 5000)}
	b := c.encode()
	from := len(b)
	b = append(append(b, bytes.Repeat([]byte("x"), 4000)...), 0)
	for i := range c.entries {
		le.PutUint32(b[headerSize+i*entrySize+4:], uint32(from))
		le.PutUint32(b[headerSize+i*entrySize+8:], uint32(from))
	}
	if _, err := parseCache(b); !errors.Is(err, errBroken) {
		t.Errorf("parse = %v; want that it is broken", err)
	}
}

// A hostile cache is refused, or comes out whole, with what was added, and not much larger.
func FuzzCache(f *testing.F) {
	given := []entry{{flags: 0x303, name: "libcuda.so.1", path: "/opt/libcuda.so.1"}}
	f.Add((&cache{entries: []entry{{flags: 0x303, name: "liba.so.1", path: "/lib/liba.so.1"}, {flags: 0x303, name: "liba.so.1", path: "/x", hwcap: 1 << 62}}, hwcaps: []string{"x86-64-v2"}, generator: "g"}).encode())
	f.Add(append([]byte(oldMagic+"\x00\x00\x00\x00\x00"), (&cache{}).encode()...))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCache(data)
		if err != nil {
			return
		}
		c.addEntries(given)
		out := c.encode()
		read, err := parseCache(out)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if len(out) > 8*maxBytes {
			t.Errorf("%d bytes became %d", len(data), len(out))
		}
		if got := search(read.entries, given[0].name, given[0].flags, true); got != given[0].path {
			t.Errorf("libcuda.so.1 is found at %q", got)
		}
	})
}
