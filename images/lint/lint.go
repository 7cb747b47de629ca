// Package lint reads a build's configuration and says which names in it the project's
// layers do not have, and what to write in their place. It runs no bitbake and needs no
// checkout: it knows what the branches of the usual layers hold. Where all layers are
// checked out it looks into them as well.
package lint

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/lazy"
)

// Layers is what a build's layers are.
type Layers struct {
	Branch map[string]string // of the layers that there are tables of, by their names
	Others bool              // there are layers that there is no table of
	// Recipes are the names in the checkouts, as in the tables, which they overrule; it
	// may be nil.
	// It is called only where a name is in doubt: checkouts are large.
	Recipes func() map[string]bool
	Distro  []Source // the distro's own configuration, as far as it is there
	// DistroName is the distro that Distro is of.
	DistroName string
	// DistroKnown says that Distro is all of it.
	DistroKnown bool
	// Checkout is nil where a layer of the project is not checked out.
	Checkout *checkout
}

// Finding is one thing to fix in a configuration.
type Finding struct {
	At    Position `json:"-"`
	Where string   `json:"where"` // file:line:column
	Stops bool     `json:"stops"` // bitbake would stop at it
	What  string   `json:"what"`
	Why   string   `json:"why"`
	Fix   string   `json:"fix"`
}

const maxFindings = 200

// These tell other names from packages in the tables.
const (
	machinePrefix = "machine:"
	classPrefix   = "class:"
	typePrefix    = "fstype:" // of images, and conversions of them
	gccPrefix     = "gcc:"    // a version that there is a recipe for
)

// Check looks at configuration in the order in which bitbake reads it.
func Check(sources []Source, l Layers) ([]Finding, error) {
	c := checker{layers: l, branch: l.release(), said: map[[2]string]string{}}
	order := map[string]int{}
	for i, src := range sources {
		if _, there := order[src.File]; !there {
			order[src.File] = i
		}
		statements, bad, err := parse(src)
		if err != nil {
			return nil, err
		}
		for _, b := range bad {
			if recipeLike(b.At) {
				continue
			}
			c.add(b.At, true, b.Why, "bitbake stops at a line that it cannot read", b.How)
		}
		for _, s := range statements {
			c.statement(s)
		}
		c.statements = append(c.statements, statements...)
	}
	c.index()
	for i, s := range c.statements {
		c.settings(i, s)
		c.inCheckouts(s)
	}
	c.containers()
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(order[a.At.File], order[b.At.File]), cmp.Compare(a.At.Line, b.At.Line))
	})
	return c.findings, nil
}

type checker struct {
	layers     Layers
	branch     string // the newest that is known, by which the release is told
	statements []Statement
	installed  []Word
	findings   []Finding
	perhaps    bool                  // the statement that is looked at may hold for another machine
	deciding   map[string]*Statement // by variable: the statement that decides what it is
	assigned   map[string]int        // by variable: its last statement with = or :=
	removed    map[[2]string]bool    // variable and word, that the configuration takes out again
	said       map[[2]string]string  // what, and what fixes it, and the file: local.conf repeats what the project file says
}

func (c *checker) add(at Position, stops bool, what, why, fix string) {
	key := [2]string{what, fix}
	if file, said := c.said[key]; said && file != at.File || len(c.findings) == maxFindings {
		return
	}
	c.said[key] = at.File
	c.findings = append(c.findings, Finding{at, at.String(), stops && !c.perhaps, what, why, fix})
}

// release is a branch by which the release is known: all layers follow one.
func (l Layers) release() string {
	for _, layer := range []string{"openembedded-core", "meta-tegra", "meta-openembedded", "meta-virtualization", "meta-tegra-community"} {
		if seriesOf(l.Branch[layer]) != "" {
			return l.Branch[layer]
		}
	}
	return ""
}

func (c *checker) statement(s Statement) {
	if s.Op == "" {
		c.directive(s)
		return
	}
	c.operators(s)
	base, operation := split(s.Var)
	if r, renamed := renamedVariables[base]; renamed && since(c.branch, r.since) {
		fix := "write " + r.now + " instead"
		if r.now == "" {
			fix = "remove the line"
		}
		c.add(s.At, true, base+" has another name or none since "+r.since, "bitbake stops at the old name", fix)
	}
	switch {
	case operation == "remove" || s.Flag != "":
	case installs[base]:
		c.spaced(s, operation)
		c.perhaps = conditional(s.Var)
		for _, w := range s.Words {
			c.install(w, base)
		}
		c.perhaps = false
	case lists[base]:
		c.spaced(s, operation)
		c.tweaks(s, base)
	case base == "MACHINE" && len(s.Words) == 1:
		c.machine(s.Words[0])
	}
}

// recipeLike is true in a file that bitbake reads as it reads recipes, with functions.
func recipeLike(at Position) bool { return filepath.Ext(at.File) == ".inc" }

var directiveSince = map[string]string{"addpylib": "mickledore", "include_all": "walnascar", "addfragments": "walnascar"}

// directive finds those that only recipes may have.
func (c *checker) directive(s Statement) {
	if recipeLike(s.At) {
		return
	}
	if release := directiveSince[s.Var]; release != "" && Before(c.branch, release) {
		c.add(s.At, true, s.Var+" is there from "+release+" on", "bitbake stops at a line that it cannot read", "remove the line")
	}
	switch s.Var {
	case "inherit":
		c.add(s.At, true, "inherit is for recipes", "bitbake stops at a line that it cannot read", `write INHERIT += "`+s.Value+`"`)
	case "addtask", "deltask", "addhandler", "EXPORT_FUNCTIONS":
		c.add(s.At, true, s.Var+" is for recipes and classes", "bitbake stops at a line that it cannot read", "put it into a class, and add that to INHERIT")
	}
}

// installs are the variables whose words are packages that must exist.
var installs = map[string]bool{
	"IMAGE_INSTALL": true, "CORE_IMAGE_EXTRA_INSTALL": true, "CORE_IMAGE_BASE_INSTALL": true, "PACKAGE_INSTALL": true,
	"DISTRO_EXTRA_RDEPENDS": true, "MACHINE_EXTRA_RDEPENDS": true, "MACHINE_ESSENTIAL_EXTRA_RDEPENDS": true, "TOOLCHAIN_TARGET_TASK": true,
}

// lists are other variables whose words stand apart.
var lists = map[string]bool{
	"DISTRO_FEATURES": true, "MACHINE_FEATURES": true, "IMAGE_FEATURES": true, "EXTRA_IMAGE_FEATURES": true, "IMAGE_FSTYPES": true,
	"IMAGE_CLASSES": true, "INHERIT": true, "USER_CLASSES": true, "PACKAGECONFIG": true, "LICENSE_FLAGS_ACCEPTED": true,
	"KERNEL_MODULE_AUTOLOAD": true, "KERNEL_FEATURES": true, "BBMASK": true,
}

// tweaks finds the feature that most local.conf files had.
func (c *checker) tweaks(s Statement, base string) {
	if !strings.HasSuffix(base, "IMAGE_FEATURES") || !since(c.branch, "walnascar") {
		return
	}
	for _, w := range s.Words {
		if w.Text == "debug-tweaks" {
			c.add(w.At, true, base+" has debug-tweaks, which is no feature since walnascar", "bitbake skips images with an unknown feature, and then nothing provides them", "write those of its parts that you want: allow-empty-password allow-root-login empty-root-password post-install-logging")
		}
	}
}

// split takes a variable's overrides off, in either syntax.
func split(name string) (base, operation string) {
	base, overrides, _ := strings.Cut(name, ":")
	if i := oldOverride(base); i > 0 {
		base, overrides = base[:i], strings.ReplaceAll(base[i+1:], "_", ":")+":"+overrides
	}
	for _, o := range strings.Split(overrides, ":") {
		if slices.Contains(operations, o) {
			operation = o
		}
	}
	return base, operation
}

var operations = []string{"append", "prepend", "remove"}

var oldOverrides = lazy.Regexp(`_(append|prepend|remove)($|_|:)|_(pn-|class-|task-|jetson-|qemu|tegra($|[0-9_])|forcevariable$)`)

// oldOverride is where the first override in the syntax with underscores begins, or -1.
func oldOverride(name string) int {
	for _, prefix := range []string{"PREFERRED_", "SRCREV_", "BBFILE_", "BBFILES_", "LAYER", "KERNEL_MODULE_", "LICENSE_FLAGS_"} {
		if strings.HasPrefix(name, prefix) {
			name = strings.Repeat("X", len(name)) // their suffixes are recipes and layers
		}
	}
	if at := oldOverrides().FindStringIndex(name); at != nil {
		return at[0]
	}
	return -1
}

// operators looks for overrides in the syntax of another release.
func (c *checker) operators(s Statement) {
	if i := oldOverride(s.Var); i > 0 && since(c.branch, "honister") {
		now := s.Var[:i] + strings.NewReplacer("_append", ":append", "_prepend", ":prepend", "_remove", ":remove", "_pn-", ":pn-", "_class-", ":class-", "_jetson-", ":jetson-", "_tegra", ":tegra", "_qemu", ":qemu", "_task-", ":task-", "_forcevariable", ":forcevariable").Replace(s.Var[i:])
		_, operation := split(s.Var)
		why := "from honister on an override begins with a colon: this sets another variable, which nothing reads"
		if operation != "" {
			why = "from honister on an override begins with a colon, and bitbake stops at the old form"
		}
		c.add(s.At, operation != "", s.Var+" is of the syntax before honister", why, "write "+now)
		return
	}
	if s.Flag == "" && since(c.branch, "honister") && slices.ContainsFunc(operations, func(o string) bool { return strings.Contains(s.Var, "_"+o) }) {
		c.add(s.At, true, s.Var+" has _append, _prepend or _remove in its name", "from honister on bitbake takes each such name for an override in the form before", "give the variable another name, or write the override with a colon")
	}
	base, overrides, found := strings.Cut(s.Var, ":")
	if found && Before(c.branch, "dunfell") {
		c.add(s.At, true, s.Var+" is of the syntax from honister on", "bitbake before dunfell reads no colon in a name", "write "+base+"_"+strings.ReplaceAll(overrides, ":", "_"))
	}
}

// spaced finds an :append that runs into the word before it.
func (c *checker) spaced(s Statement, operation string) {
	if len(s.Words) == 0 || s.Op == "+=" || s.Op == "=+" || strings.HasPrefix(s.Value, "$") || strings.HasPrefix(s.Value, "|") { // |, of BBMASK, goes on with a pattern
		return
	}
	glued := operation == "append" || s.Op == ".="
	if glued && !strings.HasPrefix(s.Value, " ") && !strings.HasPrefix(s.Value, "\t") {
		c.add(s.At, false, s.Var+" adds its value without a space before it", "where a word stands before it the two run together, and neither exists", `begin the value with a space: " `+s.Words[0].Text+`…"`)
	}
}

func (c *checker) install(w Word, variable string) {
	switch {
	case strings.ContainsAny(w.Text, "${}@()'"):
		return // bitbake works it out
	case strings.HasPrefix(w.Text, "#"):
		c.add(w.At, true, variable+" has "+w.Text+" in its value", "within a value # begins no comment", "move the comment out of the value, onto a line of its own before it")
		return
	}
	c.installed = append(c.installed, w)
	if c.lacks(w.Text) {
		c.missing(w, variable+" names "+w.Text, w.Text)
	}
}

func (c *checker) machine(w Word) {
	if name := machinePrefix + w.Text; !strings.Contains(w.Text, "$") && c.lacks(name) {
		c.missing(w, "MACHINE is "+w.Text, name)
	}
}

// lacks is true for names that some layer has or had somewhere, and the build has not.
func (c *checker) lacks(name string) bool {
	known := renameOf(name) != nil
	for _, t := range tables() {
		set := t.find(name)
		known = known || t.written(name) != 0
		if set&t.branch(c.layers.branchOf(t)) != 0 {
			return false
		}
	}
	return known && c.branch != "" && c.knowsOwner(name) && !c.otherCore(name) && !c.checkedOut(name)
}

// otherCore is true for a name of openembedded-core's where one of the layers without a
// table is that one, under a name of its own: each project has it.
func (c *checker) otherCore(name string) bool {
	const core = "openembedded-core"
	_, there := c.layers.Branch[core]
	return c.layers.Others && !there && slices.ContainsFunc(tables(), func(t table) bool {
		return t.layer == core && t.find(name)&t.branch(seriesOf(c.branch)) != 0
	})
}

func (c *checker) checkedOut(name string) bool {
	if c.layers.Recipes == nil {
		return false
	}
	recipes := c.layers.Recipes()
	return recipes[name] || recipes[stem(name)]
}

// knowsOwner is true where one of the build's layers has or had the name, or where
// no other layer could have it. A name that a layer has only later may be of another
// layer until then, as clang was of meta-clang.
func (c *checker) knowsOwner(name string) bool {
	for _, t := range tables() {
		if _, there := c.layers.Branch[t.layer]; t.find(name) != 0 && there {
			bit := t.branch(c.layers.branchOf(t))
			return bit != 0 && (!c.layers.Others || t.find(name)&(bit-1) != 0)
		}
	}
	return !c.layers.Others
}

// branchOf is the layer's branch that there is a table of: its own, or its release's.
func (l Layers) branchOf(t table) string {
	branch := l.Branch[t.layer]
	if t.branch(branch) == 0 {
		return seriesOf(branch)
	}
	return branch
}

// missing says of a name that is not there when it was, and what stands in its place.
func (c *checker) missing(w Word, what, name string) {
	why, now := c.history(name), ""
	if r := renameOf(name); r != nil {
		now = c.firstThatIs(r.new)
		if now != "" || len(r.new) == 0 || !strings.HasSuffix(name, listSuffix) {
			why += "; " + r.why
		}
	} else if rest, ok := strings.CutPrefix(name, "python-"); ok {
		now = c.firstThatIs([]string{"python3-" + rest})
	} else {
		now = c.otherVersion(name)
	}
	if now == "" && strings.HasSuffix(name, listSuffix) {
		why += "; " + listsEnded
	}
	c.add(w.At, true, what+", which "+c.where(name)+" does not have", why, c.instead(name, now))
}

func (c *checker) firstThatIs(candidates []string) string {
	for _, candidate := range candidates {
		if !slices.ContainsFunc(words(candidate), c.absent) {
			return candidate
		}
	}
	return ""
}

// instead is what to write, or what else to do.
func (c *checker) instead(name, now string) string {
	machine, isMachine := strings.CutPrefix(name, machinePrefix)
	layer := c.elsewhere(name)
	switch {
	case now != "":
		return "write " + strings.ReplaceAll(now, machinePrefix, "") + " instead"
	case layer != "":
		return "add the layer " + layer + " to the project, or remove the name"
	case !isMachine:
		return "remove it"
	}
	if r := renameOf(name); r != nil {
		machine = strings.TrimPrefix(r.new[0], machinePrefix)
	}
	for _, t := range tables() {
		if last := t.last(t.has[machinePrefix+machine]); last != "" {
			return "build it as " + machine + " from " + t.layer + "'s branch " + last + ", the last that has it"
		}
	}
	return "write a machine that is in one of the layers' conf/machine"
}

// where is the branch that was looked at for a name: that of the layer that had it.
func (c *checker) where(name string) string {
	for _, t := range tables() {
		if branch := c.layers.branchOf(t); t.find(name) != 0 && t.branch(branch) != 0 {
			return t.layer + " " + branch
		}
	}
	return "this project on " + c.branch
}

func (c *checker) absent(name string) bool {
	for _, t := range tables() {
		if t.find(name)&t.branch(c.layers.branchOf(t)) != 0 {
			return false
		}
	}
	return true
}

// elsewhere is a layer that has the name on this release and is not in the project.
func (c *checker) elsewhere(name string) string {
	for _, t := range tables() {
		if c.layers.Branch[t.layer] == "" && t.find(name)&t.branch(seriesOf(c.branch)) != 0 {
			return t.layer
		}
	}
	return ""
}

// history says which branches have the name.
func (c *checker) history(name string) string {
	var parts []string
	for _, t := range tables() {
		set := t.find(name)
		if set == 0 {
			continue
		}
		first, last := t.first(set), t.last(set)
		switch {
		case last == t.branches[len(t.branches)-1]:
			parts = append(parts, t.layer+" has it from "+first+" on")
		case first == last:
			parts = append(parts, t.layer+" has it on "+first+" alone")
		default:
			parts = append(parts, t.layer+" has it on branches from "+first+" to "+last)
		}
	}
	if len(parts) == 0 {
		return "no branch of the usual layers has it any more"
	}
	return strings.Join(parts, ", ")
}

func renameOf(name string) *rename {
	for i, r := range renames {
		if slices.Contains(r.old, name) {
			return &renames[i]
		}
	}
	return nil
}
