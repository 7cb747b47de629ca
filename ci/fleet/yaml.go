package fleet

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxNodes limits the visited nodes of a YAML file, because aliases can make many nodes of few
// lines.
const maxNodes = 2_000_000

// yamlReader parses a YAML inventory in the order of the file. If a host occurs twice, its last
// values apply.
type yamlReader struct {
	*Inventory
	visited int
	depth   int
}

// readYAML parses a YAML inventory of one document, and adds its groups and hosts.
func (inv *Inventory) readYAML(data []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return inv.errorAt(0, "%s", oneLine(err))
	}
	var second yaml.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return inv.errorAt(second.Line, "a second YAML document; an inventory is one")
	}
	if len(document.Content) == 0 {
		return inv.errorAt(0, "no group in it")
	}
	r := &yamlReader{Inventory: inv}
	root, err := r.resolveAlias(document.Content[0])
	if err != nil {
		return err
	}
	if root.Kind != yaml.MappingNode {
		return inv.errorAt(root.Line, "an inventory is a mapping of groups, such as all:")
	}
	return r.eachPair(root, "the inventory", func(key, value *yaml.Node) error {
		if key.Value == "plugin" && value.Kind == yaml.ScalarNode {
			return inv.errorAt(key.Line, "the settings of the inventory plugin %s; make a file of what it finds: ansible-inventory -i %s --list --yaml > hosts.yml", oneLine(value.Value), inv.File)
		}
		_, err := r.readGroup(key, value)
		return err
	})
}

// resolveAlias returns the node that an alias names, or n itself. It counts the visited nodes.
func (r *yamlReader) resolveAlias(n *yaml.Node) (*yaml.Node, error) {
	if r.visited++; r.visited > maxNodes {
		return nil, r.errorAt(n.Line, "aliases make more than %d values of this file", maxNodes)
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n, nil
}

// eachPair calls work for each key and value of a mapping, and for those that its merge keys (<<)
// add.
func (r *yamlReader) eachPair(n *yaml.Node, what string, work func(key, value *yaml.Node) error) error {
	n, err := r.resolveAlias(n)
	if err != nil || isNull(n) {
		return err
	}
	if n.Kind != yaml.MappingNode {
		return r.errorAt(n.Line, "%s must be a mapping", what)
	}
	if r.depth++; r.depth > 64 {
		return r.errorAt(n.Line, "%s: nested too deep", what)
	}
	defer func() { r.depth-- }()
	own, err := r.listPairs(n, map[string]bool{}, 0)
	if err != nil {
		return err
	}
	for i := 0; i < len(own); i += 2 {
		if err := work(own[i], own[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// listPairs returns the keys and values of a mapping, alternating. Of a key that occurs twice, it
// keeps the last, as Ansible does. It skips the keys in seen.
func (r *yamlReader) listPairs(n *yaml.Node, seen map[string]bool, depth int) (pairs []*yaml.Node, err error) {
	var merges []*yaml.Node
	last := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, err := r.resolveAlias(n.Content[i])
		if err != nil {
			return nil, err
		}
		value, err := r.resolveAlias(n.Content[i+1])
		if err != nil {
			return nil, err
		}
		switch at, twice := last[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			return nil, r.errorAt(key.Line, "a name must be one word")
		case key.ShortTag() == "!!merge":
			merges = append(merges, value)
		case twice:
			r.addWarning(key.Line, "%s stands here a second time; the first is ignored, as Ansible does", oneLine(key.Value))
			pairs[at], pairs[at+1] = key, value
		case !seen[key.Value]:
			last[key.Value] = len(pairs)
			pairs = append(pairs, key, value)
		}
	}
	for name := range last {
		seen[name] = true
	}
	for _, m := range merges {
		more, err := r.readMergeKey(m, seen, depth+1)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, more...)
	}
	return pairs, nil
}

// readMergeKey returns the keys and values of the mappings that a merge key (<<) names.
func (r *yamlReader) readMergeKey(n *yaml.Node, seen map[string]bool, depth int) ([]*yaml.Node, error) {
	parts := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		parts = n.Content
	}
	var pairs []*yaml.Node
	for _, part := range parts {
		part, err := r.resolveAlias(part)
		if err != nil {
			return nil, err
		}
		if part.Kind != yaml.MappingNode || depth > 16 {
			return nil, r.errorAt(part.Line, "<< takes a mapping, or a list of them, at most 16 deep")
		}
		more, err := r.listPairs(part, seen, depth)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, more...)
	}
	return pairs, nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func (r *yamlReader) readGroup(key, value *yaml.Node) (*group, error) {
	g, err := r.ensureGroup(key.Value, key.Line)
	if err != nil {
		return nil, err
	}
	readers := map[string]func(g *group, key, value *yaml.Node) error{"vars": r.readGroupVariable, "children": r.readChild, "hosts": r.readHosts}
	return g, r.eachPair(value, "group "+g.name, func(key, value *yaml.Node) error {
		read := readers[key.Value]
		if read == nil {
			r.addWarning(key.Line, "%s is ignored, as Ansible does; a group has hosts, children and vars", oneLine(key.Value))
			return nil
		}
		if value.Kind == yaml.ScalarNode && !isNull(value) && key.Value != "vars" { // Ansible takes one name, too
			value = &yaml.Node{Kind: yaml.MappingNode, Line: value.Line, Content: []*yaml.Node{value, {Kind: yaml.ScalarNode, Tag: "!!null"}}}
		}
		return r.eachPair(value, key.Value+" of "+g.name, func(key, value *yaml.Node) error { return read(g, key, value) })
	})
}

func (r *yamlReader) readGroupVariable(g *group, key, value *yaml.Node) error {
	if isKnownVariable(key.Value) {
		g.vars[key.Value] = yamlVariable(key, value)
	}
	return nil
}

func (r *yamlReader) readChild(g *group, key, value *yaml.Node) error {
	child, err := r.readGroup(key, value)
	if err != nil {
		return err
	}
	return r.addChild(g, child, key.Line)
}

func (r *yamlReader) readHosts(g *group, key, value *yaml.Node) error {
	names, port, err := expandHosts(key.Value)
	if err != nil {
		return r.errorAt(key.Line, "host %w", err)
	}
	vars := map[string]variable{}
	err = r.eachPair(value, "host "+key.Value, func(key, value *yaml.Node) error {
		if isKnownVariable(key.Value) {
			vars[key.Value] = yamlVariable(key, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.addHosts(g, names, port, vars, key.Line)
}

func yamlVariable(key, n *yaml.Node) variable {
	v := variable{value: n.Value, line: key.Line, null: isNull(n)}
	switch {
	case n.Tag == "!vault" || n.Tag == "!vault-encrypted":
		v.problem = "encrypted by ansible-vault, for which Slipway has no password"
	case n.Kind != yaml.ScalarNode:
		v.problem = "must be one value"
	case isYAML11Bool(n):
		v.problem = "is true or false to Ansible; put it in quotes"
	default:
		v.problem = templateProblem(n.Value)
	}
	return v
}

// isYAML11Bool reports whether a plain word is a boolean in YAML 1.1, which Ansible reads.
func isYAML11Bool(n *yaml.Node) bool {
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	return plain && slices.Contains([]string{"yes", "no", "on", "off", "true", "false"}, strings.ToLower(n.Value))
}
