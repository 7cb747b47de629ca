package fleet

import (
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/layers/yaml"
)

// readYAML parses a YAML inventory, and adds its groups and hosts in the order of the file. If a
// host occurs twice, its last values apply. It refuses the settings of an inventory plugin.
func (inv *Inventory) readYAML(data []byte) error {
	root, err := yaml.ParseMapping(inv.File, data, "an inventory is a mapping of groups, such as all:")
	if err != nil {
		return err
	}
	return inv.eachPair(root, "the inventory", func(key, value *goyaml.Node) error {
		if key.Value == "plugin" && value.Kind == goyaml.ScalarNode {
			return inv.errorAt(key.Line, "the settings of the inventory plugin %s; make a file of what it finds: ansible-inventory -i %s --list --yaml > hosts.yml", oneLine(value.Value), inv.File)
		}
		_, err := inv.readYAMLGroup(key, value)
		return err
	})
}

// eachPair calls work for each key and value of a mapping, or never for null. It refuses other
// nodes, and merge keys (<<), which Ansible follows.
func (inv *Inventory) eachPair(n *goyaml.Node, what string, work func(key, value *goyaml.Node) error) error {
	if isNull(n) {
		return nil
	}
	if n.Kind != goyaml.MappingNode {
		return inv.errorAt(n.Line, "%s must be a mapping", what)
	}
	for key, value := range yaml.Pairs(n) {
		if key.ShortTag() == "!!merge" {
			return inv.errorAt(key.Line, "merge keys (<<) are not followed; write the values out: ansible-inventory -i %s --list --yaml > hosts.yml", inv.File)
		}
		if err := work(key, value); err != nil {
			return err
		}
	}
	return nil
}

func isNull(n *goyaml.Node) bool { return n.Kind == goyaml.ScalarNode && n.ShortTag() == "!!null" }

// readYAMLGroup creates the group key with its hosts, children and vars, and warns of other keys.
func (inv *Inventory) readYAMLGroup(key, value *goyaml.Node) (*group, error) {
	g, err := inv.ensureGroup(key.Value, key.Line)
	if err != nil {
		return nil, err
	}
	readers := map[string]func(g *group, key, value *goyaml.Node) error{"vars": inv.readYAMLVariable, "children": inv.readYAMLChild, "hosts": inv.readYAMLHosts}
	return g, inv.eachPair(value, "group "+g.name, func(key, value *goyaml.Node) error {
		read := readers[key.Value]
		if read == nil {
			inv.addWarning(key.Line, "%s is ignored, as Ansible does; a group has hosts, children and vars", oneLine(key.Value))
			return nil
		}
		if value.Kind == goyaml.ScalarNode && !isNull(value) && key.Value != "vars" { // Ansible takes one name, too
			value = &goyaml.Node{Kind: goyaml.MappingNode, Line: value.Line, Content: []*goyaml.Node{value, {Kind: goyaml.ScalarNode, Tag: "!!null"}}}
		}
		return inv.eachPair(value, key.Value+" of "+g.name, func(key, value *goyaml.Node) error { return read(g, key, value) })
	})
}

// readYAMLVariable sets a variable of a group, if Slipway knows it. The error is always nil.
func (inv *Inventory) readYAMLVariable(g *group, key, value *goyaml.Node) error {
	if isKnownVariable(key.Value) {
		g.vars[key.Value] = yamlVariable(key, value)
	}
	return nil
}

// readYAMLChild creates the group key, with its hosts, children and vars, as a child of g.
func (inv *Inventory) readYAMLChild(g *group, key, value *goyaml.Node) error {
	child, err := inv.readYAMLGroup(key, value)
	if err != nil {
		return err
	}
	return inv.addChild(g, child, key.Line)
}

// readYAMLHosts adds the hosts of a key, which may have ranges, with known variables to a group.
func (inv *Inventory) readYAMLHosts(g *group, key, value *goyaml.Node) error {
	names, port, err := expandHosts(key.Value)
	if err != nil {
		return inv.errorAt(key.Line, "host %w", err)
	}
	vars := map[string]variable{}
	err = inv.eachPair(value, "host "+key.Value, func(key, value *goyaml.Node) error {
		if isKnownVariable(key.Value) {
			vars[key.Value] = yamlVariable(key, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return inv.addHosts(g, names, port, vars, key.Line)
}

// yamlVariable returns a node as a variable. It gets a problem if it is encrypted, has a template,
// is no scalar, or is an unquoted word that Ansible reads as a boolean.
func yamlVariable(key, n *goyaml.Node) variable {
	v := variable{value: n.Value, line: key.Line, null: isNull(n)}
	switch {
	case n.Tag == "!vault" || n.Tag == "!vault-encrypted":
		v.problem = "encrypted by ansible-vault, for which Slipway has no password"
	case n.Kind != goyaml.ScalarNode:
		v.problem = "must be one value"
	case isYAML11Bool(n):
		v.problem = "is true or false to Ansible; put it in quotes"
	default:
		v.problem = templateProblem(n.Value)
	}
	return v
}

// isYAML11Bool reports whether a plain word is a boolean in YAML 1.1, which Ansible reads.
func isYAML11Bool(n *goyaml.Node) bool {
	plain := n.Style&(goyaml.SingleQuotedStyle|goyaml.DoubleQuotedStyle|goyaml.LiteralStyle|goyaml.FoldedStyle) == 0
	return plain && slices.Contains([]string{"yes", "no", "on", "off", "true", "false"}, strings.ToLower(n.Value))
}
