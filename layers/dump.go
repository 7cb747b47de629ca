package layers

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"slipway/layers/yaml"
)

// Dump returns the project as one file with its includes and lock files merged in order, byte for
// byte as "kas dump" does, with a comment for each local folder, or as JSON for bitbake-setup.
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
	return append(notes, p.mergedValue().YAML()...), nil
}

// DumpJSON returns the project in JSON as "kas dump --format json" does, or as bitbake-setup.
func DumpJSON(p Project) ([]byte, error) {
	if p.setup != nil {
		return p.dumpSetup() // bitbake-setup's files are JSON
	}
	return p.mergedValue().JSON()
}

// mergedValue returns the merged files as one value, without includes and with the local folders.
func (p Project) mergedValue() *yaml.Value {
	v := &yaml.Value{Kind: yaml.Dict, Keys: slices.Clone(p.merged.Keys), Dict: maps.Clone(p.merged.Dict)}
	v.Dict["header"] = &yaml.Value{Kind: yaml.Dict, Keys: []string{"version"}, Dict: map[string]*yaml.Value{
		"version": {Kind: yaml.Number, Text: strconv.Itoa(p.version)},
	}}
	for _, r := range p.Repos {
		if r.Local {
			v.ReplacePath(r.localEntry(p.merged.Get("repos", r.ID)), "repos", r.ID)
			v.ReplacePath(nil, "overrides", "repos", r.ID)
		}
	}
	return v
}

// localEntry returns the project file entry of a local folder: its path, and was's name and layers.
func (r Repo) localEntry(was *yaml.Value) *yaml.Value {
	entry := yaml.NewDict()
	for _, key := range []string{"name", "layers"} {
		if e := was.Get(key); e != nil {
			entry.Set(key, e)
		}
	}
	entry.Set("path", &yaml.Value{Kind: yaml.Text, Text: r.Path})
	return entry
}
