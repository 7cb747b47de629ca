package layers

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Dump returns the project as one project file: its includes and lock files
// merged, which kas reads too.
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
	return yaml.Dump(v.node())
}

// node is v for the YAML writer, in the order and style of people's own files.
func (v *value) node() *yaml.Node {
	switch v.kind {
	case text:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v.text}
		if strings.Contains(v.text, "\n") {
			n.Style = yaml.LiteralStyle
		}
		return n
	case number:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: v.text}
	case list:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, e := range v.list {
			n.Content = append(n.Content, e.node())
		}
		return n
	case dict:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, k := range v.keys {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k}, v.dict[k].node())
		}
		return n
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}
