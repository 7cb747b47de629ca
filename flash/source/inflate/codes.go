package inflate

import "math/bits"

const (
	maxSymbols   = 288 // of the fixed code; a block's own has up to 286
	maxDistances = 32  // the fixed code has two that mean nothing
	longestCode  = 15

	symbolBits = 11 // of the first table; longer codes have a second one
	distBits   = 10

	// More than the entries of the first table and of all second ones: there are
	// too few symbols for more. build looks nevertheless.
	symbolEntries = 1<<symbolBits + 512
	distEntries   = 1<<distBits + 512
)

// entry is what a table says of the next bits:
//
//	bits 0-5    how many are used, extra bits included
//	bits 6-9    of those, how many are the code (of a pair: the first one's)
//	bits 10-15  flags
//	bits 16-31  one or two literals, or the base of a length or distance,
//	            or where the second table begins
//
// An entry that leads to a second table has that table's bits in 6-9.
type entry uint32

const (
	singleShift = 6
	valueShift  = 16

	isLiteral entry = 1 << 10
	isPair    entry = 1 << 11 // two literals
	isEnd     entry = 1 << 12
	isBad     entry = 1 << 13 // no code has these bits
	isSecond  entry = 1 << 14
	special         = isEnd | isBad | isSecond
)

// value is a length or a distance: the base and the extra bits behind the code.
func (e entry) value(held uint64) int {
	extra := held & (1<<(e&63) - 1) >> (e >> singleShift & 15)
	return int(e>>valueShift) + int(extra)
}

type (
	symbolTable [symbolEntries]entry
	distTable   [distEntries]entry
)

func (t *symbolTable) find(held uint64) entry {
	e := t[held&(1<<symbolBits-1)]
	if e&isSecond != 0 {
		e = t[uint64(e>>valueShift)+held>>symbolBits&(1<<(e>>singleShift&15)-1)]
	}
	return e
}

func (t *distTable) find(held uint64) entry {
	e := t[held&(1<<distBits-1)]
	if e&isSecond != 0 {
		e = t[uint64(e>>valueShift)+held>>distBits&(1<<(e>>singleShift&15)-1)]
	}
	return e
}

var (
	symbolMeaning [maxSymbols]entry   // without the code's bits
	distMeaning   [maxDistances]entry // the same
)

func init() {
	for i := range 256 {
		symbolMeaning[i] = isLiteral | entry(i)<<valueShift
	}
	symbolMeaning[256] = isEnd
	length := 3
	for i := range 28 {
		extra := max(0, i/4-1)
		symbolMeaning[257+i] = entry(length)<<valueShift | entry(extra)
		length += 1 << extra
	}
	symbolMeaning[285] = 258 << valueShift
	symbolMeaning[286], symbolMeaning[287] = isBad, isBad
	dist := 1
	for i := range 30 {
		extra := max(0, i/2-1)
		distMeaning[i] = entry(dist)<<valueShift | entry(extra)
		dist += 1 << extra
	}
	distMeaning[30], distMeaning[31] = isBad, isBad
}

// build makes the table of a code from its lengths, and says whether there can be
// such a code: as zlib and Go have it, each sequence of bits means something, but
// for a code of one symbol, or of none.
func build(table, meaning []entry, lengths []uint8, firstBits uint) bool {
	var counts [longestCode + 1]int
	for _, n := range lengths {
		counts[n]++
	}
	counts[0] = 0
	var longest uint
	var codes [longestCode + 2]uint
	code := uint(0)
	for n := uint(1); n <= longestCode; n++ {
		codes[n] = code
		code = (code + uint(counts[n])) << 1
		if counts[n] > 0 {
			longest = n
		}
	}
	used := code >> 1 // of 1<<longestCode
	if used != 1<<longestCode && longest > 1 || used > 1<<longestCode {
		return false
	}
	if used != 1<<longestCode {
		for i := range table[:1<<firstBits] {
			table[i] = isBad
		}
	}
	seconds := secondTables(table, &counts, &codes, firstBits, longest)
	if seconds > len(table) {
		return false
	}
	place(table, meaning, lengths, &codes, firstBits)
	return true
}

// secondTables enters where the second tables lie, and returns where they end.
// Codes of more than firstBits bits lie behind all others; those that begin with
// the same bits share a table, which is as large as the longest of them needs.
func secondTables(table []entry, counts *[longestCode + 1]int, codes *[longestCode + 2]uint, firstBits, longest uint) int {
	end := 1 << firstBits
	if longest <= firstBits {
		return end
	}
	for first := codes[firstBits] + uint(counts[firstBits]); first < 1<<firstBits; first++ {
		n := firstBits + 1
		for n < longest && codes[n]+uint(counts[n]) < (first+1)<<(n-firstBits) {
			n++
		}
		if end+1<<(n-firstBits) > len(table) {
			return len(table) + 1
		}
		table[reverse(first, firstBits)] = entry(end)<<valueShift | entry(n-firstBits)<<singleShift | isSecond
		end += 1 << (n - firstBits)
	}
	return end
}

func reverse(code, n uint) uint { return uint(bits.Reverse16(uint16(code))) >> (16 - n) }

// place enters each symbol wherever the bits begin with its code.
func place(table, meaning []entry, lengths []uint8, codes *[longestCode + 2]uint, firstBits uint) {
	next := *codes
	for symbol, n8 := range lengths {
		n := uint(n8)
		if n == 0 {
			continue
		}
		code := reverse(next[n], n)
		next[n]++
		e := meaning[symbol] + entry(n) | entry(n)<<singleShift // extra bits are counted already
		if n <= firstBits {
			for i := code; i < 1<<firstBits; i += 1 << n {
				table[i] = e
			}
			continue
		}
		second := table[code&(1<<firstBits-1)]
		part := table[second>>valueShift:][:1<<(second>>singleShift&15)]
		for i := code >> firstBits; i < uint(len(part)); i += 1 << (n - firstBits) {
			part[i] = e
		}
	}
}

// pair lets one look into the table find two literals where both codes fit. It
// goes down, as what is looked up lies below, and must still be single.
func (t *symbolTable) pair() {
	for i := 1<<symbolBits - 1; i >= 0; i-- {
		e := t[i]
		if e&isLiteral == 0 {
			continue
		}
		n := e & 63
		second := t[i>>n]
		if m := second & 63; second&(isLiteral|isPair) == isLiteral && n+m <= symbolBits {
			t[i] = e + m | isPair | second>>valueShift<<(valueShift+8)
		}
	}
}

func (d *decoder) fixedCodes() error {
	if d.fixed {
		return nil
	}
	lengths := d.lengths[:maxSymbols+maxDistances]
	for i := range lengths {
		switch {
		case i < 144, i >= 280 && i < maxSymbols:
			lengths[i] = 8
		case i < 256:
			lengths[i] = 9
		case i < 280:
			lengths[i] = 7
		default:
			lengths[i] = 5
		}
	}
	d.fixed = true
	return d.tables(maxSymbols)
}

// tables makes the tables of both codes, of whose lengths the first n are those of
// symbols.
func (d *decoder) tables(n int) error {
	if !build(d.symbols[:], symbolMeaning[:], d.lengths[:n], symbolBits) ||
		!build(d.reaches[:], distMeaning[:], d.lengths[n:], distBits) {
		return corrupt("the block before %d has codes that cannot be", d.at())
	}
	d.symbols.pair()
	return nil
}

// The lengths of the code in which code lengths are written come in this order.
var order = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

var ownMeaning = func() (m [19]entry) {
	for i := range m {
		m[i] = entry(i) << valueShift
	}
	return m
}()

// ownCodes reads the codes of a block that brings them.
func (d *decoder) ownCodes() error {
	d.fixed = false
	symbols, distances, n := int(d.takeBits(5))+257, int(d.takeBits(5))+1, int(d.takeBits(4))+4
	if symbols > 286 || distances > 30 {
		return corrupt("the block before %d has %d symbols and %d distances", d.at(), symbols, distances)
	}
	var lengths [19]uint8
	for i := range n {
		d.load()
		lengths[order[i]] = uint8(d.takeBits(3))
	}
	const tableBits = 7
	var table [1 << tableBits]entry
	if err := d.overrun(); err != nil {
		return err
	}
	if !build(table[:], ownMeaning[:], lengths[:], tableBits) {
		return corrupt("the block before %d has codes that cannot be", d.at())
	}
	if err := d.readLengths(table[:], d.lengths[:symbols+distances]); err != nil {
		return err
	}
	clear(d.lengths[symbols+distances:])
	return d.tables(symbols)
}

func (d *decoder) readLengths(table []entry, lengths []uint8) error {
	for i := 0; i < len(lengths); {
		d.load()
		e := table[d.held&uint64(len(table)-1)]
		if e&isBad != 0 {
			return d.unknown()
		}
		d.takeBits(uint(e & 63))
		v, n := uint8(e>>valueShift), 1
		switch v {
		case 16:
			if i == 0 {
				return corrupt("the block before %d repeats a length before the first", d.at())
			}
			v, n = lengths[i-1], 3+int(d.takeBits(2))
		case 17:
			v, n = 0, 3+int(d.takeBits(3))
		case 18:
			v, n = 0, 11+int(d.takeBits(7))
		}
		if err := d.overrun(); err != nil {
			return err
		}
		if n > len(lengths)-i {
			return corrupt("the block before %d has more lengths than symbols", d.at())
		}
		for range n {
			lengths[i] = v
			i++
		}
	}
	return nil
}
