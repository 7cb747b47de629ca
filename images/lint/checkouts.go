package lint

import (
	"errors"
	"iter"
	"maps"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
)

// Settings that no table can judge: they name files, recipes, versions and features of
// any layer. They are looked at where all layers of the project are checked out.

// checkout is the layers of a project, all of which are here.
type checkout struct {
	folders []string
	recipes func() map[string][]string // of .bb and .bbappend files, by the recipe's name
	words   func() map[string]bool     // in all files that bitbake reads
}

// beside finds the folders outside of a layer that its layer.conf has recipes in.
var beside = regexp.MustCompile(`\$\{LAYERDIR\}(/\.\./[^\s"*]*)/`)

// checkoutOf is nil where a layer is missing: openembedded-core, which has bitbake.conf,
// may be missing from the file as well.
func checkoutOf(layers []string) *checkout {
	folders, core := slices.Clone(layers), false
	for _, dir := range layers {
		conf, err := Read(filepath.Join(dir, "conf/layer.conf"))
		if err != nil {
			return nil
		}
		for _, more := range beside.FindAllStringSubmatch(conf.Text, -1) {
			folders = append(folders, filepath.Join(dir, more[1]))
		}
		core = core || isFile(filepath.Join(dir, "conf/bitbake.conf"))
	}
	if !core {
		return nil
	}
	slices.Sort(folders)
	folders = slices.Compact(folders)
	return &checkout{
		folders: folders,
		recipes: sync.OnceValue(func() map[string][]string {
			all := map[string][]string{}
			walk(folders, func(file string) {
				if ext := filepath.Ext(file); ext == ".bb" || ext == ".bbappend" {
					name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ext), "_")
					all[name] = append(all[name], file)
				}
			})
			return all
		}),
		words: sync.OnceValue(func() map[string]bool { return wordsOf(folders) }),
	}
}

// A project's layers have about 60 MiB. A folder with a build in it has more.
const maxMetadataBytes = 512 << 20

var metadataTypes = words(".bb .bbappend .bbclass .inc .conf .py")

// wordsOf is nil where there is too much to read.
func wordsOf(folders []string) map[string]bool {
	all, size := map[string]bool{}, 0
	walk(folders, func(file string) {
		if size > maxMetadataBytes || !slices.Contains(metadataTypes, filepath.Ext(file)) {
			return
		}
		src, err := Read(file)
		if err != nil {
			return
		}
		size += len(src.Text)
		for _, w := range namesIn(src.Text) {
			all[w] = true
		}
	})
	if size > maxMetadataBytes {
		return nil
	}
	return all
}

// names is true for a word that stands in a file, or may.
func (l *checkout) names(word string) bool {
	all := l.words()
	return all == nil || all[word]
}

func namesIn(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.+", r)
	})
}

// choices are what a file's name may have in the place of the star.
func (l *checkout) choices(pattern string) (all []string) {
	before, after, _ := strings.Cut(filepath.Base(pattern), "*")
	for _, dir := range l.folders {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, file := range files {
			all = append(all, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), before), after))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// fileOf are the variables whose value is a part of a file's name that bitbake reads.
var fileOf = map[string][]string{
	"MACHINE":      {"conf/machine/*.conf"},
	"DISTRO":       {"conf/distro/*.conf", "conf/distro/include/*.inc"},
	"TCLIBC":       {"conf/distro/include/tclibc-*.inc"},
	"INIT_MANAGER": {"conf/distro/include/init-manager-*.inc"},
}

// inCheckouts looks at a statement.
func (c *checker) inCheckouts(s Statement) {
	l := c.layers.Checkout
	base, _ := split(s.Var)
	rest, versioned := strings.CutPrefix(s.Var, "PREFERRED_VERSION_")
	required := false
	if !versioned {
		rest, required = strings.CutPrefix(s.Var, "REQUIRED_VERSION_")
	}
	c.perhaps = conditional(s.Var)
	defer func() { c.perhaps = false }()
	switch {
	case l == nil || s.Flag != "":
	case s.Op == "":
		c.required(s)
	case fileOf[s.Var] != nil:
		c.fileNamed(s)
	case versioned || required:
		c.version(s, rest, required)
	case strings.HasPrefix(base, "VIRTUAL-RUNTIME_"):
		c.runtime(s, base)
	case base == "DISTRO_FEATURES":
		c.features(s)
	case base == "BBMULTICONFIG":
		have := l.choices("conf/multiconfig/*.conf")
		for _, w := range s.Words {
			if !workedOut(w) && !slices.Contains(have, w.Text) {
				c.add(w.At, true, "BBMULTICONFIG has "+w.Text+", and no layer of the project has conf/multiconfig/"+w.Text+".conf", "bitbake stops without that file", instead(slices.Values(have), w.Text, correctName))
			}
		}
	case strings.HasSuffix(base, "IMAGE_FEATURES"):
		c.imageFeatures(s)
	case base == "BBMASK":
		for _, w := range s.Words {
			c.mask(w)
		}
	}
}

// fileNamed looks at the statement that decides a variable.
func (c *checker) fileNamed(s Statement) {
	if d := c.deciding[s.Var]; len(s.Words) != 1 || d == nil || d.At != s.At || workedOut(s.Words[0]) {
		return
	}
	w := s.Words[0]
	var have []string
	for i, pattern := range fileOf[s.Var] {
		choices := c.layers.Checkout.choices(pattern)
		if slices.Contains(choices, w.Text) {
			return
		}
		if i == 0 {
			have = choices
		}
	}
	if len(have) == 0 || s.Var == "DISTRO" && w.Text == "nodistro" || c.lacks(machinePrefix+w.Text) && s.Var == "MACHINE" {
		return
	}
	if s.Var == "DISTRO" { // the base of every distro, which is none
		have = slices.DeleteFunc(have, func(name string) bool { return name == "defaultsetup" })
	}
	pattern := strings.Replace(fileOf[s.Var][0], "*", w.Text, 1)
	otherwise := "write one that the layers have: " + shortList(have)
	if len(have) == 0 {
		otherwise = "remove the line"
	}
	fix := instead(slices.Values(have), w.Text, otherwise)
	c.add(w.At, true, s.Var+" is "+w.Text+", and no layer of the project has "+pattern, "bitbake stops without that file", fix)
}

func shortList(names []string) string {
	if len(names) > 8 {
		names = append(slices.Clone(names[:8]), "...")
	}
	return strings.Join(names, ", ")
}

func numbered(text string) bool { return text != "" && text[0] >= '0' && text[0] <= '9' }

// version looks for a recipe's version among those that files have in their names. A
// recipe may work its version out otherwise: of such a one nothing is said.
func (c *checker) version(s Statement, recipe string, required bool) {
	files := c.layers.Checkout.recipes()[recipe]
	if len(s.Words) != 1 || workedOut(s.Words[0]) || strings.Contains(recipe, "$") {
		return
	}
	if files == nil {
		if near := nearestOf(maps.Keys(c.layers.Checkout.recipes()), recipe); near != "" && !c.layers.Checkout.names(recipe) {
			c.add(s.At, false, s.Var+" is of a recipe that no layer of the project has", "bitbake reads no version of that recipe", "write "+strings.TrimSuffix(s.Var, recipe)+near+" instead")
		}
		return
	}
	w := s.Words[0]
	want := w.Text
	if epoch, rest, found := strings.Cut(want, ":"); found && numbered(epoch) {
		want = rest
	}
	want, _, _ = strings.Cut(strings.TrimSuffix(want, "%"), "_")
	var have []string
	for _, file := range files {
		_, pv, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".bb"), "_")
		switch {
		case filepath.Ext(file) != ".bb":
		case !numbered(pv), strings.HasPrefix(pv, want), strings.HasPrefix(want, pv):
			return
		default:
			have = append(have, pv)
		}
	}
	slices.SortFunc(have, func(a, b string) int {
		if newer(a, b) {
			return 1
		}
		return -1
	})
	have = slices.Compact(have)
	if len(have) > 0 {
		what, why := s.Var+" is "+w.Text+", and the layers of the project have "+shortList(have), "bitbake warns, and builds another version than the one that you want"
		if required {
			why = "bitbake stops where something needs the recipe"
		}
		c.add(w.At, false, what, why, "write "+have[len(have)-1]+", or add a layer that has "+w.Text)
	}
}

// runtime looks at the name of the variable, which something has to read, and at the
// package.
func (c *checker) runtime(s Statement, base string) {
	l := c.layers.Checkout
	if !l.names(base) && !strings.ContainsAny(base, "${}") {
		c.add(s.At, false, base+" is a variable that no file of the layers reads", "setting it does nothing", instead(maps.Keys(l.words()), base, "remove the line"))
		return
	}
	for _, w := range s.Words {
		if !workedOut(w) && !l.names(w.Text) && !c.madeByRecipe(w.Text) {
			c.add(w.At, false, base+" is "+w.Text+", a package that no layer of the project names", "bitbake stops where an image installs it: nothing provides it", instead(maps.Keys(l.recipes()), w.Text, correctName))
		}
	}
}

// madeByRecipe is true for a recipe, and for all that begins as one: recipes write
// ${PN}-part for the names of their packages.
func (c *checker) madeByRecipe(name string) bool {
	recipes := c.layers.Checkout.recipes()
	for i := len(name); i > 0; i-- {
		if (i == len(name) || name[i] == '-') && recipes[name[:i]] != nil {
			return true
		}
	}
	return false
}

const correctName = "correct the name, or remove it"

// instead is the advice for a name that is near one that is there, or another advice.
func instead(names iter.Seq[string], name, otherwise string) string {
	if near := nearestOf(names, name); near != "" {
		return "write " + near + " instead"
	}
	return otherwise
}

// features looks for words that stand in no file of the layers, and nowhere else in
// the configuration.
func (c *checker) features(s Statement) {
	l := c.layers.Checkout
	for _, w := range s.Words {
		if workedOut(w) || l.names(w.Text) || c.readsItself(w.Text) {
			continue
		}
		c.add(w.At, false, "DISTRO_FEATURES has "+w.Text+", a feature that no file of the layers names", "nothing is built differently for it", instead(maps.Keys(l.words()), w.Text, correctName))
	}
}

// imageFeatures looks for features that neither a layer nor the configuration names.
func (c *checker) imageFeatures(s Statement) {
	base, operation := split(s.Var)
	l := c.layers.Checkout
	for _, w := range s.Words {
		packages := "FEATURE_PACKAGES_" + w.Text
		if operation == "remove" || workedOut(w) || w.Text == "debug-tweaks" || l.names(w.Text) || l.names(packages) || c.removed[[2]string{base, w.Text}] || c.deciding[packages] != nil {
			continue
		}
		c.add(w.At, true, base+" has "+w.Text+", a feature that no file of the layers names", "bitbake skips images with an unknown feature, and then nothing provides them", instead(maps.Keys(l.words()), w.Text, correctName))
	}
}

// required looks for the file that a require names.
func (c *checker) required(s Statement) {
	if s.Var != "require" || len(s.Words) != 1 || strings.ContainsAny(s.Value, "${}*?[") {
		return
	}
	dirs := append([]string{filepath.Dir(s.At.File)}, c.layers.Checkout.folders...)
	if !slices.ContainsFunc(dirs, func(dir string) bool {
		return isFile(filepath.Join(dir, s.Value)) || isFile(filepath.Join(dir, "conf", s.Value)) || filepath.IsAbs(s.Value) && isFile(s.Value)
	}) {
		c.add(s.Words[0].At, true, "require names "+s.Value+", which no layer of the project has", "bitbake stops without that file", "correct the path, or write include where the file may be missing")
	}
}

func (c *checker) readsItself(feature string) bool {
	return slices.ContainsFunc(c.statements, func(s Statement) bool {
		base, _ := split(s.Var)
		return base != "DISTRO_FEATURES" && slices.Contains(namesIn(s.Value+" "+s.Var), feature)
	})
}

// pythonToo are the mistakes in a pattern that both Go and Python refuse. Of other
// patterns that Go cannot read nothing is said.
var pythonToo = []syntax.ErrorCode{
	syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrMissingRepeatArgument, syntax.ErrTrailingBackslash,
}

func (c *checker) mask(w Word) {
	text := strings.TrimPrefix(w.Text, "|")
	if strings.Contains(text, "${") || text == "" {
		return
	}
	pattern, err := regexp.Compile(text)
	var bad *syntax.Error
	switch {
	case errors.As(err, &bad) && slices.Contains(pythonToo, bad.Code):
		c.add(w.At, true, "BBMASK has "+w.Text+", which is no regular expression: "+bad.Code.String(), "bitbake masks nothing by it, and ends with an error", `put a \ before a character that stands for itself`)
		return
	case err != nil:
		return
	}
	for _, files := range c.layers.Checkout.recipes() {
		if slices.ContainsFunc(files, pattern.MatchString) {
			return
		}
	}
	c.add(w.At, false, "BBMASK has "+w.Text+", which no recipe's path in the layers has", "it masks nothing", "correct the path, or remove it")
}
