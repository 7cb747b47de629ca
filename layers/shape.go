package layers

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// shape says what a part of a project file may be.
type shape struct {
	kinds   kind
	keys    map[string]*shape // of a dict whose keys are fixed
	each    *shape            // the values of a dict with free keys, and a list's items
	refused string            // kas reads it and slipway does not; what to say of it, at least a space
}

var (
	aText     = &shape{kinds: text}
	aNumber   = &shape{kinds: number}
	maybeText = &shape{kinds: text | null}
	texts     = &shape{kinds: dict, each: aText}
)

func refused(hint string) *shape { return &shape{refused: " " + hint} }

// project is the shape of a project file: kas's format, versions 1 to 23.
var project = &shape{kinds: dict, keys: map[string]*shape{
	"header": {kinds: dict, keys: map[string]*shape{
		"version":  aNumber,
		"includes": {kinds: list, each: &shape{kinds: text | dict, keys: map[string]*shape{"repo": refused("(a file of another repository)"), "file": aText}}},
	}},
	"build_system":         aText,
	"machine":              aText,
	"distro":               aText,
	"target":               {kinds: text | list, each: aText},
	"task":                 aText,
	"env":                  {kinds: dict, each: maybeText},
	"local_conf_header":    texts,
	"bblayers_conf_header": texts,
	"repos":                {kinds: dict, each: repository},
	"defaults": {kinds: dict, keys: map[string]*shape{"repos": {kinds: dict, keys: map[string]*shape{
		"branch":  aText,
		"tag":     aText,
		"refspec": aText,
		"patches": refused(""),
	}}}},
	"overrides": {kinds: dict, keys: map[string]*shape{"repos": {kinds: dict, each: &shape{kinds: dict, keys: map[string]*shape{
		"branch": maybeText,
		"commit": maybeText,
		"url":    aText,
	}}}}},
	"artifacts":          refused(""),
	"signers":            refused(""),
	"buildtools":         refused(""),
	"menu_configuration": refused(""),
	"proxy_config":       refused("(set http_proxy and https_proxy in the environment)"),
	"_source_dir":        refused("(a file that kas menu wrote)"),
	"_source_dir_host":   refused("(a file that kas menu wrote)"),
}}

var repository = &shape{kinds: dict | null, keys: map[string]*shape{
	"name":    aText,
	"url":     maybeText,
	"type":    aText,
	"commit":  aText,
	"branch":  maybeText,
	"tag":     maybeText,
	"path":    maybeText,
	"refspec": aText,
	"layers":  {kinds: dict, each: &shape{kinds: text | null | dict, keys: map[string]*shape{"prio": aNumber}}},

	"patches":         refused(""),
	"signed":          refused(""),
	"allowed_signers": refused(""),
}}

// below is the shape of what a dict holds under key.
func (s *shape) below(key *yaml.Node, at position, path string) (*shape, error) {
	if key.Kind != yaml.ScalarNode {
		return nil, at.errorf("a key in %s is not a text", name(path))
	}
	if key.ShortTag() == "!!merge" {
		return nil, at.errorf("the merge key << is not yet read by slipway; write the keys out, or use kas for this file")
	}
	if s.keys == nil {
		return s.each, nil
	}
	if below, known := s.keys[key.Value]; known {
		return below, nil
	}
	return nil, at.errorf("unknown key %q in %s (have %s); mend it, or use kas if a newer kas reads it",
		key.Value, name(path), strings.Join(s.known(), ", "))
}

func (s *shape) known() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.keys)), func(k string) bool { return s.keys[k].refused != "" })
}
