package pickle

import (
	"encoding/binary"
	"math"
)

// opcodes maps each opcode to its function. The names are those of Python's
// pickletools.
var opcodes = map[byte]func(*machine) error{
	0x80: func(m *machine) error { _, err := m.cutBytes(1); return err }, // PROTO
	0x95: func(m *machine) error { _, err := m.cutBytes(8); return err }, // FRAME

	'N':  func(m *machine) error { m.push(nil); return nil },
	0x88: func(m *machine) error { m.push(true); return nil },
	0x89: func(m *machine) error { m.push(false); return nil },
	'K':  pushInt(1), // BININT1
	'M':  pushInt(2), // BININT2
	'J': func(m *machine) error { // BININT
		n, err := m.readUint(4)
		m.push(int64(int32(uint32(n))))
		return err
	},
	0x8a: func(m *machine) error { // LONG1
		raw, err := m.readCounted(1)
		m.push(parseLong(raw))
		return err
	},
	'G': func(m *machine) error { // BINFLOAT, the only one that is big-endian
		raw, err := m.cutBytes(8)
		if err == nil {
			m.push(math.Float64frombits(binary.BigEndian.Uint64(raw)))
		}
		return err
	},

	0x8c: pushText(1), // SHORT_BINUNICODE
	'X':  pushText(4), // BINUNICODE
	0x8d: pushText(8), // BINUNICODE8
	'C':  pushBytes(1),
	'B':  pushBytes(4),
	0x8e: pushBytes(8),
	0x96: pushBytes(8), // BYTEARRAY8

	'(':  func(m *machine) error { m.push(mark{}); return nil },
	'0':  func(m *machine) error { _, err := m.pop(); return err },
	'1':  func(m *machine) error { _, err := m.popMark(); return err },
	'2':  duplicateTop,
	')':  func(m *machine) error { m.push(Tuple{}); return nil },
	0x85: pushTuple(1),
	0x86: pushTuple(2),
	0x87: pushTuple(3),
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

	'a':  withPopped((*machine).extendList), // APPEND
	'e':  withMarked((*machine).extendList), // APPENDS
	0x90: withMarked((*machine).extendList), // ADDITEMS
	'u':  withMarked((*machine).setItems),
	's': func(m *machine) error { // SETITEM
		value, err := m.pop()
		if err != nil {
			return err
		}
		return withPopped(func(m *machine, key []any) error { return m.setItems(append(key, value)) })(m)
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
		return m.pushClass(module, name)
	},
	'c':  pushGlobal,
	0x81: makeObject, // NEWOBJ
	'R':  makeObject, // REDUCE
	0x92: func(m *machine) error { // NEWOBJ_EX, whose keywords nobody here reads
		if _, err := m.pop(); err != nil {
			return err
		}
		return makeObject(m)
	},
	'b': (*machine).setState,

	0x94: func(m *machine) error { return m.memoize(uint64(len(m.memo))) },
	'q':  withIndex(1, (*machine).memoize),
	'r':  withIndex(4, (*machine).memoize),
	'h':  withIndex(1, (*machine).pushMemo),
	'j':  withIndex(4, (*machine).pushMemo),
}

// pushInt returns the opcode that pushes an integer of that many bytes.
func pushInt(bytes uint64) func(*machine) error {
	return func(m *machine) error {
		n, err := m.readUint(bytes)
		m.push(int64(n))
		return err
	}
}

// pushText returns the opcode that pushes a text, with a length of that many bytes.
func pushText(bytes uint64) func(*machine) error {
	return func(m *machine) error {
		raw, err := m.readCounted(bytes)
		m.push(string(raw))
		return err
	}
}

// pushBytes returns the opcode that pushes bytes, with a length of that many bytes.
func pushBytes(bytes uint64) func(*machine) error {
	return func(m *machine) error {
		raw, err := m.readCounted(bytes)
		m.push(raw)
		return err
	}
}

func duplicateTop(m *machine) error {
	v, err := m.pop()
	m.push(v)
	m.push(v)
	return err
}

// pushTuple returns the opcode that pops n values, then pushes them as a tuple.
func pushTuple(n int) func(*machine) error {
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

// withPopped returns the opcode that runs do on the value on top.
func withPopped(do func(*machine, []any) error) func(*machine) error {
	return func(m *machine) error {
		v, err := m.pop()
		if err != nil {
			return err
		}
		return do(m, []any{v})
	}
}

// withMarked returns the opcode that runs do on the values since the last mark.
func withMarked(do func(*machine, []any) error) func(*machine) error {
	return func(m *machine) error {
		items, err := m.popMark()
		if err != nil {
			return err
		}
		return do(m, items)
	}
}

// withIndex returns the opcode that runs do with an index of that many bytes.
func withIndex(bytes uint64, do func(*machine, uint64) error) func(*machine) error {
	return func(m *machine) error {
		n, err := m.readUint(bytes)
		if err != nil {
			return err
		}
		return do(m, n)
	}
}

// makeObject pops a class with its arguments, then pushes an object of them.
func makeObject(m *machine) error {
	args, err := m.pop()
	if err != nil {
		return err
	}
	class, err := m.pop()
	if err != nil {
		return err
	}
	return m.pushObject(class, args)
}

// pushGlobal pushes a class that two lines of text name; protocols before 4 write that.
func pushGlobal(m *machine) error {
	var names [2]string
	for i := range names {
		n := uint64(0)
		for n < uint64(len(m.rest)) && m.rest[n] != '\n' {
			n++
		}
		raw, err := m.cutBytes(n)
		if err != nil {
			return err
		}
		if _, err := m.cutBytes(1); err != nil {
			return err
		}
		names[i] = string(raw)
	}
	return m.pushClass(names[0], names[1])
}
