package layers

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Dump returns the project as one project file, byte for byte as "kas dump"
// does: its includes and lock files merged, in the order in which they were read.
func Dump(p Project) ([]byte, error) {
	if p.setup != nil {
		return p.dumpSetup()
	}
	var notes []byte
	for _, r := range p.Repos {
		if r.Local {
			notes = fmt.Appendf(notes, "# repository %s: local folder, not the project's commit\n", r.ID)
		}
	}
	return append(notes, p.flat().yaml()...), nil
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
	for _, r := range p.Repos {
		if r.Local {
			v.replace(r.localEntry(p.merged.get("repos", r.ID)), "repos", r.ID)
			v.replace(nil, "overrides", "repos", r.ID)
		}
	}
	return v
}

// localEntry is a local folder as a project file names it: without a url.
func (r Repo) localEntry(was *value) *value {
	entry := newDict()
	for _, key := range []string{"name", "layers"} {
		if e := was.get(key); e != nil {
			entry.set(key, e)
		}
	}
	entry.set("path", &value{kind: text, text: r.Path})
	return entry
}

// replace sets what v holds under keys, or takes it out where e is nil. What others hold
// of v stays as it is.
func (v *value) replace(e *value, keys ...string) {
	below := v.get(keys[0])
	if len(keys) > 1 && below != nil {
		copied := &value{at: below.at, kind: below.kind, keys: slices.Clone(below.keys), dict: maps.Clone(below.dict)}
		copied.replace(e, keys[1:]...)
		e = copied
	}
	switch {
	case e != nil:
		v.set(keys[0], e)
	case below != nil:
		delete(v.dict, keys[0])
		v.keys = slices.DeleteFunc(v.keys, func(k string) bool { return k == keys[0] })
	}
}
