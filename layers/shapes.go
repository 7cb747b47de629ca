package layers

import "slipway/layers/yaml"

// project is the shape of kas's project files, versions 1 to 23. All may have all keys, as in kas.
var project = &yaml.Shape{Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{
	"header": {Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{
		"version":  {Kinds: yaml.Number | yaml.Text},
		"includes": {Kinds: yaml.List, Each: &yaml.Shape{Kinds: yaml.Text | yaml.Dict, Needs: []string{"repo", "file"}, Keys: map[string]*yaml.Shape{"repo": yaml.AText, "file": yaml.AText}}},
	}},
	"build_system":         yaml.AText,
	"machine":              yaml.AText,
	"distro":               yaml.AText,
	"target":               {Kinds: yaml.Text | yaml.List, Each: yaml.AText},
	"task":                 yaml.AText,
	"env":                  {Kinds: yaml.Dict, Each: yaml.MaybeText},
	"local_conf_header":    yaml.Texts,
	"bblayers_conf_header": yaml.Texts,
	"repos":                {Kinds: yaml.Dict, Each: repository},
	"defaults": {Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{"repos": {Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{
		"branch":  yaml.AText,
		"tag":     yaml.AText,
		"refspec": yaml.AText,
		"patches": {Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{"repo": yaml.AText}},
	}}}},
	"overrides": {Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{"repos": {Kinds: yaml.Dict, Each: &yaml.Shape{Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{
		"branch": yaml.MaybeText,
		"commit": yaml.MaybeText,
		"url":    yaml.AText,
	}}}}},
	"artifacts":          yaml.Texts,
	"menu_configuration": {Kinds: yaml.Dict, Each: &yaml.Shape{Kinds: yaml.Text | yaml.Number | yaml.Boolean}},
	"proxy_config":       {Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{"http_proxy": yaml.AText, "https_proxy": yaml.AText, "ftp_proxy": yaml.AText, "no_proxy": yaml.AText}},
	"_source_dir":        yaml.AText,
	"_source_dir_host":   yaml.AText,
	"signers": {Kinds: yaml.Dict, Each: &yaml.Shape{Kinds: yaml.Dict, Keys: map[string]*yaml.Shape{
		"type": yaml.AText, "repo": yaml.AText, "path": yaml.AText, "fingerprint": yaml.AText, "gpg_keyserver": yaml.AText,
	}}},
	"buildtools": {Refused: "installs no build tools; take this key out and install the host's own (doctor names them), or use kas for this file"},
}}

var repository = &yaml.Shape{Kinds: yaml.Dict | yaml.Null, Keys: map[string]*yaml.Shape{
	"name":            yaml.AText,
	"url":             yaml.MaybeText,
	"type":            yaml.AText,
	"commit":          yaml.AText,
	"branch":          yaml.MaybeText,
	"tag":             yaml.MaybeText,
	"refspec":         yaml.AText,
	"path":            yaml.MaybeText,
	"signed":          {Kinds: yaml.Boolean},
	"allowed_signers": yaml.AList,
	"layers":          {Kinds: yaml.Dict, Each: &yaml.Shape{Kinds: yaml.Text | yaml.Number | yaml.Boolean | yaml.Null | yaml.Dict, Keys: map[string]*yaml.Shape{"prio": yaml.ANumber}}},
	"patches":         {Kinds: yaml.Dict, Numbered: true, Each: &yaml.Shape{Kinds: yaml.Dict | yaml.Null, Needs: []string{"path"}, Keys: map[string]*yaml.Shape{"repo": yaml.AText, "path": yaml.AText}}},
}}
