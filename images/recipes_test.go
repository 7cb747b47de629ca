package images

import (
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"

	"github.com/google/go-cmp/cmp"
)

// Yocto compiles the hook from modules that its recipe lists; a list that is
// behind the hook's go.mod would stop that build long after it began.
func TestHookRecipeListsTheHooksModules(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not in PATH")
	}
	vendor := filepath.Join(t.TempDir(), "vendor")
	cmd := exec.Command("go", "mod", "vendor", "-o", vendor)
	cmd.Dir = "../runtime-hook"
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go mod vendor: %v\n%s", err, out)
	}
	want, err := os.ReadFile(filepath.Join(vendor, "modules.txt"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../recipes/slipway-hook/files/modules.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("recipes/slipway-hook/files/modules.txt is not what go mod vendor writes; fix it and the SRCREVs of slipway-hook.bb: (-want +got)\n%s", diff)
	}
}

// Yocto 5.0 has Go 1.22.12, and the recipe for Yocto 4.0 brings the same one.
func TestHookIsForYoctosGo(t *testing.T) {
	brought, err := filepath.Glob("../recipes/slipway-go/slipway-go-native_*.bb")
	if err != nil || len(brought) != 1 {
		t.Fatalf("recipes of slipway-go-native are %v, %v; want one", brought, err)
	}
	has, _ := strings.CutPrefix(strings.TrimSuffix(filepath.Base(brought[0]), ".bb"), "slipway-go-native_")
	for _, file := range []string{"../runtime-hook/go.mod", "../recipes/slipway-hook/files/modules.txt"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		wants := goVersion().FindAllStringSubmatch(string(text), -1)
		if len(wants) == 0 {
			t.Errorf("%s names no version of Go", file)
		}
		for _, want := range wants {
			if version.Compare("go"+want[1], "go"+has) > 0 {
				t.Errorf("%s wants Go %s; Yocto 5.0 has 1.22.12 and slipway-go-native %s", file, want[1], has)
			}
		}
	}
}

var goVersion = plaintext.Regexp(`(?m)^(?:## explicit; )?go (\d+(?:\.\d+)+)$`)

// A recipe whose file is missing, or whose source is not locked, would stop a build that
// bitbake began; and what was tried stands where a reader looks first.
func TestRecipesAreWhole(t *testing.T) {
	var recipes []string
	for _, pattern := range []string{"../recipes/*/*.bb", "../recipes/dynamic-layers/*/*/*.bb"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("recipes in %s: %v, %v", pattern, found, err)
		}
		recipes = append(recipes, found...)
	}
	for _, recipe := range recipes {
		data, err := os.ReadFile(recipe)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if !strings.HasPrefix(text, "# ") {
			t.Errorf("%s: it does not begin with a comment that says what was tried", recipe)
		}
		for _, field := range []string{"SUMMARY", "LICENSE"} {
			if !regexp.MustCompile(`(?m)^`+field+` \??= "`).MatchString(text) && !requires().MatchString(text) {
				t.Errorf("%s: it has no %s", recipe, field)
			}
		}
		for _, source := range gitSource().FindAllString(text, -1) {
			if !strings.Contains(source, ";branch=") || !strings.Contains(source, ";protocol=https") {
				t.Errorf("%s: %s names no branch, or no protocol", recipe, source)
			}
		}
		for _, revision := range gitRevision().FindAllStringSubmatch(text, -1) {
			if !wholeCommit().MatchString(revision[1]) {
				t.Errorf("%s: SRCREV %q is no whole commit", recipe, revision[1])
			}
		}
		for _, file := range localFile().FindAllStringSubmatch(text, -1) {
			if !hasFile(recipe, text, file[1]) {
				t.Errorf("%s: there is no file %s", recipe, file[1])
			}
		}
	}
}

var (
	requires    = plaintext.Regexp(`(?m)^require |^inherit slipway-csv`)
	gitSource   = plaintext.Regexp(`git://[^\s"]+`)
	gitRevision = plaintext.Regexp(`(?m)^SRCREV(?:_[a-z]+)? = "([^"]*)"`)
	// Those of SRC_URI, not those whose licences are proved.
	localFile = plaintext.Regexp(`file://([^\s"$;]+)(?:[\s"]|;subdir)`)
)

// hasFile looks where bitbake does, and where the recipe says that files are too.
func hasFile(recipe, text, name string) bool {
	dir := filepath.Dir(recipe)
	places := []string{filepath.Join(dir, "files"), strings.TrimSuffix(recipe, ".bb")}
	if strings.Contains(text, `FILESEXTRAPATHS:prepend := "${THISDIR}/../..:"`) {
		places = append(places, filepath.Join(dir, "../.."))
	}
	if strings.Contains(text, `FILESEXTRAPATHS:prepend := "${SLIPWAY_BOOTIMAGES}:"`) {
		return true // the user's
	}
	for _, place := range places {
		if localfile.Exists(filepath.Join(place, name)) {
			return true
		}
	}
	return false
}

// A recipe that no layer reads is never built. One that both layers read warns twice.
func TestEachRecipeIsOfOneLayer(t *testing.T) {
	layersOf := map[string][]string{}
	for _, layer := range []string{"meta-slipway", "meta-slipway-bsp"} {
		dir := filepath.Join("../layers", layer)
		conf, err := os.ReadFile(filepath.Join(dir, "conf/layer.conf"))
		if err != nil {
			t.Fatal(err)
		}
		for _, glob := range layerGlob().FindAllStringSubmatch(string(conf), -1) {
			found, err := filepath.Glob(filepath.Join(dir, glob[1]))
			if err != nil || len(found) == 0 {
				t.Errorf("%s: %s matches no file (%v)", layer, glob[1], err)
			}
			for _, file := range found {
				layersOf[file] = append(layersOf[file], layer)
			}
		}
	}
	for _, root := range []string{"../recipes", "../images"} {
		err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			ext := filepath.Ext(path)
			if (ext == ".bb" || ext == ".bbappend") && !strings.Contains(path, "/testdata/") && len(layersOf[path]) != 1 {
				t.Errorf("%s: layers %v read it; want one", path, layersOf[path])
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

var layerGlob = plaintext.Regexp(`\$\{LAYERDIR\}/(\.\./\S+)`)

// styleGuide is the order of variables in the recipe style guide of the Yocto Project. A
// recipe may leave each of them out.
var styleGuide = []string{
	"SUMMARY", "DESCRIPTION", "HOMEPAGE", "BUGTRACKER", "SECTION", "LICENSE", "LIC_FILES_CHKSUM",
	"DEPENDS", "PROVIDES", "PV", "SRC_URI", "SRCREV", "S", "inherit", "EXTRA_OECONF", "PACKAGECONFIG",
	"PACKAGE_ARCH", "PACKAGES", "FILES", "RDEPENDS", "RRECOMMENDS", "RSUGGESTS", "RPROVIDES", "RCONFLICTS",
	"BBCLASSEXTEND",
}

// findStyle returns what a recipe has against the style guide.
func findStyle(name, text string) []string {
	var wrong []string
	for _, wanted := range []string{"SUMMARY", "DESCRIPTION", "SECTION"} {
		if wanted == "SECTION" && !strings.Contains(name, "/recipes/") {
			continue // image.bbclass has one for all images
		}
		if !regexp.MustCompile(`(?m)^` + wanted + ` = "`).MatchString(text) {
			wrong = append(wrong, "it has no "+wanted)
		}
	}
	if summary := recipeSummary().FindStringSubmatch(text); summary != nil && len(summary[1]) > 80 {
		wrong = append(wrong, "its SUMMARY has more than 80 characters")
	}
	last := 0
	for _, match := range recipeVariable().FindAllStringSubmatch(text, -1) {
		at := slices.Index(styleGuide, match[1])
		switch {
		case at < 0, match[1] == "SUMMARY" && match[2] != "": // of another package
			continue
		case match[1] == "PACKAGE_ARCH" && strings.Contains(text, "inherit packagegroup"):
			continue // packagegroup.bbclass reads it
		}
		if at < last {
			wrong = append(wrong, match[1]+" stands behind "+styleGuide[last])
		}
		last = max(last, at)
	}
	return wrong
}

var (
	recipeSummary  = plaintext.Regexp(`(?m)^SUMMARY = "(.*)"$`)
	recipeVariable = plaintext.Regexp(`(?m)^(inherit|[A-Z_]+)((?:[:_][^\s=]+)?)(?: \S*= "| [a-z$])`)
)

func TestRecipesFollowTheStyleGuide(t *testing.T) {
	for _, pattern := range []string{"../recipes/*/*.bb", "../recipes/dynamic-layers/*/*/*.bb", "*.bb"} {
		recipes, err := filepath.Glob(pattern)
		if err != nil || len(recipes) == 0 {
			t.Fatalf("recipes in %s: %v, %v", pattern, recipes, err)
		}
		for _, recipe := range recipes {
			text, err := os.ReadFile(recipe)
			if err != nil {
				t.Fatal(err)
			}
			for _, wrong := range findStyle(recipe, string(text)) {
				t.Errorf("%s: %s", recipe, wrong)
			}
		}
	}
}
