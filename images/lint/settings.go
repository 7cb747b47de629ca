package lint

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Settings whose words are names that a branch has or has not: classes, types of
// images, recipes and versions. A finding needs proof from the tables: a name that none
// of these layers ever had may be of a layer of the user's.

var classLists = []string{"INHERIT", "USER_CLASSES", "IMAGE_CLASSES", "PACKAGE_CLASSES", "INHERIT_DISTRO"}

// checkNames checks the classes, image types, versions and providers that s, statement i, names. It
// needs indexStatements, because it does not check replaced statements and removed words.
func (c *checker) checkNames(i int, s Statement) {
	base, operation := splitOverrides(s.Var)
	if s.Op == "" || s.Flag != "" || operation == "remove" || operation == "" && c.isReplaced(i, s) {
		return
	}
	c.conditional = isConditional(s.Var)
	defer func() { c.conditional = false }()
	for _, w := range s.Words {
		switch {
		case c.removed[[2]string{base, w.Text}]:
		case slices.Contains(classLists, base):
			c.checkClass(w, base)
		case base == "IMAGE_FSTYPES":
			c.checkImageType(w)
		case base == "GCCVERSION":
			c.checkGCCVersion(w)
		case strings.HasPrefix(s.Var, "PREFERRED_PROVIDER_") && !isComputed(w) && c.isMissing(w.Text):
			c.addMissing(w, s.Var+" is "+w.Text, w.Text)
		}
	}
}

// indexStatements records from all statements which one decides each variable's value, which last
// assigns it, and the words that are removed.
func (c *checker) indexStatements() {
	c.deciding, c.assigned, c.removed = map[string]*Statement{}, map[string]int{}, map[[2]string]bool{}
	for i, s := range c.statements {
		if base, operation := splitOverrides(s.Var); operation == "remove" && !isConditional(s.Var) {
			for _, w := range s.Words {
				c.removed[[2]string{base, w.Text}] = true
			}
		}
		if s.Flag != "" {
			continue
		}
		if d := c.deciding[s.Var]; d == nil || strings.HasPrefix(d.Op, "??") || !strings.HasPrefix(s.Op, "?") {
			c.deciding[s.Var] = &c.statements[i]
		}
		if s.Op == "=" || s.Op == ":=" {
			c.assigned[s.Var] = i
		}
	}
}

// isReplaced reports whether another statement decides the variable's value.
func (c *checker) isReplaced(i int, s Statement) bool {
	return c.assigned[s.Var] > i || strings.HasPrefix(s.Op, "?") && c.deciding[s.Var].At != s.At
}

// isConditional reports whether an override limits a statement to some machines or recipes.
func isConditional(name string) bool {
	base, _ := splitOverrides(name)
	overrides := strings.FieldsFunc(name[len(base):], func(r rune) bool { return r == ':' || r == '_' })
	return slices.ContainsFunc(overrides, func(o string) bool { return !slices.Contains(operations, o) })
}

// isComputed reports whether bitbake computes the word.
func isComputed(w Word) bool { return strings.ContainsAny(w.Text, "${}@()'/") }

// checkClass reports a class that no layer has, by the files of all checkouts, or by the tables.
func (c *checker) checkClass(w Word, variable string) {
	name := classPrefix + w.Text
	switch {
	case isComputed(w):
	case c.isMissing(name):
		c.addFinding(w.At, true, variable+" names the class "+w.Text+", which "+c.checkedBranch(name)+" does not have", c.branchHistory(name)+"; bitbake stops if it does not find a class", c.suggestLonger(classPrefix, w.Text, "remove it"))
	case !c.inNoTable(name) || c.inRecipes(name):
	case c.layers.Checkout != nil:
		if len(c.layers.Checkout.matchPattern("classes*/"+w.Text+".bbclass")) == 0 {
			c.addFinding(w.At, true, variable+" names the class "+w.Text+", which no layer of the project has", "bitbake stops if it does not find a class", suggestNear(slices.Values(c.namesWithPrefix(classPrefix)), w.Text, correctName))
		}
	case variable == "PACKAGE_CLASSES":
		c.addFinding(w.At, false, variable+" names the class "+w.Text+noUsual, "bitbake stops if it does not find a class", "write package_rpm, package_ipk or package_deb, unless a layer of yours has "+w.Text)
	default:
		c.warnNear(w, classPrefix, variable+" names the class "+w.Text, "bitbake stops if it does not find a class")
	}
}

const noUsual = ", which none of the usual layers has"

// warnNear adds a finding for a word that no table and no checkout has, if it is close to one name
// with prefix that the build's branches have. If all layers are checked out, other checks find it.
func (c *checker) warnNear(w Word, prefix, what, why string) {
	near := nearestName(slices.Values(c.namesWithPrefix(prefix)), w.Text)
	if name := prefix + w.Text; near != "" && c.layers.Checkout == nil && c.inNoTable(name) && !c.inRecipes(name) {
		c.addFinding(w.At, false, what+noUsual, why, "write "+near+", unless a layer of yours has "+w.Text)
	}
}

// typeCommand matches a class's variable that says how a type of images is made.
var typeCommand = plaintext.Regexp(`(?m)^(?:IMAGE_CMD|IMAGE_TYPEDEP|CONVERSION_CMD)[:_]([a-z0-9][a-z0-9.+-]*)`)

// checkImageType reports a type of images, such as ext4 of ext4.gz, that no layer or line makes.
func (c *checker) checkImageType(w Word) {
	if isComputed(w) || c.definesType(w.Text) {
		return
	}
	kind := w.Text
	for {
		name := typePrefix + kind
		if !c.isMissing(name) && !c.inNoTable(name) {
			return
		}
		cut := strings.LastIndexByte(kind, '.')
		if cut < 0 || c.absentFromTables(typePrefix+kind[cut+1:]) {
			break
		}
		kind = kind[:cut]
	}
	if name := typePrefix + kind; c.isMissing(name) {
		c.addFinding(w.At, true, "IMAGE_FSTYPES has "+w.Text+", a type of images that "+c.checkedBranch(name)+" does not have", c.branchHistory(name)+"; image.bbclass stops at a type that no class makes", c.suggestLonger(typePrefix, kind, "remove it"))
	} else if l := c.layers.Checkout; l != nil && slices.ContainsFunc(strings.Split(kind, "."), func(part string) bool {
		return !l.containsWord(part) && !l.containsWord("IMAGE_CMD_"+part) && !l.containsWord("CONVERSION_CMD_"+part)
	}) {
		c.addFinding(w.At, true, "IMAGE_FSTYPES has "+w.Text+", a type of images that no layer of the project has", "image.bbclass stops at a type that no class makes", suggestNear(slices.Values(c.namesWithPrefix(typePrefix)), kind, correctName))
	} else {
		c.warnNear(w, typePrefix, "IMAGE_FSTYPES has the type "+w.Text, "image.bbclass stops at a type that no class makes")
	}
}

// definesType reports whether the configuration itself defines how a type is made.
func (c *checker) definesType(name string) bool {
	return slices.ContainsFunc(c.statements, func(s Statement) bool {
		return s.Var == "IMAGE_CMD:"+name || s.Var == "IMAGE_CMD_"+name
	})
}

// checkGCCVersion reports a GCCVERSION, such as 13.%, that no layer has, if the branch is known.
func (c *checker) checkGCCVersion(w Word) {
	prefix, pattern := strings.CutSuffix(w.Text, "%")
	vendor := c.layers.Others && c.layers.Checkout == nil && !numbered(w.Text) // such as arm-9.2, of meta-arm
	if isComputed(w) || c.branch == "" || vendor {
		return
	}
	have := c.namesWithPrefix(gccPrefix)
	if c.layers.Recipes != nil {
		for name := range c.layers.Recipes() {
			if version, ok := strings.CutPrefix(name, gccPrefix); ok {
				have = append(have, version)
			}
		}
	}
	if len(have) == 0 || slices.ContainsFunc(have, func(version string) bool {
		return version == w.Text || pattern && strings.HasPrefix(version, prefix)
	}) {
		return
	}
	slices.Sort(have)
	versions := strings.Join(slices.Compact(have), ", ")
	c.addFinding(w.At, false, "GCCVERSION is "+w.Text+", a version of gcc that the usual layers on "+c.branch+" do not have", "they have "+versions+"; bitbake builds another version than the one that you want, unless another layer has it", "remove the line, unless a layer of yours has gcc "+w.Text)
}

// inNoTable reports whether no branch of any table has the name.
func (c *checker) inNoTable(name string) bool {
	return !slices.ContainsFunc(tables(), func(t table) bool { return t.has[name] != 0 })
}

// suggestLonger advises to write the only name with prefix (such as class:) that begins with name
// and a dash or dot, or else returns otherwise.
func (c *checker) suggestLonger(prefix, name, otherwise string) string {
	var longer []string
	for _, have := range c.namesWithPrefix(prefix) {
		if strings.HasPrefix(have, name+"-") || strings.HasPrefix(have, name+".") {
			longer = append(longer, have)
		}
	}
	if len(longer) == 1 {
		return "write " + longer[0] + " instead"
	}
	return otherwise
}

// namesWithPrefix returns the names after a prefix, such as class:, on the build's branches.
func (c *checker) namesWithPrefix(prefix string) (all []string) {
	for _, t := range tables() {
		bit := t.branchBit(c.layers.tableBranch(t))
		for name, set := range t.has {
			if rest, ok := strings.CutPrefix(name, prefix); ok && set&bit != 0 {
				all = append(all, rest)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// nearestName returns the only one of names that differs from name by one letter left out, added or
// changed, or by two letters swapped, "" if there is not exactly one or name has up to 3 letters.
func nearestName(names iter.Seq[string], name string) string {
	var near []string
	for have := range names {
		if len(name) > 3 && max(len(name)-len(have), len(have)-len(name)) <= 1 && plaintext.EditDistance(name, have) == 1 {
			near = append(near, have)
		}
	}
	if len(near) != 1 {
		return ""
	}
	return near[0]
}

var versioned = plaintext.Regexp(`^(.*-)(\d+(?:\.\d+)+)(-.*)?$`)

// otherVersion returns the newest name, or "", on the build's branches with another version number.
func (c *checker) otherVersion(name string) string {
	m := versioned().FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	var newest string
	for _, have := range c.namesWithPrefix("") {
		v := versioned().FindStringSubmatch(have)
		if v != nil && v[1] == m[1] && v[3] == m[3] && (newest == "" || compareVersions(v[2], versioned().FindStringSubmatch(newest)[2]) > 0) {
			newest = have
		}
	}
	return newest
}

// compareVersions compares two versions, number by number.
func compareVersions(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	})
}
