package plan

import (
	"encoding/binary"
	"errors"
	"reflect"
	"unsafe"
)

// The encoding follows the types: a struct is its exported fields in order, a slice its length and
// elements, text its length and bytes, a number a varint. So a new field of a plan needs no code
// here. The file's head names the hook's program, so a hook with other types does not read it.

var errBroken = errors.New("the file is cut off or not one of ours")

// appendValue appends v's encoding, without unexported fields. It panics for types no plan has.
func appendValue(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.String:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		return append(b, v.String()...)
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		return binary.AppendVarint(b, v.Int())
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return binary.AppendUvarint(b, v.Uint())
	case reflect.Slice:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		for i := 0; i < v.Len(); i++ {
			b = appendValue(b, v.Index(i))
		}
		return b
	case reflect.Struct:
		for i := 0; i < v.NumField(); i++ {
			if v.Type().Field(i).IsExported() {
				b = appendValue(b, v.Field(i))
			}
		}
		return b
	}
	panic("no encoding for " + v.Type().String())
}

// decoder decodes what appendValue wrote. It allocates nothing for a length beyond the rest.
type decoder struct {
	rest string
	err  error
}

// readUint reads a number. It sets d.err if there is none.
func (d *decoder) readUint() uint64 {
	n, size := binary.Uvarint(bytesOf(d.rest[:min(len(d.rest), binary.MaxVarintLen64)]))
	if size <= 0 {
		d.err = errBroken
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

// readLength reads a text's or list's length. It sets d.err if fewer bytes are left than that.
func (d *decoder) readLength() int {
	n := d.readUint()
	if n > uint64(len(d.rest)) {
		d.err = errBroken
		return 0
	}
	return int(n)
}

// readValue decodes the next value into v, by v's type. After an error, d.err is set.
func (d *decoder) readValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		n := d.readLength()
		v.SetString(d.rest[:n])
		d.rest = d.rest[n:]
	case reflect.Bool:
		v.SetBool(d.readUint() != 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		n := d.readUint()
		v.SetInt(int64(n>>1) ^ -int64(n&1))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(d.readUint())
	case reflect.Slice:
		d.readSlice(v)
	case reflect.Struct:
		for i := 0; i < v.NumField() && d.err == nil; i++ {
			if v.Type().Field(i).IsExported() {
				d.readValue(v.Field(i))
			}
		}
	default:
		panic("no encoding for " + v.Type().String())
	}
}

// readSlice decodes a slice into v, which stays nil for an empty one.
func (d *decoder) readSlice(v reflect.Value) {
	n := d.readLength()
	if n == 0 || d.err != nil {
		return
	}
	out := reflect.MakeSlice(v.Type(), n, n)
	for i := 0; i < n && d.err == nil; i++ {
		d.readValue(out.Index(i))
	}
	v.Set(out)
}

// bytesOf returns s without a copy, to be read only.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
