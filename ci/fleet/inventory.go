// Package fleet runs one command on many boards, several at a time: a deploy, an update, a test. It
// reads an Ansible inventory, in YAML or INI. Package ci does the work on one board.
package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Limits of an inventory. They are far above what a person or a program writes.
const (
	maxInventoryBytes = 8 << 20
	maxHosts          = 10_000
	maxGroups         = 2_000
	maxEdges          = 200_000 // hosts in groups, and groups in groups
)

// Inventory is a parsed inventory file: its hosts and their groups.
type Inventory struct {
	File     string
	Hosts    []*Host  // in the order of the file
	Warnings []string // about settings of the file that Slipway does not follow

	hosts  map[string]*Host
	groups map[string]*group
	order  []string // of groups, as the file names them
	links  map[link]bool
	become string // user who runs the programs on hosts that name none; "": the user who logs in
}

// link says that a host or a group is a member of a group.
type link struct {
	group, member string
	isGroup       bool
}

// Host is one board of the inventory.
type Host struct {
	Name   string
	Groups []string // including those that it is in through other groups, without "all"

	own  map[string]variable
	vars map[string]variable // its own, over those of its groups
}

// variable is the value of one of the variables that Slipway reads.
type variable struct {
	value   string
	null    bool
	line    int
	problem string // why the value cannot be used
}

type group struct {
	name     string
	line     int
	vars     map[string]variable
	hosts    []string
	children []string
	parents  []string
	depth    int // length of the longest path from "all"
}

// The groups that every inventory has.
const (
	allGroup  = "all"
	ungrouped = "ungrouped"
)

// Load parses an inventory file. It does not read group_vars and host_vars, but warns of them.
func Load(file string) (*Inventory, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, err
	}
	inv, err := Parse(file, data)
	if err != nil {
		return nil, err
	}
	inv.warnOfVariableFolders()
	return inv, nil
}

// readFile reads an inventory file, and refuses a folder.
func readFile(file string) ([]byte, error) {
	f, err := localfile.Open(file)
	if err != nil {
		return nil, localfile.ExplainUnreadable(file, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder; name one inventory file, or make one of it: ansible-inventory -i %[1]s --list --yaml > hosts.yml", file)
	}
	return localfile.ReadAll(f, file, maxInventoryBytes)
}

// Parse parses an inventory in YAML or INI, and resolves the groups and variables of its
// hosts. It refuses a file encrypted by ansible-vault, and a program.
func Parse(file string, data []byte) (*Inventory, error) {
	switch {
	case bytes.HasPrefix(data, []byte("$ANSIBLE_VAULT")):
		return nil, fmt.Errorf("%s:1: encrypted by ansible-vault; Slipway has no password for it: keep the hosts in a file of their own", file)
	case bytes.HasPrefix(data, []byte("#!")):
		return nil, fmt.Errorf("%s:1: a program that prints an inventory; make a file of it: ansible-inventory -i %[1]s --list --yaml > hosts.yml", file)
	}
	inv := &Inventory{File: file, hosts: map[string]*Host{}, groups: map[string]*group{}, links: map[link]bool{}}
	for _, name := range []string{allGroup, ungrouped} {
		if _, err := inv.ensureGroup(name, 0); err != nil {
			return nil, err
		}
	}
	read := inv.readINI
	if isYAML(file, data) {
		read = inv.readYAML
	}
	if err := read(data); err != nil {
		return nil, err
	}
	return inv, inv.resolveGroups()
}

// isYAML reports whether an inventory is YAML and not INI: by its extension, as Ansible does, or by
// its first line that is no comment (---, or { first or : last). An empty file is YAML.
func isYAML(file string, data []byte) bool {
	switch filepath.Ext(file) {
	case ".yml", ".yaml", ".json":
		return true
	case ".ini", ".cfg":
		return false
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		return line == "---" || strings.HasPrefix(line, "{") || strings.HasSuffix(line, ":")
	}
	return true
}

// warnOfVariableFolders warns of the folders beside the file that Ansible would read too.
func (inv *Inventory) warnOfVariableFolders() {
	for _, name := range []string{"group_vars", "host_vars"} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(inv.File), name)); err == nil {
			inv.addWarning(0, "the folder %s beside it is not read; if it has addresses or users of hosts, make one file of all: ansible-inventory -i %s --list --yaml > hosts.yml", name, inv.File)
		}
	}
}

func (inv *Inventory) addWarning(line int, format string, args ...any) {
	inv.Warnings = append(inv.Warnings, inv.errorAt(line, format, args...).Error())
}

// errorAt returns an error about a line of the file, or about the whole file for line 0.
func (inv *Inventory) errorAt(line int, format string, args ...any) error {
	where := plaintext.Either(line > 0, fmt.Sprintf("%s:%d", inv.File, line), inv.File)
	return fmt.Errorf("%s: %w", where, fmt.Errorf(format, args...))
}

// ensureGroup returns the group with this name. If it does not exist, ensureGroup creates it, or
// refuses its name or a group above maxGroups.
func (inv *Inventory) ensureGroup(name string, line int) (*group, error) {
	if g := inv.groups[name]; g != nil {
		return g, nil
	}
	if err := validName(name); err != nil {
		return nil, inv.errorAt(line, "group %q: %w", name, err)
	}
	if len(inv.groups) >= maxGroups {
		return nil, inv.errorAt(line, "more than %d groups", maxGroups)
	}
	g := &group{name: name, line: line, vars: map[string]variable{}}
	inv.groups[name] = g
	inv.order = append(inv.order, name)
	return g, nil
}

// addHost adds the host with this name to a group. If it does not exist, addHost creates it, or
// refuses its name or a host above maxHosts.
func (inv *Inventory) addHost(g *group, name string, line int) (*Host, error) {
	h := inv.hosts[name]
	if h == nil {
		if err := validName(name); err != nil {
			return nil, inv.errorAt(line, "host %q: %w", name, err)
		}
		if len(inv.Hosts) >= maxHosts {
			return nil, inv.errorAt(line, "more than %d hosts", maxHosts)
		}
		h = &Host{Name: name, own: map[string]variable{}}
		inv.hosts[name] = h
		inv.Hosts = append(inv.Hosts, h)
	}
	added, err := inv.addLink(link{g.name, name, false}, line)
	if added {
		g.hosts = append(g.hosts, name)
	}
	return h, err
}

// addChild makes one group the child of another. It refuses "all", and a group as its own child.
func (inv *Inventory) addChild(parent, child *group, line int) error {
	if parent == child {
		return inv.errorAt(line, "group %q is its own child", child.name)
	}
	if child.name == allGroup {
		return inv.errorAt(line, `"all" is the parent of every group and cannot be a child of %q`, parent.name)
	}
	added, err := inv.addLink(link{parent.name, child.name, true}, line)
	if added {
		parent.children = append(parent.children, child.name)
		child.parents = append(child.parents, parent.name)
	}
	return err
}

// addLink records a host or group as a group's member, for its caller to add, and returns whether
// that is new. Over maxEdges it fails.
func (inv *Inventory) addLink(l link, line int) (added bool, err error) {
	if inv.links[l] {
		return false, nil
	}
	if len(inv.links) >= maxEdges {
		return false, inv.errorAt(line, "more than %d memberships of groups", maxEdges)
	}
	inv.links[l] = true
	return true, nil
}

// validName refuses names of hosts and groups that are empty or over 200 bytes, look like an
// option, a pattern, a template or a hidden folder, or have blanks, slashes or quotes.
func validName(name string) error {
	odd := func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsGraphic(r) || strings.ContainsRune(`/\*?!&,;'"`, r)
	}
	switch {
	case name == "":
		return errors.New("no name")
	case len(name) > 200:
		return errors.New("longer than 200 bytes")
	case strings.Contains(name, "{{"):
		return errors.New("templates are not filled in")
	case strings.HasPrefix(name, "-"), strings.HasPrefix(name, "."), strings.HasPrefix(name, "@"), strings.HasPrefix(name, "~"):
		return fmt.Errorf("a name cannot begin with %q", name[:1])
	case strings.IndexFunc(name, odd) >= 0:
		return errors.New("a name has no blanks, slashes, quotes or any of *?!&,;")
	}
	return nil
}
