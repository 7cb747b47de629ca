package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Additions are what the runtime command adds to a container's spec.
type Additions struct {
	Nodes []specs.LinuxDevice       // device nodes for the runtime to make
	Rules []specs.LinuxDeviceCgroup // which devices the container may use
	GIDs  []uint32                  // additional groups of the container's first process
	Hook  *specs.Hook               // to call at createRuntime
}

// Edit returns data, a config.json, with the additions. All other bytes stay as they are, because a
// newer runtime may know more fields.
func Edit(data []byte, add Additions) ([]byte, error) {
	if !json.Valid(data) {
		return nil, errors.New("not JSON")
	}
	steps := []change{}
	if add.Hook != nil {
		steps = append(steps, inField("hooks", inField("createRuntime", appendItems(listItems(*add.Hook)))))
	}
	if len(add.Nodes) > 0 {
		steps = append(steps, inField("linux", inField("devices", appendItems(listItems(add.Nodes...)))))
	}
	if len(add.Rules) > 0 {
		steps = append(steps, inField("linux", inField("resources", inField("devices", appendItems(listItems(add.Rules...))))))
	}
	if len(add.GIDs) > 0 {
		steps = append(steps, inField("process", inField("user", inField("additionalGids", appendItems(listItems(add.GIDs...))))))
	}
	for _, step := range steps {
		var err error
		if data, err = step(data); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// change returns a changed JSON value. An empty old value means that it is missing.
type change func(old []byte) ([]byte, error)

// inField applies the change to to an object's field. It creates the object and the field if they
// are missing or null.
func inField(key string, to change) change {
	return func(old []byte) ([]byte, error) {
		object, err := orEmpty(old, "{}")
		if err != nil {
			return nil, err
		}
		at, err := findField(object, key)
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
		return replaceSpan(object, at, value), nil
	}
}

// appendItems appends JSON items, separated by commas, to a list, or to a new list.
func appendItems(items []byte, err error) change {
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
		return replaceSpan(array, span{start: end, end: end}, items), nil
	}
}

// listItems returns the items as JSON, separated by commas and without brackets.
func listItems[T any](items ...T) ([]byte, error) {
	data, err := json.Marshal(items)
	if err != nil {
		return nil, err
	}
	return data[1 : len(data)-1], nil
}

// orEmpty trims old, and returns empty ("{}" or "[]") if old is missing or null. A value of another
// type is an error.
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

// span is the byte range of a field's value in its object. For a missing field, the range is empty
// and before is the comma to write first.
type span struct {
	start, end int
	before     string
}

func replaceSpan(in []byte, at span, value []byte) []byte {
	out := make([]byte, 0, len(in)+len(value))
	out = append(out, in[:at.start]...)
	out = append(out, value...)
	return append(out, in[at.end:]...)
}

// findField returns the span of the field key in object. A second field that differs only in case,
// or not at all, is an error, because runtimes differ in which one they read.
func findField(object []byte, key string) (span, error) {
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
