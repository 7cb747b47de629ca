package lint

import (
	"iter"
	"regexp"
	"slices"
	"strings"
)

// Settings whose words are names that a branch has or has not: classes, types of
// images, recipes and versions. Only what the tables prove is said: a name that none
// of these layers ever had may be of a layer of the user's.

var classLists = []string{"INHERIT", "USER_CLASSES", "IMAGE_CLASSES", "PACKAGE_CLASSES", "INHERIT_DISTRO"}

// settings looks at a statement when all of the configuration was read.
func (c *checker) settings(i int, s Statement) {
	base, operation := split(s.Var)
	if s.Op == "" || s.Flag != "" || operation == "remove" || operation == "" && c.replaced(i, s) {
		return
	}
	c.perhaps = conditional(s.Var)
	defer func() { c.perhaps = false }()
	for _, w := range s.Words {
		switch {
		case c.removed[[2]string{base, w.Text}]:
		case slices.Contains(classLists, base):
			c.class(w, base)
		case base == "IMAGE_FSTYPES":
			c.imageType(w)
		case base == "GCCVERSION":
			c.gcc(w)
		case strings.HasPrefix(s.Var, "PREFERRED_PROVIDER_"):
			c.provider(s.Var, w)
		}
	}
}

// index makes what is known of all statements together.
func (c *checker) index() {
	c.deciding, c.assigned, c.removed = map[string]*Statement{}, map[string]int{}, map[[2]string]bool{}
	for i, s := range c.statements {
		if base, operation := split(s.Var); operation == "remove" && !conditional(s.Var) {
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

// replaced is true where another statement decides what the variable is.
func (c *checker) replaced(i int, s Statement) bool {
	return c.assigned[s.Var] > i || strings.HasPrefix(s.Op, "?") && c.deciding[s.Var].At != s.At
}

// conditional is true where an override says for what alone a statement holds.
func conditional(name string) bool {
	base, _ := split(name)
	overrides := strings.FieldsFunc(name[len(base):], func(r rune) bool { return r == ':' || r == '_' })
	return slices.ContainsFunc(overrides, func(o string) bool { return !slices.Contains(operations, o) })
}

// workedOut is true for a word that bitbake works out.
func workedOut(w Word) bool { return strings.ContainsAny(w.Text, "${}@()'/") }

func (c *checker) class(w Word, variable string) {
	name := classPrefix + w.Text
	switch {
	case workedOut(w):
	case c.lacks(name):
		c.add(w.At, true, variable+" names the class "+w.Text+", which "+c.where(name)+" does not have", c.history(name)+"; bitbake stops where it does not find a class", c.like(classPrefix, w.Text, "remove it"))
	case !c.unheardOf(name) || c.checkedOut(name):
	case c.layers.Checkout != nil:
		if len(c.layers.Checkout.choices("classes*/"+w.Text+".bbclass")) == 0 {
			c.add(w.At, true, variable+" names the class "+w.Text+", which no layer of the project has", "bitbake stops where it does not find a class", instead(slices.Values(c.namesOf(classPrefix)), w.Text, correctName))
		}
	default:
		if near := c.nearest(classPrefix, w.Text); near != "" {
			c.add(w.At, false, variable+" names the class "+w.Text+", which none of the usual layers has", "bitbake stops where it does not find a class", "write "+near+", unless a layer of yours has "+w.Text)
		}
	}
}

// typeCommand is how a class says how a type of images is made.
var typeCommand = regexp.MustCompile(`(?m)^(?:IMAGE_CMD|IMAGE_TYPEDEP|CONVERSION_CMD)[:_]([a-z0-9][a-z0-9.+-]*)`)

// imageType looks for the type before the conversions, such as ext4 of ext4.gz.
func (c *checker) imageType(w Word) {
	if workedOut(w) || c.definesType(w.Text) {
		return
	}
	kind := w.Text
	for {
		name := typePrefix + kind
		if !c.lacks(name) && !c.unheardOf(name) {
			return
		}
		cut := strings.LastIndexByte(kind, '.')
		if cut < 0 || c.absent(typePrefix+kind[cut+1:]) {
			break
		}
		kind = kind[:cut]
	}
	if name := typePrefix + kind; c.lacks(name) {
		c.add(w.At, true, "IMAGE_FSTYPES has "+w.Text+", a type of images that "+c.where(name)+" does not have", c.history(name)+"; image.bbclass stops at a type that no class makes", c.like(typePrefix, kind, "remove it"))
	} else if l := c.layers.Checkout; l != nil && slices.ContainsFunc(strings.Split(kind, "."), func(part string) bool {
		return !l.names(part) && !l.names("IMAGE_CMD_"+part) && !l.names("CONVERSION_CMD_"+part)
	}) {
		c.add(w.At, true, "IMAGE_FSTYPES has "+w.Text+", a type of images that no layer of the project has", "image.bbclass stops at a type that no class makes", instead(slices.Values(c.namesOf(typePrefix)), kind, correctName))
	}
}

// definesType is true where the configuration itself says how a type is made.
func (c *checker) definesType(name string) bool {
	return slices.ContainsFunc(c.statements, func(s Statement) bool {
		return s.Var == "IMAGE_CMD:"+name || s.Var == "IMAGE_CMD_"+name
	})
}

func (c *checker) provider(variable string, w Word) {
	if !workedOut(w) && c.lacks(w.Text) {
		c.missing(w, variable+" is "+w.Text, w.Text)
	}
}

// gcc looks for a version by GCCVERSION's pattern, such as 13.%.
func (c *checker) gcc(w Word) {
	prefix, pattern := strings.CutSuffix(w.Text, "%")
	vendor := c.layers.Others && c.layers.Checkout == nil && !numbered(w.Text) // such as arm-9.2, of meta-arm
	if workedOut(w) || c.branch == "" || vendor {
		return
	}
	have := c.namesOf(gccPrefix)
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
	c.add(w.At, false, "GCCVERSION is "+w.Text+", a version of gcc that the usual layers on "+c.branch+" do not have", "they have "+versions+"; bitbake builds another version than the one that you want where no other layer has it", "remove the line, unless a layer of yours has gcc "+w.Text)
}

// unheardOf is true for a name that no branch of any table has.
func (c *checker) unheardOf(name string) bool {
	return !slices.ContainsFunc(tables(), func(t table) bool { return t.has[name] != 0 })
}

// like says what to write instead: the one name of the branch that begins with the
// old one.
func (c *checker) like(prefix, name, otherwise string) string {
	var longer []string
	for _, have := range c.namesOf(prefix) {
		if strings.HasPrefix(have, name+"-") || strings.HasPrefix(have, name+".") {
			longer = append(longer, have)
		}
	}
	if len(longer) == 1 {
		return "write " + longer[0] + " instead"
	}
	return otherwise
}

// namesOf are the names of a kind on the build's branches.
func (c *checker) namesOf(prefix string) (all []string) {
	for _, t := range tables() {
		bit := t.branch(c.layers.branchOf(t))
		for name, set := range t.has {
			if rest, ok := strings.CutPrefix(name, prefix); ok && set&bit != 0 {
				all = append(all, rest)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (c *checker) nearest(prefix, name string) string {
	return nearestOf(slices.Values(c.namesOf(prefix)), name)
}

// nearestOf is a name that differs by one letter left out, added, changed, or by two
// that changed places; "" where there is none, or more than one.
func nearestOf(names iter.Seq[string], name string) string {
	var near []string
	for have := range names {
		if len(name) > 3 && oneSlip(name, have) {
			near = append(near, have)
		}
	}
	if len(near) != 1 {
		return ""
	}
	return near[0]
}

func oneSlip(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch {
	case len(a) < len(b):
		return a[i:] == b[i+1:]
	case i == len(a):
		return false
	}
	return a[i+1:] == b[i+1:] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

var versioned = regexp.MustCompile(`^(.*-)(\d+(?:\.\d+)+)(-.*)?$`)

// otherVersion is the same name with the newest version that the branch has.
func (c *checker) otherVersion(name string) string {
	m := versioned.FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	var newest string
	for _, have := range c.namesOf("") {
		v := versioned.FindStringSubmatch(have)
		if v != nil && v[1] == m[1] && v[3] == m[3] && (newest == "" || newer(v[2], versioned.FindStringSubmatch(newest)[2])) {
			newest = have
		}
	}
	return newest
}

// newer compares versions by their numbers.
func newer(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return len(x[i]) > len(y[i]) || len(x[i]) == len(y[i]) && x[i] > y[i]
		}
	}
	return len(x) > len(y)
}
