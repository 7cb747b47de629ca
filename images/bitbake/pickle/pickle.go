// Package pickle decodes Python's pickles into inert values. It runs nothing: a class is
// a name that must be on the reader's list, an object that name with its values. A
// pickle comes from outside. Its size and number of values are limited, and memory for a
// length is allocated only once the bytes are there.
package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// What a pickle decodes to besides nil, bool, int64, float64, string and []byte.
type (
	// List is a list or a set.
	List struct{ Items []any }
	// Tuple is a tuple.
	Tuple []any
	// Dict is a dict; the keys of what we read are texts, others are passed by.
	Dict map[string]any
	// Class is a class or a function that a pickle names.
	Class struct{ Module, Name string }
	// Object is what a class was called with, and its state.
	Object struct {
		Class Class
		Args  Tuple
		State Dict
	}
)

// The limits of one pickle. Reading costs time and memory in proportion to its
// bytes; these only keep that small.
const (
	MaxBytes  = 12 << 20
	maxValues = 1 << 20
)

var errShort = errors.New("it ends in the middle of a value")

// Refused is a class that the reader's list lacks.
type Refused struct{ Class Class }

func (r Refused) Error() string {
	return fmt.Sprintf("it names %s.%s, which is no part of an event; refused", r.Class.Module, r.Class.Name)
}

// Decode reads one pickle. Classes for which allowed is false end it with Refused.
func Decode(data []byte, allowed func(Class) bool) (any, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", len(data), MaxBytes)
	}
	m := &machine{rest: data, allowed: allowed, most: maxValues}
	return m.runPickle()
}

// The limits of a stream. The cache of 2,600 recipes has 42 MB and 2 million values.
const (
	MaxStreamBytes  = 256 << 20
	maxStreamValues = 1 << 24
)

// Stream reads pickles that one pickler wrote, one behind the other. A later one refers to
// values of the earlier ones.
type Stream struct{ m machine }

// NewStream returns the stream of pickles in data.
func NewStream(data []byte, allowed func(Class) bool) (*Stream, error) {
	if len(data) > MaxStreamBytes {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", len(data), MaxStreamBytes)
	}
	return &Stream{machine{rest: data, allowed: allowed, most: maxStreamValues}}, nil
}

// Next returns the next pickle, or io.EOF behind the last.
func (s *Stream) Next() (any, error) {
	if len(s.m.rest) == 0 {
		return nil, io.EOF
	}
	s.m.stack = s.m.stack[:0]
	return s.m.runPickle()
}

// runPickle runs the opcodes of one pickle.
func (m *machine) runPickle() (any, error) {
	for {
		done, err := m.runOpcode()
		if err != nil {
			return nil, err
		}
		if done {
			return m.pop()
		}
		if len(m.stack)+len(m.memo) > m.most {
			return nil, fmt.Errorf("it holds more than %d values", m.most)
		}
	}
}

// mark is on the stack at the start of a collection.
type mark struct{}

// machine is Python's pickle machine, with the opcodes that protocols 2 to 5 write.
// nlpodyssey/gopickle v0.2.0 reads the same events, but allocates the length that a
// pickle claims. 12 bytes (BINBYTES8 or FRAME of 2^40) then end the process with "fatal
// error: out of memory", which no recover catches. 900 kB in a LONG4 took it over a
// minute. A check of such lengths beforehand needs most of this package.
type machine struct {
	rest    []byte
	stack   []any
	memo    []any
	allowed func(Class) bool
	most    int // values
}

// cutBytes returns the next n bytes and advances.
func (m *machine) cutBytes(n uint64) ([]byte, error) {
	if n > uint64(len(m.rest)) {
		return nil, errShort
	}
	taken := m.rest[:n]
	m.rest = m.rest[n:]
	return taken, nil
}

// readUint reads a little-endian number of that many bytes.
func (m *machine) readUint(bytes uint64) (uint64, error) {
	raw, err := m.cutBytes(bytes)
	if err != nil {
		return 0, err
	}
	var whole [8]byte
	copy(whole[:], raw)
	return binary.LittleEndian.Uint64(whole[:]), nil
}

// readCounted reads a length of that many bytes, then as many bytes as it says.
func (m *machine) readCounted(bytes uint64) ([]byte, error) {
	n, err := m.readUint(bytes)
	if err != nil {
		return nil, err
	}
	return m.cutBytes(n)
}

func (m *machine) push(v any) { m.stack = append(m.stack, v) }

func (m *machine) pop() (any, error) {
	if len(m.stack) == 0 {
		return nil, errors.New("it takes from an empty stack")
	}
	v := m.stack[len(m.stack)-1]
	if v == any(mark{}) {
		return nil, errors.New("it takes a mark for a value")
	}
	m.stack = m.stack[:len(m.stack)-1]
	return v, nil
}

// popMark pops what was pushed since the last mark.
func (m *machine) popMark() ([]any, error) {
	for i := len(m.stack) - 1; i >= 0; i-- {
		if _, is := m.stack[i].(mark); is {
			items := append([]any(nil), m.stack[i+1:]...)
			m.stack = m.stack[:i]
			return items, nil
		}
	}
	return nil, errors.New("it has no mark to go back to")
}

// runOpcode runs one opcode. It reports whether it was the last.
func (m *machine) runOpcode() (done bool, err error) {
	op, err := m.readUint(1)
	if err != nil {
		return false, err
	}
	if op == '.' {
		return true, nil
	}
	run, known := opcodes[byte(op)]
	if !known {
		return false, fmt.Errorf("it has the opcode %#x, which bitbake does not write", op)
	}
	return false, run(m)
}

// pushObject pushes an object of a class with its arguments.
func (m *machine) pushObject(class any, args any) error {
	c, isClass := class.(Class)
	a, isTuple := args.(Tuple)
	if !isClass || !isTuple {
		return errors.New("it makes an object of no class")
	}
	if c == (Class{"builtins", "set"}) || c == (Class{"builtins", "frozenset"}) {
		m.push(&List{Items: a})
		return nil
	}
	m.push(&Object{Class: c, Args: a})
	return nil
}

// pushClass pushes a class if the reader allows it.
func (m *machine) pushClass(module, name any) error {
	mod, isText := module.(string)
	n, isTextToo := name.(string)
	if !isText || !isTextToo {
		return errors.New("it names a class by something else than a text")
	}
	c := Class{mod, n}
	if !m.allowed(c) {
		return Refused{c}
	}
	m.push(c)
	return nil
}

// setState sets the state of the object on top: a dict, or a pair of dicts.
func (m *machine) setState() error {
	state, err := m.pop()
	if err != nil {
		return err
	}
	if pair, is := state.(Tuple); is && len(pair) == 2 {
		if state = pair[0]; state == nil {
			state = pair[1]
		}
	}
	if len(m.stack) == 0 {
		return errors.New("it gives a state to nothing")
	}
	o, isObject := m.stack[len(m.stack)-1].(*Object)
	if d, isDict := state.(Dict); isObject && isDict {
		o.State = d
	}
	return nil
}

func (m *machine) setItems(pairs []any) error {
	if len(m.stack) == 0 || len(pairs)%2 != 0 {
		return errors.New("it sets half an entry of a dict")
	}
	into := m.stack[len(m.stack)-1]
	if o, is := into.(*Object); is { // of a class that is a dict, as defaultdict
		if o.State == nil {
			o.State = Dict{}
		}
		into = o.State
	}
	d, is := into.(Dict)
	if !is {
		return errors.New("it sets an entry of what is no dict")
	}
	for i := 0; i < len(pairs); i += 2 {
		if key, isText := pairs[i].(string); isText {
			d[key] = pairs[i+1]
		}
	}
	return nil
}

// extendList appends items to the list on top.
func (m *machine) extendList(items []any) error {
	if len(m.stack) == 0 {
		return errors.New("it adds to nothing")
	}
	switch l := m.stack[len(m.stack)-1].(type) {
	case *List:
		l.Items = append(l.Items, items...)
		return nil
	case *Object: // of a class that is a list, as deque
		l.Args = append(l.Args, items...)
		return nil
	}
	return errors.New("it adds to what is no list")
}

func (m *machine) memoize(at uint64) error {
	if len(m.stack) == 0 {
		return errors.New("it keeps nothing")
	}
	if at > uint64(len(m.memo)) {
		return errors.New("it leaves a gap in what it keeps")
	}
	if at == uint64(len(m.memo)) {
		m.memo = append(m.memo, nil)
	}
	m.memo[at] = m.stack[len(m.stack)-1]
	return nil
}

// pushMemo pushes a value from the memo.
func (m *machine) pushMemo(at uint64) error {
	if at >= uint64(len(m.memo)) {
		return errors.New("it recalls what it did not keep")
	}
	m.push(m.memo[at])
	return nil
}

// parseLong parses Python's integer of any size. It drops what does not fit 64 bits.
func parseLong(raw []byte) int64 {
	var n uint64
	if len(raw) > 0 && raw[len(raw)-1] >= 0x80 {
		n = math.MaxUint64
	}
	for i := min(len(raw), 8) - 1; i >= 0; i-- {
		n = n<<8 | uint64(raw[i])
	}
	return int64(n)
}
