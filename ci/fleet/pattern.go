package fleet

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Select returns the hosts that match an Ansible pattern, in the order of the file. A pattern has
// names of groups and hosts, wildcards and ~regular expressions, separated by commas or colons. A
// part after ! removes hosts. A part after & keeps only the hosts that it names. Without other
// parts these apply to all hosts. An empty pattern is all. It is an error if a part is empty, names
// no host and no group, or has a subscript such as [1:3], or if no host is left.
func (inv *Inventory) Select(pattern string) ([]*Host, error) {
	if strings.TrimSpace(pattern) == "" {
		pattern = allGroup
	}
	var plus, and, minus []string
	for _, part := range splitPattern(pattern) {
		switch part[:min(len(part), 1)] {
		case "!":
			minus = append(minus, part[1:])
		case "&":
			and = append(and, part[1:])
		default:
			plus = append(plus, part)
		}
	}
	if len(plus) == 0 {
		plus = []string{allGroup}
	}
	chosen := map[string]bool{}
	for _, step := range []struct {
		parts []string
		apply func(chosen, found map[string]bool)
	}{{plus, maps.Copy[map[string]bool, map[string]bool]}, {and, intersect}, {minus, subtract}} {
		for _, part := range step.parts {
			found, err := inv.matchHosts(part)
			if err != nil {
				return nil, fmt.Errorf("pattern %q: %w", pattern, err)
			}
			step.apply(chosen, found)
		}
	}
	hosts := slices.DeleteFunc(slices.Clone(inv.Hosts), func(h *Host) bool { return !chosen[h.Name] })
	if len(hosts) == 0 {
		why := ""
		if len(inv.Warnings) > 0 { // such as a misspelt "hosts"
			why = "; " + oneLine(inv.Warnings[0])
		}
		return nil, fmt.Errorf("pattern %q: no host of %s is left%s\nnext: cat %s", pattern, inv.File, why, plaintext.Quote(inv.File))
	}
	return hosts, nil
}

func intersect(chosen, found map[string]bool) {
	maps.DeleteFunc(chosen, func(name string, _ bool) bool { return !found[name] })
}

func subtract(chosen, found map[string]bool) {
	maps.DeleteFunc(chosen, func(name string, _ bool) bool { return found[name] })
}

// splitPattern splits a pattern at commas, or without any, at colons outside of [].
func splitPattern(pattern string) (parts []string) {
	separator := ','
	if !strings.Contains(pattern, ",") {
		separator = ':'
	}
	depth, start := 0, 0
	for i, r := range pattern {
		switch {
		case r == separator && (depth <= 0 || separator == ','):
			parts = append(parts, strings.TrimSpace(pattern[start:i]))
			start = i + 1
		case r == '[':
			depth++
		case r == ']':
			depth--
		}
	}
	return append(parts, strings.TrimSpace(pattern[start:]))
}

// matchHosts returns the hosts of the groups that match one part of a pattern. If no group does, or
// if the part has ~ first or any of .*?[, it also matches hosts' names. No match is an error.
func (inv *Inventory) matchHosts(part string) (map[string]bool, error) {
	if part != "" && part[0] != '~' && subscriptPattern().MatchString(part) {
		return nil, fmt.Errorf("%q has a subscript of Ansible, which Slipway does not read: name the hosts, with commas between them\nnext: fleet list %s", part, plaintext.Quote(inv.File))
	}
	matches, err := matcherOf(part)
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	groups := false
	for _, g := range inv.groups {
		if matches(g.name) {
			groups = true
			inv.collectHosts(g, named, map[string]bool{})
		}
	}
	// Ansible looks for hosts only if no group has the name, or if the name is a pattern.
	if !groups || part[0] == '~' || strings.ContainsAny(part, ".*?[") {
		for _, h := range inv.Hosts {
			if matches(h.Name) {
				named[h.Name] = true
			}
		}
	}
	if len(named) == 0 && !groups {
		return nil, fmt.Errorf("no host and no group is called %q\nnext: fleet list %s", part, plaintext.Quote(inv.File))
	}
	return named, nil
}

// collectHosts adds the hosts of a group and of all groups below it to hosts.
func (inv *Inventory) collectHosts(g *group, hosts, seen map[string]bool) {
	if seen[g.name] {
		return
	}
	seen[g.name] = true
	for _, name := range g.hosts {
		hosts[name] = true
	}
	for _, name := range g.children {
		inv.collectHosts(inv.groups[name], hosts, seen)
	}
}

var subscriptPattern = plaintext.Regexp(`.\[(-?\d+|-?\d*:-?\d*)\]$`)

// matcherOf returns a function that matches a name, a wildcard, or from its beginning a ~regexp.
func matcherOf(name string) (func(string) bool, error) {
	switch {
	case name == "":
		return nil, fmt.Errorf("a part of it is empty")
	case name[0] == '~':
		re, err := regexp.Compile("^(?:" + name[1:] + ")")
		if err != nil {
			return nil, err
		}
		return re.MatchString, nil
	case name == "*":
		return func(string) bool { return true }, nil
	case strings.ContainsAny(name, "*?["):
		glob := strings.ReplaceAll(name, "[!", "[^")
		if _, err := path.Match(glob, ""); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		return func(s string) bool { ok, _ := path.Match(glob, s); return ok }, nil
	}
	return func(s string) bool { return s == name }, nil
}
