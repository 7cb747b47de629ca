package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// resolveGroups finds the groups of each host and the value of each of its variables. The
// file only says them piece by piece.
func (inv *Inventory) resolveGroups() error {
	for _, name := range inv.order {
		if g := inv.groups[name]; name != allGroup && len(g.parents) == 0 {
			g.parents = []string{allGroup}
			inv.groups[allGroup].children = append(inv.groups[allGroup].children, name)
		}
	}
	if err := inv.measureDepth(); err != nil {
		return err
	}
	members := inv.groupsByHost()
	for _, h := range inv.Hosts {
		inv.resolveVariables(h, members[h.Name])
	}
	return nil
}

// measureDepth sets the depth of each group. It walks from all to its children and visits a
// group after all its parents. A group that it never reaches is in a loop.
func (inv *Inventory) measureDepth() error {
	waits := map[string]int{}
	for name, g := range inv.groups {
		waits[name] = len(g.parents)
	}
	ready := []string{allGroup}
	for len(ready) > 0 {
		g := inv.groups[ready[0]]
		ready = ready[1:]
		delete(waits, g.name)
		for _, name := range g.children {
			child := inv.groups[name]
			child.depth = max(child.depth, g.depth+1)
			if waits[name]--; waits[name] == 0 {
				ready = append(ready, name)
			}
		}
	}
	if len(waits) == 0 {
		return nil
	}
	loop := slices.SortedFunc(maps.Keys(waits), func(a, b string) int { return cmp.Compare(inv.groups[a].line, inv.groups[b].line) })
	return inv.errorAt(inv.groups[loop[0]].line, "groups contain each other in a loop; it is among %s", strings.Join(loop[:min(len(loop), 8)], ", "))
}

// groupsByHost returns the groups of each host, including those that it is in through other
// groups.
func (inv *Inventory) groupsByHost() map[string][]*group {
	direct := map[string][]*group{}
	for _, name := range inv.order {
		for _, host := range inv.groups[name].hosts {
			direct[host] = append(direct[host], inv.groups[name])
		}
	}
	all := map[string][]*group{}
	for host, groups := range direct {
		seen := map[string]bool{}
		for len(groups) > 0 {
			g := groups[0]
			groups = groups[1:]
			if seen[g.name] {
				continue
			}
			seen[g.name] = true
			all[host] = append(all[host], g)
			for _, parent := range g.parents {
				groups = append(groups, inv.groups[parent])
			}
		}
	}
	return all
}

// resolveVariables sets the variables of a host. Its groups' variables apply from the
// outermost group inwards, then its own.
func (inv *Inventory) resolveVariables(h *Host, groups []*group) {
	named := slices.ContainsFunc(groups, func(g *group) bool { return g.name != allGroup })
	if !named {
		groups = append(groups, inv.groups[ungrouped])
		inv.groups[ungrouped].hosts = append(inv.groups[ungrouped].hosts, h.Name)
	}
	if !slices.Contains(groups, inv.groups[allGroup]) {
		groups = append(groups, inv.groups[allGroup])
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.depth, b.depth), cmp.Compare(a.priority(), b.priority()), cmp.Compare(a.name, b.name))
	})
	h.vars = map[string]variable{}
	for _, g := range groups {
		maps.Copy(h.vars, g.vars)
		if g.name != allGroup {
			h.Groups = append(h.Groups, g.name)
		}
	}
	maps.Copy(h.vars, h.own)
	slices.Sort(h.Groups)
}

// priority decides which of two groups of the same depth overrides the other.
func (g *group) priority() int {
	n, err := strconv.Atoi(g.vars[priorityVariable].value)
	if err != nil {
		return 1
	}
	return n
}
