package pickle

import (
	"encoding/binary"
	"math"
)

// opcodes are what each opcode does, by the names of Python's pickletools.
var opcodes = map[byte]func(*machine) error{
	0x80: func(m *machine) error { _, err := m.next(1); return err }, // PROTO
	0x95: func(m *machine) error { _, err := m.next(8); return err }, // FRAME

	'N':  func(m *machine) error { m.push(nil); return nil },
	0x88: func(m *machine) error { m.push(true); return nil },
	0x89: func(m *machine) error { m.push(false); return nil },
	'K':  integer(1), // BININT1
	'M':  integer(2), // BININT2
	'J': func(m *machine) error { // BININT
		n, err := m.number(4)
		m.push(int64(int32(uint32(n))))
		return err
	},
	0x8a: func(m *machine) error { // LONG1
		raw, err := m.counted(1)
		m.push(long(raw))
		return err
	},
	'G': func(m *machine) error { // BINFLOAT, the only one that is big-endian
		raw, err := m.next(8)
		if err == nil {
			m.push(math.Float64frombits(binary.BigEndian.Uint64(raw)))
		}
		return err
	},

	0x8c: textOf(1), // SHORT_BINUNICODE
	'X':  textOf(4), // BINUNICODE
	0x8d: textOf(8), // BINUNICODE8
	'C':  bytesOf(1),
	'B':  bytesOf(4),
	0x8e: bytesOf(8),
	0x96: bytesOf(8), // BYTEARRAY8

	'(':  func(m *machine) error { m.push(mark{}); return nil },
	'0':  func(m *machine) error { _, err := m.pop(); return err },
	'1':  func(m *machine) error { _, err := m.popMark(); return err },
	'2':  duplicate,
	')':  func(m *machine) error { m.push(Tuple{}); return nil },
	0x85: tupleOf(1),
	0x86: tupleOf(2),
	0x87: tupleOf(3),
	't': func(m *machine) error { // TUPLE
		items, err := m.popMark()
		m.push(Tuple(items))
		return err
	},
	']':  func(m *machine) error { m.push(&List{}); return nil },
	0x8f: func(m *machine) error { m.push(&List{}); return nil }, // EMPTY_SET
	'}':  func(m *machine) error { m.push(Dict{}); return nil },
	0x91: func(m *machine) error { // FROZENSET
		items, err := m.popMark()
		m.push(&List{Items: items})
		return err
	},

	'a':  one((*machine).extend),  // APPEND
	'e':  many((*machine).extend), // APPENDS
	0x90: many((*machine).extend), // ADDITEMS
	'u':  many((*machine).setItems),
	's': func(m *machine) error { // SETITEM
		value, err := m.pop()
		if err != nil {
			return err
		}
		return one(func(m *machine, key []any) error { return m.setItems(append(key, value)) })(m)
	},

	0x93: func(m *machine) error { // STACK_GLOBAL
		name, err := m.pop()
		if err != nil {
			return err
		}
		module, err := m.pop()
		if err != nil {
			return err
		}
		return m.class(module, name)
	},
	'c':  global,
	0x81: makeObject, // NEWOBJ
	'R':  makeObject, // REDUCE
	0x92: func(m *machine) error { // NEWOBJ_EX, whose keywords nobody here reads
		if _, err := m.pop(); err != nil {
			return err
		}
		return makeObject(m)
	},
	'b': (*machine).build,

	0x94: func(m *machine) error { return m.memoize(uint64(len(m.memo))) },
	'q':  at(1, (*machine).memoize),
	'r':  at(4, (*machine).memoize),
	'h':  at(1, (*machine).recall),
	'j':  at(4, (*machine).recall),
}

func integer(bytes uint64) func(*machine) error {
	return func(m *machine) error {
		n, err := m.number(bytes)
		m.push(int64(n))
		return err
	}
}

func textOf(bytes uint64) func(*machine) error {
	return func(m *machine) error {
		raw, err := m.counted(bytes)
		m.push(string(raw))
		return err
	}
}

func bytesOf(bytes uint64) func(*machine) error {
	return func(m *machine) error {
		raw, err := m.counted(bytes)
		m.push(raw)
		return err
	}
}

func duplicate(m *machine) error {
	v, err := m.pop()
	m.push(v)
	m.push(v)
	return err
}

func tupleOf(n int) func(*machine) error {
	return func(m *machine) error {
		t := make(Tuple, n)
		for i := n - 1; i >= 0; i-- {
			var err error
			if t[i], err = m.pop(); err != nil {
				return err
			}
		}
		m.push(t)
		return nil
	}
}

func one(do func(*machine, []any) error) func(*machine) error {
	return func(m *machine) error {
		v, err := m.pop()
		if err != nil {
			return err
		}
		return do(m, []any{v})
	}
}

func many(do func(*machine, []any) error) func(*machine) error {
	return func(m *machine) error {
		items, err := m.popMark()
		if err != nil {
			return err
		}
		return do(m, items)
	}
}

func at(bytes uint64, do func(*machine, uint64) error) func(*machine) error {
	return func(m *machine) error {
		n, err := m.number(bytes)
		if err != nil {
			return err
		}
		return do(m, n)
	}
}

// makeObject makes an object of a class and its arguments.
func makeObject(m *machine) error {
	args, err := m.pop()
	if err != nil {
		return err
	}
	class, err := m.pop()
	if err != nil {
		return err
	}
	return m.object(class, args)
}

// global names a class in two lines of text; protocols before 4 write that.
func global(m *machine) error {
	var names [2]string
	for i := range names {
		n := uint64(0)
		for n < uint64(len(m.rest)) && m.rest[n] != '\n' {
			n++
		}
		raw, err := m.next(n)
		if err != nil {
			return err
		}
		if _, err := m.next(1); err != nil {
			return err
		}
		names[i] = string(raw)
	}
	return m.class(names[0], names[1])
}
