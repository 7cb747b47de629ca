package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// resolveGroups sets the groups and the variables of each host. It first makes groups without a
// parent children of "all", and refuses groups that contain each other.
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

// measureDepth sets the depth of each group below "all". It refuses groups that contain each other.
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

// groupsByHost maps each host to its groups, including the parents of its groups.
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

// resolveVariables sets a host's variables and group names. Inner groups override outer groups, and
// the host's own variables override all. A host in no group but "all" joins the group ungrouped.
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

// priority returns a group's priority, 1 by default: of equal depth, the higher one overrides.
func (g *group) priority() int {
	n, err := strconv.Atoi(g.vars[priorityVariable].value)
	if err != nil {
		return 1
	}
	return n
}
