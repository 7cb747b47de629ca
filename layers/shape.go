package layers

import (
	"maps"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// shape describes what a part of a project file may be.
type shape struct {
	kinds    kind
	keys     map[string]*shape // of a dict whose keys are fixed
	needs    []string          // keys that must be there
	each     *shape            // the values of a dict with free keys, and a list's items
	numbered bool              // a key may be a number
	refused  string            // kas reads it and slipway does not; what to say and what to do
}

var (
	aText     = &shape{kinds: text}
	aNumber   = &shape{kinds: number}
	maybeText = &shape{kinds: text | null}
	texts     = &shape{kinds: dict, each: aText}
	aList     = &shape{kinds: list, each: aText}
)

// project is the shape of a project file: kas's format, versions 1 to 23. As in
// kas, the version says nothing about which keys a file may have.
var project = &shape{kinds: dict, keys: map[string]*shape{
	"header": {kinds: dict, keys: map[string]*shape{
		"version":  {kinds: number | text},
		"includes": {kinds: list, each: &shape{kinds: text | dict, needs: []string{"repo", "file"}, keys: map[string]*shape{"repo": aText, "file": aText}}},
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
		"patches": {kinds: dict, keys: map[string]*shape{"repo": aText}},
	}}}},
	"overrides": {kinds: dict, keys: map[string]*shape{"repos": {kinds: dict, each: &shape{kinds: dict, keys: map[string]*shape{
		"branch": maybeText,
		"commit": maybeText,
		"url":    aText,
	}}}}},
	"artifacts":          texts,
	"menu_configuration": {kinds: dict, each: &shape{kinds: text | number | boolean}},
	"proxy_config":       {kinds: dict, keys: map[string]*shape{"http_proxy": aText, "https_proxy": aText, "ftp_proxy": aText, "no_proxy": aText}},
	"_source_dir":        aText,
	"_source_dir_host":   aText,
	"signers": {kinds: dict, each: &shape{kinds: dict, keys: map[string]*shape{
		"type": aText, "repo": aText, "path": aText, "fingerprint": aText, "gpg_keyserver": aText,
	}}},
	"buildtools": {refused: "installs no build tools; take this key out and install the host's own (doctor names them), or use kas for this file"},
}}

var repository = &shape{kinds: dict | null, keys: map[string]*shape{
	"name":            aText,
	"url":             maybeText,
	"type":            aText,
	"commit":          aText,
	"branch":          maybeText,
	"tag":             maybeText,
	"refspec":         aText,
	"path":            maybeText,
	"signed":          {kinds: boolean},
	"allowed_signers": aList,
	"layers":          {kinds: dict, each: &shape{kinds: text | number | boolean | null | dict, keys: map[string]*shape{"prio": aNumber}}},
	"patches":         {kinds: dict, numbered: true, each: &shape{kinds: dict | null, needs: []string{"path"}, keys: map[string]*shape{"repo": aText, "path": aText}}},
}}

// keyShape returns the shape of what a dict holds under key.
func (s *shape) keyShape(key string, at position, path string) (*shape, error) {
	if s.keys == nil {
		return s.each, nil
	}
	if below, known := s.keys[key]; known {
		return below, nil
	}
	return nil, at.errorf("unknown key %q in %s%s (have %s); fix it, or use kas if a newer kas reads it",
		key, displayPath(path), plaintext.DidYouMean(key, s.knownKeys()), strings.Join(s.knownKeys(), ", "))
}

func (s *shape) knownKeys() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.keys)), func(k string) bool { return s.keys[k].refused != "" })
}

// requireKeys refuses a dict that lacks a required key.
func (s *shape) requireKeys(v *value, path string) error {
	for _, key := range s.needs {
		if v.dict[key] == nil {
			return v.at.errorf("%s lacks the key %q", path, key)
		}
	}
	return nil
}
