package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Additions are what a front end adds to a container's spec.
type Additions struct {
	Nodes []specs.LinuxDevice       // for the runtime to make
	Rules []specs.LinuxDeviceCgroup // which devices the container may use
	GIDs  []uint32                  // more groups of its first process
	Hook  *specs.Hook               // to call at createRuntime
}

// Edit returns data, a config.json, with the additions. All else in it stays as it
// is, byte by byte: fields that a newer runtime knows are none of our business.
func Edit(data []byte, add Additions) ([]byte, error) {
	if !json.Valid(data) {
		return nil, errors.New("not JSON")
	}
	steps := []change{}
	if add.Hook != nil {
		steps = append(steps, in("hooks", in("createRuntime", also(list(*add.Hook)))))
	}
	if len(add.Nodes) > 0 {
		steps = append(steps, in("linux", in("devices", also(list(add.Nodes...)))))
	}
	if len(add.Rules) > 0 {
		steps = append(steps, in("linux", in("resources", in("devices", also(list(add.Rules...))))))
	}
	if len(add.GIDs) > 0 {
		steps = append(steps, in("process", in("user", in("additionalGids", also(list(add.GIDs...))))))
	}
	for _, step := range steps {
		var err error
		if data, err = step(data); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// change turns one JSON value into another. What is not there comes as nothing.
type change func(old []byte) ([]byte, error)

// in changes the value of an object's field, and makes both where they are
// missing or null.
func in(key string, to change) change {
	return func(old []byte) ([]byte, error) {
		object, err := orEmpty(old, "{}")
		if err != nil {
			return nil, err
		}
		at, err := find(object, key)
		if err != nil {
			return nil, err
		}
		value, err := to(object[at.start:at.end])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if at.start == at.end {
			value = append([]byte(at.before+`"`+key+`":`), value...)
		}
		return splice(object, at, value), nil
	}
}

// also appends items, the inside of a list, to a list.
func also(items []byte, err error) change {
	return func(old []byte) ([]byte, error) {
		if err != nil {
			return nil, err
		}
		array, err := orEmpty(old, "[]")
		if err != nil {
			return nil, err
		}
		inside := array[:len(array)-1]
		if len(bytes.TrimSpace(inside[1:])) > 0 {
			items = append([]byte(","), items...)
		}
		end := len(inside)
		return splice(array, span{start: end, end: end}, items), nil
	}
}

// list is the inside of the list of items.
func list[T any](items ...T) ([]byte, error) {
	data, err := json.Marshal(items)
	if err != nil {
		return nil, err
	}
	return data[1 : len(data)-1], nil
}

// orEmpty is old without what surrounds it, or empty where there is nothing. It
// refuses what is of another type than empty.
func orEmpty(old []byte, empty string) ([]byte, error) {
	old = bytes.TrimSpace(old)
	if len(old) == 0 || string(old) == "null" {
		return []byte(empty), nil
	}
	if old[0] != empty[0] {
		return nil, fmt.Errorf("%.20q is there; want %s", old, empty)
	}
	return old, nil
}

// span is where a field's value lies in its object. One that is to be made has no
// length, and something before it.
type span struct {
	start, end int
	before     string
}

func splice(in []byte, at span, value []byte) []byte {
	out := make([]byte, 0, len(in)+len(value))
	out = append(out, in[:at.start]...)
	out = append(out, value...)
	return append(out, in[at.end:]...)
}

// find looks for the field key of object. Runtimes differ in which of two of one
// name counts, and in whether its case does; what they could read differently is
// refused.
func find(object []byte, key string) (span, error) {
	at := span{before: ""}
	found := false
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return span{}, err
	}
	for d.More() {
		at.before = ","
		name, err := d.Token()
		if err != nil {
			return span{}, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return span{}, err
		}
		if !strings.EqualFold(name.(string), key) {
			continue
		}
		if found || name != key {
			return span{}, fmt.Errorf("%q and %q are one field to some runtimes", name, key)
		}
		found = true
		at.end = int(d.InputOffset())
		at.start = at.end - len(value)
	}
	if !found {
		at.start = bytes.LastIndexByte(object, '}')
		at.end = at.start
	}
	return at, nil
}
