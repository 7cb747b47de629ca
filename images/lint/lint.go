// Package lint turns a build's configuration into findings: names that the project's layers lack,
// with their replacements. It runs no bitbake and needs no checkout: it has tables of the names in
// each branch of the usual layers. If all layers are checked out, it searches them as well.
package lint

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Layers describes the layers of a build.
type Layers struct {
	Branch map[string]string // of the layers that there are tables of, by their names
	Others bool              // there are layers that there is no table of
	// Recipes are the names in the checkouts, as in the tables, which they overrule; it may be nil.
	// It is called only if a name is in doubt: checkouts are large.
	Recipes func() map[string]bool
	Distro  []Source // the distro's own configuration, as far as it exists
	// DistroName is the distro that Distro is of.
	DistroName string
	// DistroKnown says that Distro is all of it.
	DistroKnown bool
	// Checkout is nil if a layer of the project is not checked out.
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

// Check checks files in bitbake's order of reading, and sorts the findings by this and by line.
func Check(sources []Source, l Layers) ([]Finding, error) {
	c := checker{layers: l, branch: l.releaseBranch(), said: map[[2]string]string{}}
	order := map[string]int{}
	for i, src := range sources {
		if _, there := order[src.File]; !there {
			order[src.File] = i
		}
		statements, bad, err := parseConf(src)
		if err != nil {
			return nil, err
		}
		for _, b := range bad {
			if recipeLike(b.At) {
				continue
			}
			c.addFinding(b.At, true, b.Why, "bitbake stops at a line that it cannot read", b.How)
		}
		for _, s := range statements {
			c.checkStatement(s)
		}
		c.statements = append(c.statements, statements...)
	}
	c.indexStatements()
	for i, s := range c.statements {
		c.checkNames(i, s)
		c.checkInCheckouts(s)
	}
	c.checkContainers()
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(order[a.At.File], order[b.At.File]), cmp.Compare(a.At.Line, b.At.Line))
	})
	return c.findings, nil
}

type checker struct {
	layers      Layers
	branch      string // the branch that tells the release
	statements  []Statement
	installed   []Word
	findings    []Finding
	conditional bool                  // the statement that is looked at may hold for another machine
	deciding    map[string]*Statement // by variable: the statement that decides what it is
	assigned    map[string]int        // by variable: its last statement with = or :=
	removed     map[[2]string]bool    // variable and word, that the configuration takes out again
	said        map[[2]string]string  // fault, fix, and file: local.conf repeats statements of the project file
}

// addFinding adds a finding, unless another file has the same one or there are maxFindings. A
// statement for only some machines never stops the build.
func (c *checker) addFinding(at Position, stops bool, what, why, fix string) {
	key := [2]string{what, fix}
	if file, said := c.said[key]; said && file != at.File || len(c.findings) == maxFindings {
		return
	}
	c.said[key] = at.File
	c.findings = append(c.findings, Finding{at, at.String(), stops && !c.conditional, what, why, fix})
}

// releaseBranch returns the first layer's branch that tells the Yocto release of the build, or "".
func (l Layers) releaseBranch() string {
	for _, layer := range []string{"openembedded-core", "meta-tegra", "meta-openembedded", "meta-virtualization", "meta-tegra-community"} {
		if seriesOf(l.Branch[layer]) != "" {
			return l.Branch[layer]
		}
	}
	return ""
}

// checkStatement checks what a single statement shows without the others: its syntax, renamed
// variables, packages and the machine.
func (c *checker) checkStatement(s Statement) {
	if s.Op == "" {
		c.checkDirective(s)
		return
	}
	c.checkVariable(s)
	base, operation := splitOverrides(s.Var)
	if r, renamed := renamedVariables()[base]; renamed && fromRelease(c.branch, r.since) {
		fix := plaintext.Either(r.now == "", "remove the line", "write "+r.now+" instead")
		c.addFinding(s.At, true, base+" has another name or none since "+r.since, "bitbake stops at the old name", fix)
	}
	switch {
	case operation == "remove" || s.Flag != "":
	case packageLists[base]:
		c.checkAppendSpace(s, operation)
		c.conditional = isConditional(s.Var)
		for _, w := range s.Words {
			c.checkPackage(w, base)
		}
		c.conditional = false
	case wordLists[base]:
		c.checkAppendSpace(s, operation)
		c.checkDebugTweaks(s, base)
	case base == "MACHINE" && len(s.Words) == 1:
		c.checkMachine(s.Words[0])
	}
}

// recipeLike reports whether a position is in an .inc file, which may have functions as a recipe.
func recipeLike(at Position) bool { return filepath.Ext(at.File) == ".inc" }

var directiveSince = map[string]string{"addpylib": "mickledore", "include_all": "walnascar", "addfragments": "walnascar"}

// checkDirective reports directives that only recipes or later releases may have.
func (c *checker) checkDirective(s Statement) {
	if recipeLike(s.At) {
		return
	}
	if release := directiveSince[s.Var]; release != "" && Before(c.branch, release) {
		c.addFinding(s.At, true, s.Var+" exists from "+release+" on", "bitbake stops at a line that it cannot read", "remove the line")
	}
	switch s.Var {
	case "inherit":
		c.addFinding(s.At, true, "inherit is for recipes", "bitbake stops at a line that it cannot read", `write INHERIT += "`+s.Value+`"`)
	case "addtask", "deltask", "addhandler", "EXPORT_FUNCTIONS":
		c.addFinding(s.At, true, s.Var+" is for recipes and classes", "bitbake stops at a line that it cannot read", "put it into a class, and add that to INHERIT")
	}
}

// packageLists are the variables whose words are packages that must exist.
var packageLists = map[string]bool{
	"IMAGE_INSTALL": true, "CORE_IMAGE_EXTRA_INSTALL": true, "CORE_IMAGE_BASE_INSTALL": true, "PACKAGE_INSTALL": true,
	"DISTRO_EXTRA_RDEPENDS": true, "MACHINE_EXTRA_RDEPENDS": true, "MACHINE_ESSENTIAL_EXTRA_RDEPENDS": true, "TOOLCHAIN_TARGET_TASK": true,
}

// wordLists are other variables whose value is a list of words.
var wordLists = map[string]bool{
	"DISTRO_FEATURES": true, "MACHINE_FEATURES": true, "IMAGE_FEATURES": true, "EXTRA_IMAGE_FEATURES": true, "IMAGE_FSTYPES": true,
	"IMAGE_CLASSES": true, "INHERIT": true, "USER_CLASSES": true, "PACKAGECONFIG": true, "LICENSE_FLAGS_ACCEPTED": true,
	"KERNEL_MODULE_AUTOLOAD": true, "KERNEL_FEATURES": true, "BBMASK": true,
}

// knownVariables are those whose misspelt names Slipway finds.
var knownVariables = slices.Concat(slices.Collect(maps.Keys(packageLists)), slices.Collect(maps.Keys(wordLists)), slices.Collect(maps.Keys(filePatterns)), []string{"PACKAGE_CLASSES"})

// checkDebugTweaks reports the image feature debug-tweaks, which was removed in walnascar.
func (c *checker) checkDebugTweaks(s Statement, base string) {
	if !strings.HasSuffix(base, "IMAGE_FEATURES") || !fromRelease(c.branch, "walnascar") {
		return
	}
	for _, w := range s.Words {
		if w.Text == "debug-tweaks" {
			c.addFinding(w.At, true, base+" has debug-tweaks, which is no feature since walnascar", "bitbake skips images with an unknown feature, and then nothing provides them", "write those of its parts that you want: allow-empty-password allow-root-login empty-root-password post-install-logging")
		}
	}
}

// splitOverrides returns a variable's name without its overrides, in the old or the new syntax, and
// the operation among them: append, prepend, remove or "".
func splitOverrides(name string) (base, operation string) {
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

var oldOverrides = plaintext.Regexp(`_(append|prepend|remove)($|_|:)|_(pn-|class-|task-|jetson-|qemu|tegra($|[0-9_])|forcevariable$)`)

// oldOverride returns the offset of the underscore before the first override in the old syntax, or
// -1. It is -1 too for variables such as PREFERRED_PROVIDER_x, whose endings are other names.
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

// checkVariable reports misspelled variables and operations, and override syntax of other releases.
func (c *checker) checkVariable(s Statement) {
	if i := oldOverride(s.Var); i > 0 && fromRelease(c.branch, "honister") {
		now := s.Var[:i] + strings.NewReplacer("_append", ":append", "_prepend", ":prepend", "_remove", ":remove", "_pn-", ":pn-", "_class-", ":class-", "_jetson-", ":jetson-", "_tegra", ":tegra", "_qemu", ":qemu", "_task-", ":task-", "_forcevariable", ":forcevariable").Replace(s.Var[i:])
		_, operation := splitOverrides(s.Var)
		why := "from honister on an override begins with a colon: this sets another variable, which nothing reads"
		if operation != "" {
			why = "from honister on an override begins with a colon, and bitbake stops at the old form"
		}
		c.addFinding(s.At, operation != "", s.Var+" is of the syntax before honister", why, "write "+now)
		return
	}
	if s.Flag == "" && fromRelease(c.branch, "honister") && slices.ContainsFunc(operations, func(o string) bool { return strings.Contains(s.Var, "_"+o) }) {
		c.addFinding(s.At, true, s.Var+" has _append, _prepend or _remove in its name", "from honister on bitbake takes each such name for an override in the form before", "give the variable another name, or write the override with a colon")
	}
	base, overrides, found := strings.Cut(s.Var, ":")
	if near := nearestName(slices.Values(knownVariables), base); near != "" && (c.layers.Checkout == nil || !c.layers.Checkout.containsWord(base)) {
		c.addFinding(s.At, false, base+" looks like "+near, "bitbake sets a variable of another name, which none of the usual layers reads", "write "+near+", unless a layer of yours reads "+base)
	}
	for o := range strings.SplitSeq(overrides, ":") {
		if near := nearestName(slices.Values(operations), o); near != "" {
			c.addFinding(s.At, false, s.Var+" has "+o+", which is no operation", "bitbake takes it for an override, such as a machine, and the value has no effect without that", "write "+strings.Replace(s.Var, ":"+o, ":"+near, 1))
		}
	}
	if found && Before(c.branch, "dunfell") {
		c.addFinding(s.At, true, s.Var+" is of the syntax from honister on", "bitbake before dunfell reads no colon in a name", "write "+base+"_"+strings.ReplaceAll(overrides, ":", "_"))
	}
}

// checkAppendSpace reports an append without a leading space, which joins it to the last word.
func (c *checker) checkAppendSpace(s Statement, operation string) {
	if len(s.Words) == 0 || s.Op == "+=" || s.Op == "=+" || strings.HasPrefix(s.Value, "$") || strings.HasPrefix(s.Value, "|") { // a | in BBMASK continues a pattern
		return
	}
	glued := operation == "append" || s.Op == ".="
	if glued && !strings.HasPrefix(s.Value, " ") && !strings.HasPrefix(s.Value, "\t") {
		c.addFinding(s.At, false, s.Var+" adds its value without a space before it", "where a word stands before it the two run together, and neither exists", `begin the value with a space: " `+s.Words[0].Text+`…"`)
	}
}

// checkPackage records a package that an image installs, and reports a # or one that no layer has.
func (c *checker) checkPackage(w Word, variable string) {
	switch {
	case strings.ContainsAny(w.Text, "${}@()'"):
		return // bitbake works it out
	case strings.HasPrefix(w.Text, "#"):
		c.addFinding(w.At, true, variable+" has "+w.Text+" in its value", "within a value # begins no comment", "move the comment out of the value, onto a line of its own before it")
		return
	}
	c.installed = append(c.installed, w)
	if c.isMissing(w.Text) {
		c.addMissing(w, variable+" names "+w.Text, w.Text)
	}
}

// checkMachine reports a machine that the layers' branches lack, or one close to a known name.
func (c *checker) checkMachine(w Word) {
	if name := machinePrefix + w.Text; !strings.Contains(w.Text, "$") && c.isMissing(name) {
		c.addMissing(w, "MACHINE is "+w.Text, name)
	} else {
		c.warnNear(w, machinePrefix, "MACHINE is "+w.Text, "bitbake stops without the file of the machine")
	}
}

// isMissing reports whether the build lacks a name that some branch of the known layers has or had.
// It is false if the name may belong to a layer without a table.
func (c *checker) isMissing(name string) bool {
	known := findRename(name) != nil || slices.ContainsFunc(tables(), func(t table) bool { return t.exactBranches(name) != 0 })
	return known && c.absentFromTables(name) && c.branch != "" && c.knowsOwner(name) && !c.inRenamedCore(name) && !c.inRecipes(name)
}

// inRenamedCore reports whether the name is in openembedded-core, and a layer without a table may
// be openembedded-core under another name. Each project has that layer.
func (c *checker) inRenamedCore(name string) bool {
	const core = "openembedded-core"
	_, there := c.layers.Branch[core]
	return c.layers.Others && !there && slices.ContainsFunc(tables(), func(t table) bool {
		return t.layer == core && t.findBranches(name)&t.branchBit(seriesOf(c.branch)) != 0
	})
}

// inRecipes reports whether the checkouts have the name, with or without a suffix such as -dev.
func (c *checker) inRecipes(name string) bool {
	if c.layers.Recipes == nil {
		return false
	}
	recipes := c.layers.Recipes()
	return recipes[name] || recipes[recipeStem(name)]
}

// knowsOwner reports whether the tables can tell that the build lacks a name: one of the build's
// layers has or had the name, or the build has only layers with tables. Before a layer had a name,
// another layer may have had it, as meta-clang had clang.
func (c *checker) knowsOwner(name string) bool {
	for _, t := range tables() {
		if _, there := c.layers.Branch[t.layer]; t.findBranches(name) != 0 && there {
			bit := t.branchBit(c.layers.tableBranch(t))
			return bit != 0 && (!c.layers.Others || t.findBranches(name)&(bit-1) != 0)
		}
	}
	return !c.layers.Others
}

// tableBranch returns the branch for a layer's table: the build's own, or that of its release.
func (l Layers) tableBranch(t table) string {
	branch := l.Branch[t.layer]
	if t.branchBit(branch) == 0 {
		return seriesOf(branch)
	}
	return branch
}

// addMissing adds a finding for a missing name. It says what ("MACHINE is x"), which branches have
// the name, and what to write instead.
func (c *checker) addMissing(w Word, what, name string) {
	why, now := c.branchHistory(name), ""
	if r := findRename(name); r != nil {
		now = c.firstPresent(r.new)
		if now != "" || len(r.new) == 0 || !strings.HasSuffix(name, listSuffix) {
			why += "; " + r.why
		}
	} else if rest, ok := strings.CutPrefix(name, "python-"); ok {
		now = c.firstPresent([]string{"python3-" + rest})
	} else {
		now = c.otherVersion(name)
	}
	if now == "" && strings.HasSuffix(name, listSuffix) {
		why += "; " + listsEnded
	}
	c.addFinding(w.At, true, what+", which "+c.checkedBranch(name)+" does not have", why, c.adviseInstead(name, now))
}

// firstPresent returns the first candidate whose words are all in this build's tables, or "".
func (c *checker) firstPresent(candidates []string) string {
	for _, candidate := range candidates {
		if !slices.ContainsFunc(words(candidate), c.absentFromTables) {
			return candidate
		}
	}
	return ""
}

// adviseInstead returns advice for a missing name: write the name now instead, unless that is "",
// or add a layer, remove the name, or build from another branch.
func (c *checker) adviseInstead(name, now string) string {
	machine, isMachine := strings.CutPrefix(name, machinePrefix)
	layer := c.layerToAdd(name)
	switch {
	case now != "":
		return "write " + strings.ReplaceAll(now, machinePrefix, "") + " instead"
	case layer != "":
		return "add the layer " + layer + " to the project, or remove the name"
	case !isMachine:
		return "remove it"
	}
	if r := findRename(name); r != nil {
		machine = strings.TrimPrefix(r.new[0], machinePrefix)
	}
	for _, t := range tables() {
		if _, last := t.branchRange(t.has[machinePrefix+machine]); last != "" {
			return "build it as " + machine + " from " + t.layer + "'s branch " + last + ", the last that has it"
		}
	}
	return "write a machine that is in one of the layers' conf/machine"
}

// checkedBranch returns the layer and branch in which a missing name was looked up, for a message.
func (c *checker) checkedBranch(name string) string {
	for _, t := range tables() {
		if branch := c.layers.tableBranch(t); t.findBranches(name) != 0 && t.branchBit(branch) != 0 {
			return t.layer + " " + branch
		}
	}
	return "this project on " + c.branch
}

// absentFromTables reports whether no table has the name for the build's branches.
func (c *checker) absentFromTables(name string) bool {
	return !slices.ContainsFunc(tables(), func(t table) bool { return t.findBranches(name)&t.branchBit(c.layers.tableBranch(t)) != 0 })
}

// layerToAdd returns a layer, or "", that has the name for this release, outside of the project.
func (c *checker) layerToAdd(name string) string {
	for _, t := range tables() {
		if c.layers.Branch[t.layer] == "" && t.findBranches(name)&t.branchBit(seriesOf(c.branch)) != 0 {
			return t.layer
		}
	}
	return ""
}

// branchHistory returns text on which branches of the tables' layers have the name.
func (c *checker) branchHistory(name string) string {
	var parts []string
	for _, t := range tables() {
		set := t.findBranches(name)
		if set == 0 {
			continue
		}
		first, last := t.branchRange(set)
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

// findRename returns the entry of renames for an old name, nil without one.
func findRename(name string) *rename {
	for i, r := range renames {
		if slices.Contains(r.old, name) {
			return &renames[i]
		}
	}
	return nil
}
