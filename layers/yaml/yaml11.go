package yaml

import (
	"slices"
	"strconv"
	"strings"

	"slipway/layers/plaintext"

	"go.yaml.in/yaml/v4"
)

// kas reads YAML 1.1, where more plain words than today are numbers, dates, true
// or false. That matters in three places: the few values that are numbers, what
// kas would refuse, and where a dump needs quotes.

var (
	intWord   = plaintext.Regexp(`^[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*(:[0-5]?[0-9])*)$`)
	floatWord = plaintext.Regexp(`^([-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
	dateWord  = plaintext.Regexp(`^[0-9]{4}-([0-9]{2}-[0-9]{2}|[0-9]{1,2}-[0-9]{1,2}([Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?([ \t]*(Z|[-+][0-9]{1,2}(:[0-9]{2})?))?)$`)
	boolWord  = plaintext.Regexp(`^(yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$`)
)

// plainKind returns the kind of an unquoted word in YAML 1.1, odd for a float, a date, << and =.
func plainKind(word string) kind {
	switch {
	case word == "" || slices.Contains([]string{"~", "null", "Null", "NULL"}, word):
		return Null
	case boolWord().MatchString(word):
		return Boolean
	case intWord().MatchString(word):
		return Number
	case floatWord().MatchString(word), dateWord().MatchString(word), word == "<<", word == "=":
		return odd
	}
	return Text
}

// tagKinds are the kinds that tags set.
var tagKinds = map[string]kind{"!": Text, "!!str": Text, "!!int": Number, "!!bool": Boolean, "!!null": Null}

// kindOfNode returns the kind of a node by its type, its tag, its quotes and its text.
func kindOfNode(n *yaml.Node) kind {
	own := n.Style&yaml.TaggedStyle != 0
	switch {
	case n.Kind == yaml.MappingNode && (!own || n.ShortTag() == "!!map"):
		return Dict
	case n.Kind == yaml.SequenceNode && (!own || n.ShortTag() == "!!seq"):
		return List
	case n.Kind == yaml.ScalarNode && own && tagKinds[n.ShortTag()] != 0:
		return tagKinds[n.ShortTag()]
	case n.Kind == yaml.ScalarNode && !own && isPlain(n):
		return plainKind(n.Value)
	case n.Kind == yaml.ScalarNode && !own:
		return Text
	}
	return odd
}

func isPlain(n *yaml.Node) bool {
	return n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

// parseInt parses YAML 1.1's 0b101, 017, 0x1f and 1_000. It refuses 12:30, which is 750 there.
func parseInt(word string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(word, "_", ""), 0, 64)
}

// pair is a key of a mapping and its value.
type pair struct {
	key, value *yaml.Node
	merged     bool // comes from elsewhere, by a merge key
}

// readPairs returns the keys and values of n. Those from merge keys (<<) come first, so that n's
// own keys override them. Of several merged mappings, the first overrides the others.
func (r *yamlReader) readPairs(n *yaml.Node, path string, depth int) ([]pair, error) {
	var own, merged []pair
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind == yaml.ScalarNode && isPlain(key) && key.Value == "<<" {
			more, err := r.readMerge(value, path, depth)
			if err != nil {
				return nil, err
			}
			merged = append(merged, more...)
			continue
		}
		if err := r.checkKey(key, path); err != nil {
			return nil, err
		}
		own = append(own, pair{key: key, value: value})
	}
	return append(merged, own...), r.countValues(r.positionOf(n), len(own)+len(merged), depth)
}

// readMerge returns the keys and values of the mapping, or the list of mappings, of a merge key.
func (r *yamlReader) readMerge(n *yaml.Node, path string, depth int) ([]pair, error) {
	at := r.positionOf(n)
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if err := r.countValues(at, 1, depth); err != nil {
		return nil, err
	}
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = slices.Clone(n.Content)
		slices.Reverse(sources)
	}
	var all []pair
	for _, source := range sources {
		if source.Kind == yaml.AliasNode {
			source = source.Alias
		}
		if source.Kind != yaml.MappingNode {
			return nil, at.Errorf("the merge key << in %s needs keys with values, or a list of such", displayPath(path))
		}
		pairs, err := r.readPairs(source, path, depth+1)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			all = append(all, pair{p.key, p.value, true})
		}
	}
	return all, nil
}

// readKey returns a key's text. It refuses keys that are no text to kas, except numbers if the
// shape allows them: kas sorts 10 before 9 as texts, and after it as numbers. It returns 0010 as 8.
func (r *yamlReader) readKey(n *yaml.Node, s *Shape, path string) (key string, isNumber bool, err error) {
	k := kindOfNode(n)
	if k == Text || n.Value == "=" {
		return n.Value, false, nil
	}
	id, err := parseInt(n.Value)
	if k != Number || !s.Numbered || err != nil {
		return "", false, r.positionOf(n).Errorf("the key %s in %s is %s to kas; write it in quotes", n.Value, displayPath(path), k)
	}
	return strconv.FormatInt(id, 10), true, nil
}

// checkKey returns an error for a key that is not one line of text.
func (r *yamlReader) checkKey(n *yaml.Node, path string) error {
	if n.Kind != yaml.ScalarNode || strings.ContainsFunc(n.Value, IsControl) {
		return r.positionOf(n).Errorf("a key in %s is not one line of text", displayPath(path))
	}
	return nil
}

func IsControl(c rune) bool {
	return c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 || c == 0x2028 || c == 0x2029
}
