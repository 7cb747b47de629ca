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

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Settings that no table can check: they name files, recipes, versions and features of
// any layer. Slipway checks them if all layers of the project are checked out.

// checkout holds the layers of a project, which are all checked out.
type checkout struct {
	folders []string
	recipes func() map[string][]string // of .bb and .bbappend files, by the recipe's name
	words   func() map[string]bool     // in all files that bitbake reads
}

// outsideFolders finds the folders outside of a layer in which its layer.conf has recipes.
var outsideFolders = plaintext.Regexp(`\$\{LAYERDIR\}(/\.\./[^\s"*]*)/`)

// newCheckout returns the layers in these folders. It returns nil if a folder has no layer, or if
// none has bitbake.conf: a project file may leave out openembedded-core.
func newCheckout(layers []string) *checkout {
	folders, core := slices.Clone(layers), false
	for _, dir := range layers {
		conf, err := Read(filepath.Join(dir, "conf/layer.conf"))
		if err != nil {
			return nil
		}
		for _, more := range outsideFolders().FindAllStringSubmatch(conf.Text, -1) {
			folders = append(folders, filepath.Join(dir, more[1]))
		}
		core = core || localfile.IsRegular(filepath.Join(dir, "conf/bitbake.conf"))
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
			walkFiles(folders, func(file string) {
				if ext := filepath.Ext(file); ext == ".bb" || ext == ".bbappend" {
					name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ext), "_")
					all[name] = append(all[name], file)
				}
			})
			return all
		}),
		words: sync.OnceValue(func() map[string]bool { return wordsInFiles(folders) }),
	}
}

// A project's layers have about 60 MiB. A folder with a build in it has more.
const maxMetadataBytes = 512 << 20

var metadataTypes = words(".bb .bbappend .bbclass .inc .conf .py")

// wordsInFiles returns the set of words in all files that bitbake reads, nil if they are too large.
func wordsInFiles(folders []string) map[string]bool {
	all, size := map[string]bool{}, 0
	walkFiles(folders, func(file string) {
		if size > maxMetadataBytes || !slices.Contains(metadataTypes, filepath.Ext(file)) {
			return
		}
		src, err := Read(file)
		if err != nil {
			return
		}
		size += len(src.Text)
		for _, w := range splitNames(src.Text) {
			all[w] = true
		}
	})
	if size > maxMetadataBytes {
		return nil
	}
	return all
}

// containsWord reports whether a file of the layers has the word, or the files are too large.
func (l *checkout) containsWord(word string) bool {
	all := l.words()
	return all == nil || all[word]
}

// splitNames splits a text into words of letters, digits and the signs that names may have.
func splitNames(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.+", r)
	})
}

// matchPattern returns the sorted texts that the star of a pattern matches in the layers' files.
func (l *checkout) matchPattern(pattern string) (all []string) {
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

// filePatterns are the variables whose value is a part of a file's name that bitbake reads.
var filePatterns = map[string][]string{
	"MACHINE":      {"conf/machine/*.conf"},
	"DISTRO":       {"conf/distro/*.conf", "conf/distro/include/*.inc"},
	"TCLIBC":       {"conf/distro/include/tclibc-*.inc"},
	"INIT_MANAGER": {"conf/distro/include/init-manager-*.inc"},
}

// checkInCheckouts checks a statement that names files, recipes or features against the checked out
// layers. Without checkouts it does nothing.
func (c *checker) checkInCheckouts(s Statement) {
	l := c.layers.Checkout
	base, _ := splitOverrides(s.Var)
	rest, versioned := strings.CutPrefix(s.Var, "PREFERRED_VERSION_")
	required := false
	if !versioned {
		rest, required = strings.CutPrefix(s.Var, "REQUIRED_VERSION_")
	}
	c.conditional = isConditional(s.Var)
	defer func() { c.conditional = false }()
	switch {
	case l == nil || s.Flag != "":
	case s.Op == "":
		c.checkRequire(s)
	case filePatterns[s.Var] != nil:
		c.checkFileVariable(s)
	case versioned || required:
		c.checkRecipeVersion(s, rest, required)
	case strings.HasPrefix(base, "VIRTUAL-RUNTIME_"):
		c.checkRuntimeVariable(s, base)
	case base == "DISTRO_FEATURES":
		c.checkDistroFeatures(s)
	case base == "BBMULTICONFIG":
		have := l.matchPattern("conf/multiconfig/*.conf")
		for _, w := range s.Words {
			if !isComputed(w) && !slices.Contains(have, w.Text) {
				c.addFinding(w.At, true, "BBMULTICONFIG has "+w.Text+", and no layer of the project has conf/multiconfig/"+w.Text+".conf", "bitbake stops without that file", suggestNear(slices.Values(have), w.Text, correctName))
			}
		}
	case strings.HasSuffix(base, "IMAGE_FEATURES"):
		c.checkImageFeatures(s)
	case base == "BBMASK":
		for _, w := range s.Words {
			c.checkMask(w)
		}
	}
}

// checkFileVariable adds a finding if a variable such as MACHINE names a file that no layer has. It
// looks only at the statement that decides the variable's value.
func (c *checker) checkFileVariable(s Statement) {
	if d := c.deciding[s.Var]; len(s.Words) != 1 || d == nil || d.At != s.At || isComputed(s.Words[0]) {
		return
	}
	w := s.Words[0]
	var have []string
	for i, pattern := range filePatterns[s.Var] {
		choices := c.layers.Checkout.matchPattern(pattern)
		if slices.Contains(choices, w.Text) {
			return
		}
		if i == 0 {
			have = choices
		}
	}
	if len(have) == 0 || s.Var == "DISTRO" && w.Text == "nodistro" || c.isMissing(machinePrefix+w.Text) && s.Var == "MACHINE" {
		return
	}
	if s.Var == "DISTRO" { // the base of every distro, which is none
		have = slices.DeleteFunc(have, func(name string) bool { return name == "defaultsetup" })
	}
	pattern := strings.Replace(filePatterns[s.Var][0], "*", w.Text, 1)
	otherwise := "write one that the layers have: " + shortList(have)
	if len(have) == 0 {
		otherwise = "remove the line"
	}
	fix := suggestNear(slices.Values(have), w.Text, otherwise)
	c.addFinding(w.At, true, s.Var+" is "+w.Text+", and no layer of the project has "+pattern, "bitbake stops without that file", fix)
}

// shortList joins at most 8 names with commas, and adds "..." for the others.
func shortList(names []string) string {
	if len(names) > 8 {
		names = append(slices.Clone(names[:8]), "...")
	}
	return strings.Join(names, ", ")
}

func numbered(text string) bool { return text != "" && text[0] >= '0' && text[0] <= '9' }

// checkRecipeVersion adds a finding if no file name of a recipe has the preferred or required
// version. A recipe with a file without a version in its name may set any. For an unknown recipe it
// adds a finding only if one of a similar name exists.
func (c *checker) checkRecipeVersion(s Statement, recipe string, required bool) {
	files := c.layers.Checkout.recipes()[recipe]
	if len(s.Words) != 1 || isComputed(s.Words[0]) || strings.Contains(recipe, "$") {
		return
	}
	if files == nil {
		if near := nearestName(maps.Keys(c.layers.Checkout.recipes()), recipe); near != "" && !c.layers.Checkout.containsWord(recipe) {
			c.addFinding(s.At, false, s.Var+" is of a recipe that no layer of the project has", "bitbake reads no version of that recipe", "write "+strings.TrimSuffix(s.Var, recipe)+near+" instead")
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
	slices.SortFunc(have, compareVersions)
	have = slices.Compact(have)
	if len(have) > 0 {
		what, why := s.Var+" is "+w.Text+", and the layers of the project have "+shortList(have), "bitbake warns, and builds another version than the one that you want"
		if required {
			why = "bitbake stops where something needs the recipe"
		}
		c.addFinding(w.At, false, what, why, "write "+have[len(have)-1]+", or add a layer that has "+w.Text)
	}
}

// checkRuntimeVariable reports a VIRTUAL-RUNTIME_* that no layer reads, or with an unknown package.
func (c *checker) checkRuntimeVariable(s Statement, base string) {
	l := c.layers.Checkout
	if !l.containsWord(base) && !strings.ContainsAny(base, "${}") {
		c.addFinding(s.At, false, base+" is a variable that no file of the layers reads", "setting it does nothing", suggestNear(maps.Keys(l.words()), base, "remove the line"))
		return
	}
	for _, w := range s.Words {
		if !isComputed(w) && !l.containsWord(w.Text) && !c.madeByRecipe(w.Text) {
			c.addFinding(w.At, false, base+" is "+w.Text+", a package that no layer of the project names", "bitbake stops where an image installs it: nothing provides it", suggestNear(maps.Keys(l.recipes()), w.Text, correctName))
		}
	}
}

// madeByRecipe reports whether a package's name is a recipe's, or begins with one and a dash:
// recipes write ${PN}-part for the names of their packages.
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

// suggestNear advises to write the name that is close to a wrong one, or else returns otherwise.
func suggestNear(names iter.Seq[string], name, otherwise string) string {
	if near := nearestName(names, name); near != "" {
		return "write " + near + " instead"
	}
	return otherwise
}

// checkDistroFeatures reports features that no layer's file and no other variable names.
func (c *checker) checkDistroFeatures(s Statement) {
	l := c.layers.Checkout
	for _, w := range s.Words {
		if isComputed(w) || l.containsWord(w.Text) || c.usedInConf(w.Text) {
			continue
		}
		c.addFinding(w.At, false, "DISTRO_FEATURES has "+w.Text+", a feature that no file of the layers names", "nothing is built differently for it", suggestNear(maps.Keys(l.words()), w.Text, correctName))
	}
}

// checkImageFeatures reports features that neither a layer nor the configuration names.
func (c *checker) checkImageFeatures(s Statement) {
	base, operation := splitOverrides(s.Var)
	l := c.layers.Checkout
	for _, w := range s.Words {
		packages := "FEATURE_PACKAGES_" + w.Text
		if operation == "remove" || isComputed(w) || w.Text == "debug-tweaks" || l.containsWord(w.Text) || l.containsWord(packages) || c.removed[[2]string{base, w.Text}] || c.deciding[packages] != nil {
			continue
		}
		c.addFinding(w.At, true, base+" has "+w.Text+", a feature that no file of the layers names", "bitbake skips images with an unknown feature, and then nothing provides them", suggestNear(maps.Keys(l.words()), w.Text, correctName))
	}
}

// checkRequire reports a require whose file no layer has.
func (c *checker) checkRequire(s Statement) {
	if s.Var != "require" || len(s.Words) != 1 || strings.ContainsAny(s.Value, "${}*?[") {
		return
	}
	dirs := append([]string{filepath.Dir(s.At.File)}, c.layers.Checkout.folders...)
	if !slices.ContainsFunc(dirs, func(dir string) bool {
		return localfile.IsRegular(filepath.Join(dir, s.Value)) || localfile.IsRegular(filepath.Join(dir, "conf", s.Value)) || filepath.IsAbs(s.Value) && localfile.IsRegular(s.Value)
	}) {
		c.addFinding(s.Words[0].At, true, "require names "+s.Value+", which no layer of the project has", "bitbake stops without that file", "correct the path, or write include if the file may be missing")
	}
}

// usedInConf reports whether a statement names the feature, but not for DISTRO_FEATURES.
func (c *checker) usedInConf(feature string) bool {
	return slices.ContainsFunc(c.statements, func(s Statement) bool {
		base, _ := splitOverrides(s.Var)
		return base != "DISTRO_FEATURES" && slices.Contains(splitNames(s.Value+" "+s.Var), feature)
	})
}

// pythonErrors are the mistakes in a pattern that Python refuses too. Go's others give no finding.
var pythonErrors = []syntax.ErrorCode{
	syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrMissingRepeatArgument, syntax.ErrTrailingBackslash,
}

// checkMask reports a pattern of BBMASK that is no regular expression, or that matches no recipe.
func (c *checker) checkMask(w Word) {
	text := strings.TrimPrefix(w.Text, "|")
	if strings.Contains(text, "${") || text == "" {
		return
	}
	pattern, err := regexp.Compile(text)
	var bad *syntax.Error
	switch {
	case errors.As(err, &bad) && slices.Contains(pythonErrors, bad.Code):
		c.addFinding(w.At, true, "BBMASK has "+w.Text+", which is no regular expression: "+bad.Code.String(), "bitbake masks nothing by it, and ends with an error", `put a \ before a character that stands for itself`)
		return
	case err != nil:
		return
	}
	for _, files := range c.layers.Checkout.recipes() {
		if slices.ContainsFunc(files, pattern.MatchString) {
			return
		}
	}
	c.addFinding(w.At, false, "BBMASK has "+w.Text+", which no recipe's path in the layers has", "it masks nothing", "correct the path, or remove it")
}
