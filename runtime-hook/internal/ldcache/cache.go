package ldcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"
)

// Real caches have some hundred entries, in some ten KiB.
const (
	maxBytes   = 1 << 20
	maxEntries = 1 << 14
)

// The file has a header; entries of 24 bytes; strings, to which entries refer by their distance
// from the header; and, since glibc 2.33, an extension, whose offsets count from the file's start.
// ldconfig before glibc 2.32 wrote an older form in front, which nothing has read since glibc 2.2.
const (
	magic        = "glibc-ld.so.cache1.1"
	oldMagic     = "ld.so-1.7.0"
	headerSize   = 48
	entrySize    = 24
	oldHeader    = 16
	oldEntrySize = 12

	extensionMagic = 0xeaa42174
	sectionSize    = 16
	tagGenerator   = 0
	tagHWCaps      = 1

	endianUnset  = 0
	endianLittle = 2
	endianBig    = 3
)

// A broken cache is one that ld.so cannot read. An unknown one may be of another C library.
var (
	errBroken  = errors.New("it is broken")
	errUnknown = errors.New("its format is not known")
)

// cache is the content of an ld.so.cache.
type cache struct {
	entries   []entry
	hwcaps    []string // folder names of glibc-hwcaps; entries refer to them by index
	generator string   // the program that wrote it
	ours      bool     // this package has changed the cache
}

// generatorMark is the beginning of the generator text of a cache that this package has changed.
// ldconfig prints the text, and nothing else reads it.
const generatorMark = "slipway-hook; before it "

// entry is the path of a library. osVersion and hwcap limit the machines that it is for.
type entry struct {
	flags      uint32 // machine and C library
	name, path string
	osVersion  uint32
	hwcap      uint64
}

var le = binary.LittleEndian

// parseCache parses an ld.so.cache. No data is an empty cache. Errors are errUnknown or errBroken.
func parseCache(data []byte) (*cache, error) {
	all := int64(len(data))
	data, err := skipOld(data)
	if err != nil || len(data) == 0 {
		return &cache{}, err
	}
	if !bytes.HasPrefix(data, []byte(magic)) {
		return nil, errUnknown
	}
	if len(data) < headerSize {
		return nil, fmt.Errorf("%w: no whole header", errBroken)
	}
	switch data[28] & 3 {
	case endianBig:
		return nil, fmt.Errorf("%w: it is of a big-endian machine", errUnknown)
	case endianUnset, endianLittle:
	default:
		return nil, fmt.Errorf("%w: its writer says so", errBroken)
	}
	// The string shares data's memory, which nothing changes.
	f := cacheFile{data, unsafe.String(&data[0], len(data)), all - int64(len(data))}
	c := &cache{}
	if c.entries, err = f.readEntries(); err != nil {
		return nil, err
	}
	return c, f.readExtension(c)
}

// cacheFile is the content of a cache after the older form. All names are substrings of text.
type cacheFile struct {
	data    []byte
	text    string
	skipped int64 // bytes of the older form
}

// skipOld returns data after the older form, if data begins with that; an error if nothing follows.
func skipOld(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte(oldMagic)) {
		return data, nil
	}
	if len(data) < oldHeader {
		return nil, fmt.Errorf("%w: no whole header", errBroken)
	}
	end := oldHeader + oldEntrySize*uint64(le.Uint32(data[12:]))
	if end > uint64(len(data)) {
		return nil, fmt.Errorf("%w: it ends early", errBroken)
	}
	// Aligned as the machine that wrote it aligns 64-bit numbers.
	for _, to := range []uint64{8, 4} {
		at := (end + to - 1) / to * to
		if at < uint64(len(data)) && bytes.HasPrefix(data[at:], []byte(magic)) {
			return data[at:], nil
		}
	}
	return nil, fmt.Errorf("%w: only that of before glibc 2.2", errUnknown)
}

// readEntries reads all entries, within limits, as a hostile image may have written the file.
func (f cacheFile) readEntries() ([]entry, error) {
	count := int64(le.Uint32(f.data[20:]))
	if count > maxEntries {
		return nil, fmt.Errorf("%w: it has %d entries", errUnknown, count)
	}
	if count*entrySize > int64(len(f.data)-headerSize) {
		return nil, fmt.Errorf("%w: it ends early", errBroken)
	}
	out, total := make([]entry, count), 0
	for i := range out {
		b := f.data[headerSize+i*entrySize:]
		name, ok1 := f.stringAt(le.Uint32(b[4:]))
		path, ok2 := f.stringAt(le.Uint32(b[8:]))
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("%w: entry %d has no name or no path", errBroken, i)
		}
		out[i] = entry{le.Uint32(b), name, path, le.Uint32(b[12:]), le.Uint64(b[16:])}
		total += len(name) + len(path)
	}
	// Names may be parts of others, but then they come to little more than the file.
	if total > 2*maxBytes {
		return nil, fmt.Errorf("%w: its names overlap", errBroken)
	}
	return out, nil
}

// stringAt returns the text at offset, up to its NUL; false if that is not within maxPath bytes.
func (f cacheFile) stringAt(offset uint32) (string, bool) {
	if uint64(offset) >= uint64(len(f.text)) {
		return "", false
	}
	s, _, ok := strings.Cut(f.text[offset:min(len(f.text), int(offset)+maxPath)], "\x00")
	return s, ok
}

const maxPath = 4096 // PATH_MAX, with the NUL

// readExtension reads only generator (our mark in it sets c.ours) and hwcaps into c, if any.
func (f cacheFile) readExtension(c *cache) error {
	offset := le.Uint32(f.data[32:])
	if offset == 0 {
		return nil
	}
	body, ok := f.bytesAt(offset, 8)
	if !ok || offset%4 != 0 || le.Uint32(body) != extensionMagic {
		return fmt.Errorf("%w: its extension", errBroken)
	}
	count := le.Uint32(body[4:])
	sections, ok := f.bytesAt(offset+8, count*sectionSize)
	if !ok || count > maxSections {
		return fmt.Errorf("%w: its extension ends early", errBroken)
	}
	for ; len(sections) > 0; sections = sections[sectionSize:] {
		body, ok := f.bytesAt(le.Uint32(sections[8:]), le.Uint32(sections[12:]))
		if !ok {
			return fmt.Errorf("%w: a section of its extension ends early", errBroken)
		}
		switch le.Uint32(sections) {
		case tagGenerator:
			c.generator, c.ours = strings.CutPrefix(string(body[:min(len(body), maxPath)]), generatorMark)
		case tagHWCaps:
			var err error
			if c.hwcaps, err = f.readHWCaps(body); err != nil {
				return err
			}
		}
	}
	return nil
}

const maxSections = 64

// bytesAt returns size bytes at an offset that counts from the beginning of the whole file.
func (f cacheFile) bytesAt(offset, size uint32) ([]byte, bool) {
	from := int64(offset) - f.skipped
	to := from + int64(size)
	if from < 0 || to > int64(len(f.data)) {
		return nil, false
	}
	return f.data[from:to], true
}

// readHWCaps returns the names at the offsets. More than maxHWCaps are an error.
func (f cacheFile) readHWCaps(offsets []byte) ([]string, error) {
	if len(offsets) > 4*maxHWCaps {
		return nil, fmt.Errorf("%w: it has %d kinds of processors", errBroken, len(offsets)/4)
	}
	var out []string
	for ; len(offsets) >= 4; offsets = offsets[4:] {
		name, ok := f.stringAt(le.Uint32(offsets))
		if !ok {
			return nil, fmt.Errorf("%w: a kind of processor has no name", errBroken)
		}
		out = append(out, name)
	}
	return out, nil
}

const maxHWCaps = 64

// addEntries adds the given entries, which it sorts, in ld.so's order, so that each name leads to
// its path. Existing entries of the same name and machine come after them. It removes those with an
// hwcap, as ld.so would prefer them. Of two given entries with one name, the first counts, but both
// are added, so that removeEntries sees both paths.
func (c *cache) addEntries(given []entry) {
	order := orderOf(given)
	// Most lists are in reverse order, for which this sort is quick.
	slices.SortStableFunc(given, func(a, b entry) int { return order(b, a) })
	slices.Reverse(given)
	for i, same := 0, 0; i < len(given); i += same {
		same = 1
		for i+same < len(given) && order(given[i], given[i+same]) == 0 {
			same++
		}
		slices.Reverse(given[i : i+same])
	}
	given = slices.CompactFunc(given, func(a, b entry) bool { return order(a, b) == 0 && a.path == b.path })
	own := c.entries
	if !slices.IsSortedFunc(own, order) {
		own = slices.Clone(own)
		slices.SortStableFunc(own, order)
	}
	out, i := make([]entry, 0, len(own)+len(given)), 0
	for _, e := range own {
		for i < len(given) && order(given[i], e) <= 0 {
			out, i = append(out, given[i]), i+1
		}
		same := i
		for same > 0 && order(given[same-1], e) == 0 {
			same--
		}
		if same < i && (e.hwcap != 0 || slices.ContainsFunc(given[same:i], func(g entry) bool { return g.path == e.path })) {
			continue
		}
		out = append(out, e)
	}
	c.entries = append(out, given[i:]...)
}

// removeEntries removes the entries for whose path goes returns true.
func (c *cache) removeEntries(goes func(path string) bool) {
	c.entries = slices.DeleteFunc(slices.Clone(c.entries), func(e entry) bool { return goes(e.path) })
}

// encode returns the cache file in today's format, which all versions since glibc 2.2 read.
func (c *cache) encode() []byte {
	stringsAt := headerSize + entrySize*len(c.entries)
	out := make([]byte, stringsAt, stringsAt+96*len(c.entries)+256)
	copy(out, magic)
	le.PutUint32(out[20:], uint32(len(c.entries)))
	out[28] = endianLittle
	for i, e := range c.entries {
		path := uint32(len(out))
		out = append(append(out, e.path...), 0)
		name := path + uint32(len(e.path)-len(e.name))
		if !strings.HasSuffix(e.path, e.name) {
			name = uint32(len(out))
			out = append(append(out, e.name...), 0)
		}
		b := out[headerSize+i*entrySize:]
		le.PutUint32(b, e.flags)
		le.PutUint32(b[4:], name)
		le.PutUint32(b[8:], path)
		le.PutUint32(b[12:], e.osVersion)
		le.PutUint64(b[16:], e.hwcap)
	}
	hwcaps := make([]byte, 0, 4*len(c.hwcaps))
	for _, name := range c.hwcaps {
		hwcaps = le.AppendUint32(hwcaps, uint32(len(out)))
		out = append(append(out, name...), 0)
	}
	le.PutUint32(out[24:], uint32(len(out)-stringsAt))
	return c.encodeExtension(out, hwcaps)
}

// encodeExtension appends the extension to out and sets its offset in out's header. hwcaps has the
// offsets of their names. Without hwcaps and generator, it returns out as it is.
func (c *cache) encodeExtension(out, hwcaps []byte) []byte {
	var sections [][]byte
	tags := []uint32{}
	if len(hwcaps) > 0 {
		tags, sections = append(tags, tagHWCaps), append(sections, hwcaps)
	}
	generator := c.generator
	if c.ours {
		generator = generatorMark + generator
	}
	if generator != "" {
		tags, sections = append(tags, tagGenerator), append(sections, []byte(generator))
	}
	if len(sections) == 0 {
		return out
	}
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	le.PutUint32(out[32:], uint32(len(out)))
	out = le.AppendUint32(out, extensionMagic)
	out = le.AppendUint32(out, uint32(len(sections)))
	from := len(out) + sectionSize*len(sections)
	for i, body := range sections {
		for _, n := range []uint32{tags[i], 0, uint32(from), uint32(len(body))} {
			out = le.AppendUint32(out, n)
		}
		from += len(body)
	}
	for _, body := range sections {
		out = append(out, body...)
	}
	return out
}
