package plan

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/starter"
)

var update = flag.Bool("update", false, "write the table in ci/plan.md")

const (
	oldPin = "1111111111111111111111111111111111111111"
	newPin = "2222222222222222222222222222222222222222"
)

// project is a small project: a board of Debian packages, one of Isar with a layer of its
// own, two of OpenEmbedded that share an include and a layer, and one that extends another.
// SHARED is a real repository from which both include a file.
var project = map[string]string{
	"README.md":                                                "A product.\n",
	"Makefile":                                                 "all:\n",
	".github/workflows/ci.yml":                                 "on: push\n",
	"ci/install.sh":                                            "SLIPWAY=1.0\n",
	"suites/product.yml":                                       "command:\n  true:\n    exit-status: 0\n",
	"suites/lab.yml":                                           "command:\n  false:\n    exit-status: 1\n",
	"kas/common.yml":                                           "header: {version: 14}\nrepos:\n  oe:\n    url: https://example.org/oe\n    branch: main\n    layers: {meta: }\n  product:\n    layers: {layers/meta-product: }\nlocal_conf_header:\n  common: |\n    A = \"1\"\n",
	"kas/common.lock.yml":                                      "header: {version: 14}\noverrides: {repos: {oe: {commit: " + oldPin + "}}}\n",
	"patches/oe.patch":                                         "--- a/x\n+++ b/x\n",
	"boards/debian/board.yml":                                  "extends: virt\ndescription: of Debian packages\nsuites: [product]\ndebian: {hook: ''}\n",
	"boards/debian/overlay/etc/motd":                           "hello\n",
	"boards/isar/board.yml":                                    "extends: isar-amd64\ndescription: of Isar\nsuites: [product]\n",
	"boards/isar/kas.yml":                                      "header: {version: 14}\nbuild_system: isar\nmachine: own\nrepos:\n  isar:\n    url: https://example.org/isar\n    commit: " + oldPin + "\n    layers: {meta: }\n  own:\n    layers: {layers/meta-isar-own: }\n",
	"boards/oe-a/board.yml":                                    "extends: jetson-orin-nano-devkit\ndescription: first\nsuites: [product]\n",
	"boards/oe-a/kas.yml":                                      "header:\n  version: 14\n  includes: [kas/common.yml, {repo: shared, file: inc.yml}]\nmachine: a\nrepos:\n  shared:\n    url: SHARED\n    commit: FIRST\n    layers: {.: disabled}\n  oe:\n    patches: {fix: {repo: product, path: patches/oe.patch}}\n",
	"boards/oe-b/board.yml":                                    "extends: jetson-orin-nano-devkit\ndescription: second\nsuites: [lab]\n",
	"boards/oe-b/kas.yml":                                      "header:\n  version: 14\n  includes: [kas/common.yml]\nmachine: b\n",
	"boards/oe-b/files/logo.png":                               "b\n",
	"boards/oe-b-pro/board.yml":                                "extends: oe-b\ndescription: extends the second\n",
	"boards/oe-b-pro/files/logo.png":                           "pro\n",
	"layers/meta-product/README":                               "A layer.\n",
	"layers/meta-product/conf/layer.conf":                      "BBFILES += \"${LAYERDIR}/recipes-*/*/*.bb\"\n",
	"layers/meta-product/recipes-app/app/app_1.0.bb":           "SRC_URI = \"file://app.conf\"\n",
	"layers/meta-product/recipes-app/app/files/app.conf":       "a\n",
	"layers/meta-isar-own/conf/layer.conf":                     "BBFILES += \"${LAYERDIR}/recipes-*/*/*.bb\"\n",
	"layers/meta-isar-own/conf/machine/own.conf":               "M = \"1\"\n",
	"layers/meta-isar-own/classes/own.bbclass":                 "C = \"1\"\n",
	"layers/meta-isar-own/recipes-core/image/image.bb":         "I = \"1\"\n",
	"layers/meta-isar-own/recipes-core/image/image.inc":        "I = \"1\"\n",
	"layers/meta-isar-own/recipes-core/image/files/fstab":      "f\n",
	"layers/meta-isar-own/recipes-core/image/files/tree/a/b":   "t\n",
	"layers/meta-isar-own/recipes-core/notes.txt":              "n\n",
	"layers/meta-isar-own/recipes-unused/tool/tool_1.0.bb":     "T = \"1\"\n",
	"layers/meta-isar-own/recipes-unused/tool/files/tool.conf": "t\n",
}

// isarInputs is what a build of the board isar read.
var isarInputs = bitbake.Inputs{
	Read: map[string]string{
		"layers/meta-isar-own/recipes-core/image/image.bb":    "image.bb",
		"layers/meta-isar-own/recipes-core/image/image.inc":   "image.bb",
		"layers/meta-isar-own/recipes-core/image/files/fstab": "image.bb",
		"Makefile": "image.bb",
	},
	Folders: map[string]string{"layers/meta-isar-own/recipes-core/image/files/tree": "image.bb"},
	Missing: map[string]string{"layers/meta-isar-own/recipes-core/image/files/own/fstab": "image.bb"},
	Unread: []string{
		"layers/meta-isar-own/classes/own.bbclass",
		"layers/meta-isar-own/recipes-unused/tool/tool_1.0.bb", "layers/meta-isar-own/recipes-unused/tool/files/tool.conf",
	},
}

// clone is a git repository of a test.
type clone struct {
	t   *testing.T
	dir string
}

func newClone(t *testing.T) clone {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := clone{t, dir}
	c.git("init", "-q", "-b", "main")
	return c
}

func (c clone) git(args ...string) string {
	c.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", c.dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z")
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// write writes files; a nil text removes one.
func (c clone) write(files map[string]*string) {
	c.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(c.dir, name)
		if files[name] == nil {
			if err := os.RemoveAll(path); err != nil {
				c.t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(*files[name]), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c clone) commit(subject string) string {
	c.t.Helper()
	c.git("add", "-A")
	c.git("commit", "-q", "--allow-empty", "-m", subject)
	return c.git("rev-parse", "HEAD")
}

// newProject makes the project with its first commit, and the repository that it includes
// a file from: at its first commit, a second that changes nothing in that file, and a third.
func newProject(t *testing.T) (c clone, base string, shared [3]string) {
	t.Helper()
	t.Setenv("SLIPWAY_LOCAL", "")
	s := newClone(t)
	text := "header: {version: 14}\nlocal_conf_header: {shared: 'S = \"1\"'}\n"
	s.write(map[string]*string{"inc.yml": &text})
	shared[0] = s.commit("first")
	shared[1] = s.commit("second")
	text = strings.Replace(text, `"1"`, `"2"`, 1)
	s.write(map[string]*string{"inc.yml": &text})
	shared[2] = s.commit("third")
	c = newClone(t)
	files := map[string]*string{}
	for name, text := range project {
		text = strings.NewReplacer("SHARED", s.dir, "FIRST", shared[0]).Replace(text)
		files[name] = &text
	}
	ignored := "/build\n*.o\n"
	files[".gitignore"] = &ignored
	c.write(files)
	return c, c.commit("base"), shared
}

// constructed is one change of the project.
type constructed struct {
	name    string
	edit    map[string]string // new text; "-" removes, "+x" appends x, "old=>new" replaces
	inputs  bool              // the board isar has left what it read
	edited  bool              // that build was of no commit
	older   map[string]string // edits between that build and the change
	want    map[string]string // "build" or "test", by board
	because string            // in the reasons of each board that is wanted
}

func all(what string) map[string]string {
	return map[string]string{"debian": what, "isar": what, "oe-a": what, "oe-b": what, "oe-b-pro": what}
}

func each(what string, boards ...string) map[string]string {
	m := map[string]string{}
	for _, b := range boards {
		m[b] = what
	}
	return m
}

const isarLayer = "layers/meta-isar-own/"

var changesOfTable = []constructed{
	{name: "the README at the top", edit: map[string]string{"README.md": "+x\n"}},
	{name: "a file that no board names", edit: map[string]string{"Makefile": "+x\n"}},
	{name: "a new file beside the boards", edit: map[string]string{"docs/a.txt": "a"}},
	{name: "an ignored file", edit: map[string]string{"layers/meta-product/a.o": "a"}},
	{name: "the pipeline", edit: map[string]string{".github/workflows/ci.yml": "+x: y\n"}, want: all("build"), because: "is of the pipeline"},
	{name: "which Slipway is used", edit: map[string]string{"ci/install.sh": "1.0=>1.1"}, want: all("build"), because: "ci/install.sh is of the pipeline"},
	{name: "a comment in a board.yml", edit: map[string]string{"boards/oe-a/board.yml": "+# why\n"}},
	{name: "a board's description", edit: map[string]string{"boards/oe-a/board.yml": "first=>1st"}},
	{name: "a board's packages", edit: map[string]string{"boards/debian/board.yml": "{hook: ''}=>{hook: '', remove: [/etc/x]}"}, want: each("build", "debian"), because: "board.yml: debian differs"},
	{name: "a key that the board below inherits", edit: map[string]string{"boards/oe-b/board.yml": "+cache: http://cache.example.org\n"}, want: each("build", "oe-b", "oe-b-pro"), because: "board.yml: cache differs"},
	{name: "how a board is reached", edit: map[string]string{"boards/oe-b/board.yml": "+ssh: {user: admin}\n"}, want: each("test", "oe-b", "oe-b-pro"), because: "board.yml: ssh differs"},
	{name: "a file of the overlay", edit: map[string]string{"boards/debian/overlay/etc/motd": "+x\n"}, want: each("build", "debian"), because: "boards/debian/overlay/etc/motd differs"},
	{name: "a new file of the overlay", edit: map[string]string{"boards/debian/overlay/etc/issue": "x\n"}, want: each("build", "debian"), because: "boards/debian/overlay/etc/issue is new"},
	{name: "a file that the board below replaces", edit: map[string]string{"boards/oe-b/files/logo.png": "+x\n"}, want: each("build", "oe-b"), because: "boards/oe-b/files/logo.png differs"},
	{name: "the file that replaces it", edit: map[string]string{"boards/oe-b-pro/files/logo.png": "-"}, want: each("build", "oe-b-pro"), because: "boards/oe-b-pro/files/logo.png differs"},
	{name: "a suite", edit: map[string]string{"suites/lab.yml": "+# x\n"}, want: each("test", "oe-b", "oe-b-pro"), because: "suite suites/lab.yml differs"},
	{name: "a file beside the suites", edit: map[string]string{"suites/parts/x.yml": "command: {}\n"}, want: all("test"), because: "suites/parts/x.yml is beside its suites"},
	{name: "which suites a board runs", edit: map[string]string{"boards/isar/board.yml": "[product]=>[lab]"}, want: each("test", "isar"), because: "board.yml: suites differs"},
	{name: "a comment in a project file", edit: map[string]string{"boards/isar/kas.yml": "+# why\n"}},
	{name: "a comment in a shared include", edit: map[string]string{"kas/common.yml": "+# why\n"}},
	{name: "a setting in a shared include", edit: map[string]string{"kas/common.yml": `A = "1"=>A = "2"`}, want: each("build", "oe-a", "oe-b", "oe-b-pro"), because: "project: local_conf_header.common differs"},
	{name: "a board's machine", edit: map[string]string{"boards/oe-b/kas.yml": "machine: b=>machine: c"}, want: each("build", "oe-b", "oe-b-pro"), because: "project: machine differs"},
	{name: "an include that only moves", edit: map[string]string{"kas/b.yml": "header: {version: 14, includes: [kas/common.yml]}\n", "boards/oe-b/kas.yml": "[kas/common.yml]=>[kas/b.yml]"}},
	{name: "a pin in a lock file", edit: map[string]string{"kas/common.lock.yml": oldPin + "=>" + newPin}, want: each("build", "oe-a", "oe-b", "oe-b-pro"), because: "repository oe moves from 111111111111 to 222222222222"},
	{name: "a commit in a project file", edit: map[string]string{"boards/isar/kas.yml": oldPin + "=>" + newPin}, want: each("build", "isar"), because: "repository isar moves from 111111111111 to 222222222222"},
	{name: "the pin of a repository with an include", edit: map[string]string{"boards/oe-a/kas.yml": "FIRST=>THIRD"}, want: each("build", "oe-a"), because: "project: local_conf_header.shared differs"},
	{name: "a new repository", edit: map[string]string{"boards/isar/kas.yml": "  own:=>  more: {url: 'https://example.org/more', commit: " + newPin + "}\n  own:"}, want: each("build", "isar"), because: "repository more is new, at 222222222222"},
	{name: "a repository without a pin is gone", older: map[string]string{"boards/isar/kas.yml": "  own:=>  more: {url: 'https://example.org/more', branch: main}\n  own:"}, edit: map[string]string{"boards/isar/kas.yml": "  more: {url: 'https://example.org/more', branch: main}\n=>"}, want: each("build", "isar"), because: "project: repos.more differs"},
	{name: "a project file that is broken", edit: map[string]string{"boards/isar/kas.yml": "machine=>machin"}, want: each("build", "isar"), because: "the board cannot be read"},
	{name: "a patch of a pinned repository", edit: map[string]string{"patches/oe.patch": "+x\n"}, want: each("build", "oe-a"), because: "patch patches/oe.patch differs"},
	{name: "a recipe of a layer that boards share", edit: map[string]string{"layers/meta-product/recipes-app/app/app_1.0.bb": "+x\n"}, want: each("build", "oe-a", "oe-b", "oe-b-pro"), because: "is in layer layers/meta-product (no build on this machine has recorded its inputs)"},
	{name: "a layer's README", edit: map[string]string{"layers/meta-product/README": "+x\n"}},
	{name: "a layer that names files outside", edit: map[string]string{"layers/meta-product/conf/layer.conf": "+X = \"${LAYERDIR}/../../docs\"\n"}, want: each("build", "oe-a", "oe-b", "oe-b-pro"), because: "layers/meta-product/conf/layer.conf: every recipe may use it"},
	{name: "a file outside of a layer that names files outside", older: map[string]string{"layers/meta-product/conf/layer.conf": "+X = \"${LAYERDIR}/../../docs\"\n"}, edit: map[string]string{"docs/a.txt": "a"}, want: each("build", "oe-a", "oe-b", "oe-b-pro"), because: "docs/a.txt is new in layers/meta-product/conf/layer.conf names files outside of its layer"},
	{name: "a recipe, no build here", edit: map[string]string{isarLayer + "recipes-unused/tool/tool_1.0.bb": "+x\n"}, want: each("build", "isar"), because: "no build on this machine has recorded its inputs"},
	{name: "a recipe that the build read", inputs: true, edit: map[string]string{isarLayer + "recipes-core/image/image.bb": "+x\n"}, want: each("build", "isar"), because: "image.bb: image.bb reads it"},
	{name: "an include of that recipe", inputs: true, edit: map[string]string{isarLayer + "recipes-core/image/image.inc": "+x\n"}, want: each("build", "isar"), because: "image.inc: image.bb reads it"},
	{name: "a recipe that the build did not read", inputs: true, edit: map[string]string{isarLayer + "recipes-unused/tool/tool_1.0.bb": "+x\n"}},
	{name: "a file of a recipe that it did not read", inputs: true, edit: map[string]string{isarLayer + "recipes-unused/tool/files/tool.conf": "+x\n"}},
	{name: "a file that it read outside of all layers", inputs: true, edit: map[string]string{"Makefile": "+x\n"}, want: each("build", "isar"), because: "Makefile: image.bb reads it"},
	{name: "a new file in a folder that it read", inputs: true, edit: map[string]string{isarLayer + "recipes-core/image/files/tree/c": "c"}, want: each("build", "isar"), because: "tree/c: image.bb reads it"},
	{name: "a file that it looked for", inputs: true, edit: map[string]string{isarLayer + "recipes-core/image/files/own/fstab": "c"}, want: each("build", "isar"), because: "own/fstab: image.bb reads it"},
	{name: "a new recipe", inputs: true, edit: map[string]string{isarLayer + "recipes-unused/more/more_1.0.bb": "c"}, want: each("build", "isar"), because: "more_1.0.bb is new in layer"},
	{name: "a recipe that it did not read is gone", inputs: true, edit: map[string]string{isarLayer + "recipes-unused/tool/tool_1.0.bb": "-"}, want: each("build", "isar"), because: "tool_1.0.bb is gone in layer"},
	{name: "a file that nothing is known of", inputs: true, edit: map[string]string{isarLayer + "recipes-core/notes.txt": "+x\n"}, want: each("build", "isar"), because: "no recipe of the last build names it"},
	{name: "a layer's configuration", inputs: true, edit: map[string]string{isarLayer + "conf/machine/own.conf": "+x\n"}, want: each("build", "isar"), because: "own.conf: every recipe may use it"},
	{name: "a class that no recipe inherits", inputs: true, edit: map[string]string{isarLayer + "classes/own.bbclass": "+x\n"}, want: each("build", "isar"), because: "own.bbclass: every recipe may use it"},
	{name: "a recipe that an old build did not read", inputs: true, older: map[string]string{isarLayer + "recipes-core/image/image.bb": "+x\n"}, edit: map[string]string{isarLayer + "recipes-unused/tool/tool_1.0.bb": "+x\n"}, want: each("build", "isar"), because: "recipes-core/image/image.bb changed since the last build"},
	{name: "the same, and only the README changed since", inputs: true, older: map[string]string{"README.md": "+x\n"}, edit: map[string]string{isarLayer + "recipes-unused/tool/tool_1.0.bb": "+x\n"}},
	{name: "a recipe that a build of no commit did not read", inputs: true, edited: true, edit: map[string]string{isarLayer + "recipes-unused/tool/tool_1.0.bb": "+x\n"}, want: each("build", "isar"), because: "the last build was of no commit"},
	{name: "a new board", edit: map[string]string{"boards/new/board.yml": "extends: oe-b\n"}, want: each("build", "new"), because: "the board is new"},
	{name: "a board is gone", edit: map[string]string{"boards/oe-b-pro/board.yml": "-", "boards/oe-b-pro/files/logo.png": "-"}},
}

// editsOf returns the files of an edit.
func (c clone) editsOf(edit map[string]string, shared [3]string) map[string]*string {
	c.t.Helper()
	files := map[string]*string{}
	for name, how := range edit {
		how = strings.NewReplacer("FIRST", shared[0], "SECOND", shared[1], "THIRD", shared[2]).Replace(how)
		now, _ := os.ReadFile(filepath.Join(c.dir, name))
		was, is, replaces := strings.Cut(how, "=>")
		switch {
		case how == "-":
			files[name] = nil
			continue
		case strings.HasPrefix(how, "+"):
			how = string(now) + how[1:]
		case replaces:
			if how = strings.Replace(string(now), was, is, 1); how == string(now) {
				c.t.Fatalf("%s has no %q", name, was)
			}
		}
		files[name] = &how
	}
	return files
}

func TestConstructedChanges(t *testing.T) {
	c, base, shared := newProject(t)
	dir := t.TempDir()
	var rows []string
	for i, test := range changesOfTable {
		t.Run(test.name, func(t *testing.T) {
			c := clone{t, c.dir}
			c.git("checkout", "-q", "-f", "-B", fmt.Sprint("case", i), base)
			c.git("clean", "-qffdx")
			opt := images.Options{Dir: filepath.Join(dir, fmt.Sprint(i)), Cache: filepath.Join(dir, "cache")}
			if test.inputs {
				writeInputs(t, opt, base, test.edited)
			}
			c.write(c.editsOf(test.older, shared))
			from := c.commit("older")
			c.write(c.editsOf(test.edit, shared))
			checkPlan(t, c, Options{From: from, Images: opt}, test)
			c.commit("change")
			p := checkPlan(t, c, Options{From: from, To: "HEAD", Images: opt}, test)
			rows = append(rows, row(test, p))
		})
	}
	if len(rows) == len(changesOfTable) {
		checkTable(t, rows)
	}
}

func writeInputs(t *testing.T, opt images.Options, commit string, edited bool) {
	t.Helper()
	in := isarInputs
	in.Commit, in.Edited = commit, edited
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	board := filepath.Join(opt.Dir, "isar")
	if err := os.MkdirAll(board, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(board, bitbake.InputsName), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkPlan checks what the plan of a change says.
func checkPlan(t *testing.T, c clone, opt Options, test constructed) Plan {
	t.Helper()
	p, err := Make(t.Context(), filepath.Join(c.dir, "boards"), opt)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, b := range p.Boards {
		if does := b.neededWork(); does != "-" {
			got[b.Board] = does
		}
		if b.neededWork() != "-" && !slices.ContainsFunc(b.Why, func(why string) bool { return strings.Contains(why, test.because) }) {
			t.Errorf("%s: why = %q; want %q in it", b.Board, b.Why, test.because)
		}
		if b.neededWork() == "-" && len(b.Why) > 0 {
			t.Errorf("%s: why = %q; want none", b.Board, b.Why)
		}
	}
	want := test.want
	if want == nil {
		want = map[string]string{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("to %q: (-want +got)\n%s", opt.To, diff)
	}
	return p
}

// row is a change as a row of the table.
func row(test constructed, p Plan) string {
	var does, why []string
	for _, b := range p.Boards {
		if b.neededWork() != "-" {
			does = append(does, b.neededWork()+" "+b.Board)
			why = b.Why
		}
	}
	if len(does) == len(project0) {
		does = []string{p.Boards[0].neededWork() + " all"}
	}
	reason := ""
	if i := slices.IndexFunc(why, func(w string) bool { return strings.Contains(w, test.because) }); i >= 0 {
		reason = why[i]
	}
	if len(does) == 0 {
		does = []string{"nothing"}
	}
	return fmt.Sprintf("| %s | %s | %s |\n", test.name, strings.Join(does, ", "), strings.ReplaceAll(reason, "|", `\|`))
}

// project0 are the boards of the project.
var project0 = all("")

const (
	page       = "../plan.md"
	tableBegin = "<!-- table: go test ./ci/plan -update -->\n"
	tableEnd   = "<!-- end of table -->\n"
)

// checkTable compares the table of the page with what the changes gave.
func checkTable(t *testing.T, rows []string) {
	t.Helper()
	replaceInPage(t, tableBegin, tableEnd, "| change | boards | why |\n|---|---|---|\n"+strings.Join(rows, ""))
}

// replaceInPage compares a generated part of the page, and writes it with -update.
func replaceInPage(t *testing.T, begin, end, made string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no line %s", page, begin)
	}
	want := before + begin + made + end + after
	switch {
	case *update:
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case want != string(text):
		t.Errorf("%s is old: run go test ./ci/plan -update\n%s", page, cmp.Diff(string(text), want))
	}
}

// The child pipeline includes the file that init writes for GitLab.
func TestGitLabJobs(t *testing.T) {
	if !slices.ContainsFunc(starter.Pipelines["gitlab"], func(f starter.PipelineFile) bool { return f.Path == GitLabJobs }) {
		t.Errorf("init writes %v; want %s among them", starter.Pipelines["gitlab"], GitLabJobs)
	}
}
