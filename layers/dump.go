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
	return append(notes, p.mergedValue().toYAML()...), nil
}

// DumpJSON returns the project in JSON, as "kas dump --format json" does.
func DumpJSON(p Project) ([]byte, error) {
	if p.setup != nil {
		return p.dumpSetup() // bitbake-setup's files are JSON
	}
	return append(p.mergedValue().appendJSON(nil, "\n"), '\n'), nil
}

// mergedValue returns the merged files as one value, with the user's local folders.
func (p Project) mergedValue() *value {
	v := &value{kind: dict, keys: slices.Clone(p.merged.keys), dict: map[string]*value{}}
	for k, e := range p.merged.dict {
		v.dict[k] = e
	}
	v.dict["header"] = &value{kind: dict, keys: []string{"version"}, dict: map[string]*value{
		"version": {kind: number, text: strconv.Itoa(p.version)},
	}}
	for _, r := range p.Repos {
		if r.Local {
			v.replacePath(r.localEntry(p.merged.get("repos", r.ID)), "repos", r.ID)
			v.replacePath(nil, "overrides", "repos", r.ID)
		}
	}
	return v
}

// localEntry returns a local folder as a project file names it: without a url.
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

// replacePath sets what v holds under keys, or removes it if e is nil. It copies the
// parts that other values share.
func (v *value) replacePath(e *value, keys ...string) {
	below := v.get(keys[0])
	if len(keys) > 1 && below != nil {
		copied := &value{at: below.at, kind: below.kind, keys: slices.Clone(below.keys), dict: maps.Clone(below.dict)}
		copied.replacePath(e, keys[1:]...)
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
