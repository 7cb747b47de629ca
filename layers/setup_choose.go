package layers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// What one configuration may hold. Real ones stay far below.
const (
	maxName  = 200 // in bytes; names are joined from those of the configurations around
	maxItems = 500 // of sources, layers and fragments each
)

// setupKeys are the keys of a configuration, except its name and the configurations in
// it.
var setupKeys = []string{
	"description", "notes", "oe-template", "bb-layers", "bb-layers-file-relative", "oe-fragments",
	"oe-fragments-one-of", "bb-env-passthrough-additions", "install-buildtools", "setup-dir-name",
}

// chooseConfiguration finds the named configuration, then makes its choices.
func (p *Project) chooseConfiguration(words []string) error {
	s := p.setup
	var chains [][]*value
	if err := listChains(s.file.get("bitbake-setup", "configurations"), nil, &chains); err != nil {
		return err
	}
	words, err := s.pickConfiguration(chains, words)
	if err != nil {
		return err
	}
	parts := map[string]*value{}
	for _, key := range setupKeys {
		if parts[key], err = mergeChain(s.chain, key); err != nil {
			return err
		}
	}
	if err := s.useParts(parts, words); err != nil {
		return err
	}
	if s.template != "" && s.layers != nil {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: bb-layers and oe-template: the template has layers of its own, which bitbake-setup leaves out here; drop one of the two", parts["oe-template"].at))
	}
	p.Machine = s.builtinFragment("machine", defaultMachine)
	p.Distro = s.builtinFragment("distro", defaultDistro)
	return p.checkEnvironment(parts["bb-env-passthrough-additions"])
}

// useParts takes over the parts of the chosen configuration.
func (s *setup) useParts(parts map[string]*value, words []string) error {
	leaf := s.chain[len(s.chain)-1]
	if parts["description"] == nil {
		return leaf.at.errorf("configuration %q has no description", chainName(s.chain))
	}
	s.description = parts["description"].text
	s.template = parts["oe-template"].textOr("")
	if layers := parts["bb-layers"]; layers != nil {
		if s.layers = layers.list; len(s.layers) > maxItems {
			return layers.at.errorf("more than %d layers", maxItems)
		}
	}
	if s.template == "" && len(s.layers) == 0 {
		return leaf.at.errorf("configuration %q has neither bb-layers nor oe-template, so bitbake-setup leaves conf/ to people; add one", chainName(s.chain))
	}
	if beside := parts["bb-layers-file-relative"]; beside != nil {
		if len(s.layers) == 0 {
			return beside.at.errorf("bb-layers-file-relative goes with bb-layers, not with a template; put the layer into the template's bblayers.conf.sample")
		}
		s.beside = beside.list
	}
	if notes := parts["notes"]; notes != nil {
		s.notes = notes.text
		if notes.kind == list {
			s.notes = strings.Join(notes.listTexts(), "\n")
		}
	}
	return s.useFragments(parts["oe-fragments"], parts["oe-fragments-one-of"], words)
}

// listChains lists the configurations that hold no others, each after those around it.
func listChains(configurations *value, around []*value, all *[][]*value) error {
	if len(configurations.list) == 0 {
		return configurations.at.errorf("configurations is empty")
	}
	for _, c := range configurations.list {
		if own := c.get("name").textOr(""); len(own) > maxName || strings.ContainsFunc(own, isControl) {
			return c.at.errorf("a configuration's name is longer than %d bytes or holds a control character", maxName)
		}
		chain := append(slices.Clone(around), c)
		if inner := c.get("configurations"); inner != nil {
			if err := listChains(inner, chain, all); err != nil {
				return err
			}
			continue
		}
		if chainName(chain) == "" {
			return c.at.errorf("a configuration needs a name")
		}
		*all = append(*all, chain)
	}
	return nil
}

func chainName(chain []*value) string {
	var name strings.Builder
	for _, c := range chain {
		name.WriteString(c.get("name").textOr(""))
	}
	return name.String()
}

// pickConfiguration finds the configuration that the first word names. It returns the
// other words. A single configuration needs no word.
func (s *setup) pickConfiguration(chains [][]*value, words []string) ([]string, error) {
	var names []string
	for _, chain := range chains {
		names = append(names, chainName(chain))
	}
	if len(words) > 0 {
		for i, name := range slices.Backward(names) { // of two with one name, bitbake-setup takes the last
			if name == words[0] {
				s.chain = chains[i]
				return words[1:], nil
			}
		}
	}
	if len(chains) == 1 {
		s.chain = chains[0]
		return words, nil
	}
	at := s.file.get("bitbake-setup", "configurations").at
	if len(words) == 0 {
		return nil, at.errorf("which configuration? A board's file must leave one; elsewhere write it behind the file's name: #%s (or %s)\nnext: layers dump %s", names[0], strings.Join(names[1:], ", "), plaintext.Quote(at.file+"#"+names[0]))
	}
	return nil, at.errorf("no configuration is named %q (have %s)", words[0], strings.Join(names, ", "))
}

// mergeChain returns what a chain of configurations has under a key. It joins texts and
// lists as bitbake-setup does, with Python's +.
func mergeChain(chain []*value, key string) (*value, error) {
	var sum *value
	for _, c := range chain {
		v := c.get(key)
		switch {
		case v == nil:
		case sum == nil:
			sum = v
		case v.kind != sum.kind || v.kind == dict:
			return nil, v.at.errorf("%s cannot be added to that of line %d, in a configuration around this one; keep one of them", key, sum.at.line)
		case v.kind == text:
			sum = &value{at: v.at, kind: text, text: sum.text + v.text}
		default:
			sum = &value{at: v.at, kind: list, list: slices.Concat(sum.list, v.list)}
		}
	}
	return sum, nil
}

// useFragments lists the fragments in the order in which they are enabled, with
// one of each choice. words are the choices that people made.
func (s *setup) useFragments(fixed, oneOf *value, words []string) error {
	all, err := fragmentNames(fixed)
	if err != nil {
		return err
	}
	var chosen []*value
	if oneOf != nil {
		for _, key := range oneOf.keys {
			option, err := s.chooseOne("oe-fragments-one-of."+key, oneOf.dict[key], words)
			if err != nil {
				return err
			}
			chosen = append(chosen, option)
		}
	}
	for _, w := range words {
		if !slices.ContainsFunc(chosen, func(v *value) bool { return v.text == w }) {
			return s.file.get("bitbake-setup").at.errorf("configuration %q has no choice %q", chainName(s.chain), w)
		}
	}
	slices.SortFunc(chosen, func(a, b *value) int { return cmp.Compare(a.text, b.text) })
	for _, f := range slices.Concat(all, chosen) {
		s.enableFragment(f.text)
	}
	return nil
}

// fragmentNames returns the names in a list of fragments, of which some may have
// descriptions.
func fragmentNames(v *value) ([]*value, error) {
	if v == nil {
		return nil, nil
	}
	if len(v.list) > maxItems {
		return nil, v.at.errorf("more than %d fragments", maxItems)
	}
	var names []*value
	for _, e := range v.list {
		if e.kind == dict {
			e = e.get("name")
		}
		if !fragmentName().MatchString(e.text) {
			return nil, e.at.errorf("%q cannot be a fragment; one is named layer/path, machine/name or distro/name", e.text)
		}
		names = append(names, e)
	}
	return names, nil
}

func (s *setup) chooseOne(path string, possible *value, words []string) (*value, error) {
	options, err := fragmentNames(possible.get("options"))
	if err != nil {
		return nil, err
	}
	var names []string
	var chosen []*value
	for _, o := range options {
		names = append(names, o.text)
		if slices.Contains(words, o.text) {
			chosen = append(chosen, o)
		}
	}
	if len(chosen) != 1 {
		return nil, possible.at.errorf("%s: choose one, for a board in oe-fragments, elsewhere behind the file's name (#configuration,fragment): %s%s", path, strings.Join(names, ", "), s.adviseChoice(possible.at.file, words, chosen, names))
	}
	return chosen[0], nil
}

// adviseChoice returns the command with the first of the names added to the choices.
func (s *setup) adviseChoice(path string, words []string, chosen []*value, names []string) string {
	if len(chosen) > 0 || len(names) == 0 {
		return ""
	}
	choices := slices.Concat([]string{chainName(s.chain)}, words, names[:1])
	return "\nnext: layers dump " + plaintext.Quote(path+"#"+strings.Join(choices, ","))
}

// enableFragment adds a fragment as bitbake-config-build does: a later machine or
// distro replaces an earlier one.
func (s *setup) enableFragment(fragment string) {
	if slices.Contains(s.fragments, fragment) {
		return
	}
	kind, _, _ := strings.Cut(fragment, "/")
	if kind == "machine" || kind == "distro" {
		s.fragments = slices.DeleteFunc(s.fragments, func(f string) bool { return strings.HasPrefix(f, kind+"/") })
	}
	s.fragments = append(s.fragments, fragment)
}

// builtinFragment returns the name in a fragment such as machine/qemuarm64.
func (s *setup) builtinFragment(kind, otherwise string) string {
	for _, f := range s.fragments {
		if name, ok := strings.CutPrefix(f, kind+"/"); ok {
			return name
		}
	}
	return otherwise
}
