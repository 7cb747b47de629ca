package layers

import (
	"slices"
	"strconv"
)

// Dump returns the project as one project file, byte for byte as "kas dump"
// does: its includes and lock files merged, in the order in which they were read.
func Dump(p Project) ([]byte, error) {
	if p.setup != nil {
		return p.dumpSetup()
	}
	v := &value{kind: dict, keys: slices.Clone(p.merged.keys), dict: map[string]*value{}}
	for k, e := range p.merged.dict {
		v.dict[k] = e
	}
	v.dict["header"] = &value{kind: dict, keys: []string{"version"}, dict: map[string]*value{
		"version": {kind: number, text: strconv.Itoa(p.version)},
	}}
	return v.yaml(), nil
}
