package inflate

import (
	"math/bits"
	"strings"
)

const (
	maxSymbols   = 288 // of the fixed code; a block's own code has up to 286
	maxDistances = 32  // the fixed code has two unused ones
	longestCode  = 15

	symbolBits = 11 // of the first table; longer codes have a second one
	distBits   = 10

	// More than the entries of the first table and of all second ones: there are too
	// few symbols for more. buildTable checks it anyway.
	symbolEntries = 1<<symbolBits + 512
	distEntries   = 1<<distBits + 512
)

// tableEntry is a table's entry for the next bits:
//
//	bits 0-5    how many are used, extra bits included
//	bits 6-9    of those, how many are the code (of a pair: the first one's)
//	bits 10-15  flags
//	bits 16-31  one or two literals, or the base of a length or distance,
//	            or the start of the second table
//
// An entry that leads to a second table has that table's bits in 6-9.
type tableEntry uint32

const (
	singleShift = 6
	valueShift  = 16

	isLiteral tableEntry = 1 << 10
	isPair    tableEntry = 1 << 11 // two literals
	isEnd     tableEntry = 1 << 12
	isBad     tableEntry = 1 << 13 // no code has these bits
	isSecond  tableEntry = 1 << 14
	special              = isEnd | isBad | isSecond
)

// matchValue returns a match's length or distance: the base plus the extra bits after the code.
func (e tableEntry) matchValue(held uint64) int {
	extra := held & (1<<(e&63) - 1) >> (e >> singleShift & 15)
	return int(e>>valueShift) + int(extra)
}

type (
	symbolTable [symbolEntries]tableEntry
	distTable   [distEntries]tableEntry
)

// lookUp returns the entry for the next bits, from a second table if there is one.
func (t *symbolTable) lookUp(held uint64) tableEntry {
	e := t[held&(1<<symbolBits-1)]
	if e&isSecond != 0 {
		e = t[uint64(e>>valueShift)+held>>symbolBits&(1<<(e>>singleShift&15)-1)]
	}
	return e
}

// lookUp returns the entry for the next bits, from a second table if there is one.
func (t *distTable) lookUp(held uint64) tableEntry {
	e := t[held&(1<<distBits-1)]
	if e&isSecond != 0 {
		e = t[uint64(e>>valueShift)+held>>distBits&(1<<(e>>singleShift&15)-1)]
	}
	return e
}

var (
	symbolMeaning [maxSymbols]tableEntry   // without the code's bits
	distMeaning   [maxDistances]tableEntry // the same
)

// init sets the bases and extra bits that RFC 1951 gives to the symbols of lengths and distances.
func init() {
	for i := range 256 {
		symbolMeaning[i] = isLiteral | tableEntry(i)<<valueShift
	}
	symbolMeaning[256] = isEnd
	length := 3
	for i := range 28 {
		extra := max(0, i/4-1)
		symbolMeaning[257+i] = tableEntry(length)<<valueShift | tableEntry(extra)
		length += 1 << extra
	}
	symbolMeaning[285] = 258 << valueShift
	symbolMeaning[286], symbolMeaning[287] = isBad, isBad
	dist := 1
	for i := range 30 {
		extra := max(0, i/2-1)
		distMeaning[i] = tableEntry(dist)<<valueShift | tableEntry(extra)
		dist += 1 << extra
	}
	distMeaning[30], distMeaning[31] = isBad, isBad
}

// buildTable builds a table from the symbols' code lengths and meaning; false for an invalid code.
// As in zlib and Go, each sequence of bits must be a code, except for only one symbol or none.
func buildTable(table, meaning []tableEntry, lengths []uint8, firstBits uint) bool {
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
	seconds := addSecondTables(table, &counts, &codes, firstBits, longest)
	if seconds > len(table) {
		return false
	}
	placeSymbols(table, meaning, lengths, &codes, firstBits)
	return true
}

// addSecondTables allots the second tables, enters them in the first, and returns where they end:
// after table if it is too short. Codes of more than firstBits bits come last. Those that begin
// with the same firstBits bits share a second table, as large as the longest of them needs.
func addSecondTables(table []tableEntry, counts *[longestCode + 1]int, codes *[longestCode + 2]uint, firstBits, longest uint) int {
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
		table[reverseBits(first, firstBits)] = tableEntry(end)<<valueShift | tableEntry(n-firstBits)<<singleShift | isSecond
		end += 1 << (n - firstBits)
	}
	return end
}

func reverseBits(code, n uint) uint { return uint(bits.Reverse16(uint16(code))) >> (16 - n) }

// placeSymbols enters each symbol at all indexes whose lowest bits are its code.
func placeSymbols(table, meaning []tableEntry, lengths []uint8, codes *[longestCode + 2]uint, firstBits uint) {
	next := *codes
	for symbol, n8 := range lengths {
		n := uint(n8)
		if n == 0 {
			continue
		}
		code := reverseBits(next[n], n)
		next[n]++
		e := meaning[symbol] + tableEntry(n) | tableEntry(n)<<singleShift // extra bits are counted already
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

// pairLiterals joins two literals in one entry if both codes fit. It goes downwards, because the
// second literal's entry is at a lower index and must not be a pair yet.
func (t *symbolTable) pairLiterals() {
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

// fixedLengths are the lengths of the fixed codes: of the symbols, then of the distances.
var fixedLengths = strings.Repeat("\x08", 144) + strings.Repeat("\x09", 112) + strings.Repeat("\x07", 24) +
	strings.Repeat("\x08", 8) + strings.Repeat("\x05", maxDistances)

// setFixedCodes builds the tables of the fixed codes, unless the last block had them.
func (d *decoder) setFixedCodes() error {
	if d.fixed {
		return nil
	}
	copy(d.lengths[:], fixedLengths)
	d.fixed = true
	return d.buildTables(maxSymbols)
}

// buildTables builds the tables: of symbols from the first n lengths, of distances from the rest.
func (d *decoder) buildTables(n int) error {
	if !buildTable(d.symbols[:], symbolMeaning[:], d.lengths[:n], symbolBits) ||
		!buildTable(d.reaches[:], distMeaning[:], d.lengths[n:], distBits) {
		return corruptError("the block before %d has codes that cannot be", d.offset())
	}
	d.symbols.pairLiterals()
	return nil
}

// The lengths of the code in which code lengths are written come in this order.
var codeLengthOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

var ownMeaning = func() (m [19]tableEntry) {
	for i := range m {
		m[i] = tableEntry(i) << valueShift
	}
	return m
}()

// readCodes reads the code lengths at the start of a dynamic block, and builds its tables.
func (d *decoder) readCodes() error {
	d.fixed = false
	symbols, distances, n := int(d.takeBits(5))+257, int(d.takeBits(5))+1, int(d.takeBits(4))+4
	if symbols > 286 || distances > 30 {
		return corruptError("the block before %d has %d symbols and %d distances", d.offset(), symbols, distances)
	}
	var lengths [19]uint8
	for i := range n {
		d.loadBits()
		lengths[codeLengthOrder[i]] = uint8(d.takeBits(3))
	}
	const tableBits = 7
	var table [1 << tableBits]tableEntry
	if err := d.checkOverrun(); err != nil {
		return err
	}
	if !buildTable(table[:], ownMeaning[:], lengths[:], tableBits) {
		return corruptError("the block before %d has codes that cannot be", d.offset())
	}
	if err := d.readLengths(table[:], d.lengths[:symbols+distances]); err != nil {
		return err
	}
	clear(d.lengths[symbols+distances:])
	return d.buildTables(symbols)
}

// readLengths reads code lengths, which are coded with table and may be repeated.
func (d *decoder) readLengths(table []tableEntry, lengths []uint8) error {
	for i := 0; i < len(lengths); {
		d.loadBits()
		e := table[d.held&uint64(len(table)-1)]
		if e&isBad != 0 {
			return d.badCodeError()
		}
		d.takeBits(uint(e & 63))
		v, n := uint8(e>>valueShift), 1
		switch v {
		case 16:
			if i == 0 {
				return corruptError("the block before %d repeats a length before the first", d.offset())
			}
			v, n = lengths[i-1], 3+int(d.takeBits(2))
		case 17:
			v, n = 0, 3+int(d.takeBits(3))
		case 18:
			v, n = 0, 11+int(d.takeBits(7))
		}
		if err := d.checkOverrun(); err != nil {
			return err
		}
		if n > len(lengths)-i {
			return corruptError("the block before %d has more lengths than symbols", d.offset())
		}
		for range n {
			lengths[i] = v
			i++
		}
	}
	return nil
}
