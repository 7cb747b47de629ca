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
	return p.flat().yaml(), nil
}

// DumpJSON is Dump for programs: as "kas dump --format json" does.
func DumpJSON(p Project) ([]byte, error) {
	if p.setup != nil {
		return p.dumpSetup() // bitbake-setup's files are JSON
	}
	return append(p.flat().json(nil, "\n"), '\n'), nil
}

func (p Project) flat() *value {
	v := &value{kind: dict, keys: slices.Clone(p.merged.keys), dict: map[string]*value{}}
	for k, e := range p.merged.dict {
		v.dict[k] = e
	}
	v.dict["header"] = &value{kind: dict, keys: []string{"version"}, dict: map[string]*value{
		"version": {kind: number, text: strconv.Itoa(p.version)},
	}}
	return v
}
