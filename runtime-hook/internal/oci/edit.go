package oci

import (
	"bytes"
	"cmp"
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

// Edit returns data, a config.json, with the additions. All other values stay, also unknown ones.
func Edit(data []byte, add Additions) ([]byte, error) {
	if !json.Valid(data) {
		return nil, errors.New("not JSON")
	}
	var hooks []specs.Hook
	if add.Hook != nil {
		hooks = []specs.Hook{*add.Hook}
	}
	data, err := appendItems(data, hooks, "hooks", "createRuntime")
	if err == nil {
		data, err = appendItems(data, add.Nodes, "linux", "devices")
	}
	if err == nil {
		data, err = appendItems(data, add.Rules, "linux", "resources", "devices")
	}
	if err == nil {
		data, err = appendItems(data, add.GIDs, "process", "user", "additionalGids")
	}
	return data, err
}

// appendItems appends items to the list at path in a JSON value. It makes missing and null parts.
func appendItems[T any](value []byte, items []T, path ...string) ([]byte, error) {
	if len(items) == 0 {
		return value, nil
	}
	if len(value) == 0 {
		value = []byte("null")
	}
	if len(path) == 0 {
		var list []json.RawMessage
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, fmt.Errorf("%.20q is there; want []", value)
		}
		for _, item := range items {
			text, err := json.Marshal(item)
			if err != nil {
				return nil, err
			}
			list = append(list, text)
		}
		return json.Marshal(list)
	}
	object, err := parseObject(value, path[0])
	if err != nil {
		return nil, err
	}
	if object[path[0]], err = appendItems(object[path[0]], items, path[1:]...); err != nil {
		return nil, fmt.Errorf("%s: %w", path[0], err)
	}
	return json.Marshal(object)
}

// parseObject returns the fields of a JSON object; none for null. Two fields that differ only in
// case, or not at all, are an error, as runtimes read one or the other. So is key in another case.
func parseObject(data []byte, key string) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	first, err := d.Token()
	if err != nil {
		return nil, err
	}
	if first != nil && first != json.Delim('{') {
		return nil, fmt.Errorf("%.20q is there; want {}", data)
	}
	fields, names := map[string]json.RawMessage{}, map[string]string{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		name := token.(string)
		other, twice := names[strings.ToLower(name)]
		if twice || name != key && strings.EqualFold(name, key) {
			return nil, fmt.Errorf("%q and %q are one field to some runtimes", name, cmp.Or(other, key))
		}
		fields[name], names[strings.ToLower(name)] = value, name
	}
	return fields, nil
}
