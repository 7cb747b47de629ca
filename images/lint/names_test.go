package lint

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"slipway/layers/plaintext"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write names/*.txt and the golden files anew")

// origin is a layer's repository, and the branches that people build from. NAME=REV
// looks at a commit under a name of its own.
type origin struct {
	layer    string
	branches []string
	packages bool // of its packages too; of the others only recipes that come and go
	settings bool // of its classes and types of images, and its versions of gcc
}

var origins = []origin{
	{"meta-tegra", []string{
		"thud-l4t-r32.1", "thud-l4t-r32.3.1", "warrior", "warrior-l4t-r32.2", "zeus",
		"zeus-l4t-r32.3.1@2020-03=f3433a73~1", // before CUDA's recipes were split
		"zeus-l4t-r32.3.1", "dunfell-l4t-r32.3.1", "dunfell-l4t-r32.4.2", "dunfell-l4t-r32.4.3", "dunfell-l4t-r32.5.0", "dunfell-l4t-r32.6.1",
		"dunfell", "gatesgarth", "hardknott", "honister", "kirkstone-l4t-r32.7.x", "kirkstone", "langdale", "mickledore", "nanbield",
		"scarthgap-l4t-r35.x", "scarthgap", "styhead", "walnascar", "whinlatter", "master-l4t-r38.2.x", "master-l4t-r38.4.x", "wrynose", "master",
	}, true, true},
	{"meta-tegra-community", []string{
		"dunfell-l4t-r32.4.3", "dunfell-l4t-r32.5.0", "dunfell-l4t-r32.6.1", "dunfell", "hardknott", "honister", "kirkstone-l4t-r32.7.x", "kirkstone",
		"langdale", "mickledore", "nanbield", "scarthgap-l4t-r35.x", "scarthgap", "styhead", "walnascar", "whinlatter", "master-l4t-r38.2.x",
		"master-l4t-r38.4.x", "wrynose", "master",
	}, true, true},
	{"meta-virtualization", series, true, false},
	{"openembedded-core", series, false, true},
	{"meta-openembedded", series, false, true},
}

// The tables are what the layers' repositories hold. SLIPWAY_LAYER_CLONES is
// NAME=FOLDER,..., one git clone for each of the layers:
//
//	SLIPWAY_LAYER_CLONES=meta-tegra=/src/meta-tegra,... go test ./images/lint -run TestNames -update
func TestNames(t *testing.T) {
	clones := clonesOf(os.Getenv("SLIPWAY_LAYER_CLONES"))
	for _, o := range origins {
		if clones[o.layer] == "" {
			t.Skipf("SLIPWAY_LAYER_CLONES has no %s: it is NAME=FOLDER,... with git clones of %v and their branches", o.layer, layerNames())
		}
	}
	var all []layerNamesOf
	for _, o := range origins {
		all = append(all, readLayer(t, clones[o.layer], o))
	}
	wanted := vocabulary(all)
	for _, l := range all {
		text := l.table(wanted)
		file := filepath.Join("names", l.layer+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(have), "\n"), strings.Split(text, "\n")); diff != "" {
			t.Errorf("%s is not what the clones hold; look at the difference and run this with -update (-file +clones)\n%.4000s", file, diff)
		}
	}
}

func layerNames() (all []string) {
	for _, o := range origins {
		all = append(all, o.layer)
	}
	return all
}

func clonesOf(list string) map[string]string {
	m := map[string]string{}
	for _, pair := range strings.Split(list, ",") {
		name, dir, _ := strings.Cut(pair, "=")
		m[name] = dir
	}
	return m
}

type layerNamesOf struct {
	origin
	recipes map[string]uint64
	all     map[string]uint64 // recipes, packages, machines
}

func readLayer(t *testing.T, clone string, o origin) layerNamesOf {
	l := layerNamesOf{o, map[string]uint64{}, map[string]uint64{}}
	l.branches = nil
	files := &blobs{t: t, clone: clone, seen: map[string]string{}}
	for i, branch := range o.branches {
		name, rev, ok := strings.Cut(branch, "=")
		if !ok {
			rev = name
		}
		l.branches = append(l.branches, name)
		b := files.branch(rev)
		for file := range b.ids {
			b.names(file, func(name string, recipe bool) {
				if setting(name) && !o.settings {
					return
				}
				l.all[name] |= 1 << i
				if recipe {
					l.recipes[name] |= 1 << i
				}
			})
		}
	}
	return l
}

// vocabulary is what a table speaks of at all: the names of layers whose packages
// count, and of the other layers' recipes those that come or go.
func vocabulary(all []layerNamesOf) map[string]bool {
	wanted := map[string]bool{}
	for _, l := range all {
		every := uint64(1)<<len(l.branches) - 1
		for name, set := range l.all {
			recipe := l.recipes[name] != 0
			if l.packages && !strings.HasSuffix(name, "-*") || recipe && set != every || setting(name) {
				wanted[name] = true
				if rest, ok := strings.CutPrefix(name, "python-"); ok {
					wanted["python3-"+rest] = true // what stands in its place
				}
			}
		}
	}
	return wanted
}

func (l layerNamesOf) table(wanted map[string]bool) string {
	var b strings.Builder
	b.WriteString("# Written by TestNames: which names the branches of this layer have, as bits, the first branch the lowest.\n")
	fmt.Fprintf(&b, "%s%s\n", branchesMark, strings.Join(l.branches, " "))
	for _, name := range slices.Sorted(maps.Keys(l.all)) {
		if wanted[name] || speaksOf(name, wanted) {
			fmt.Fprintf(&b, "%s %x\n", name, l.all[name])
		}
	}
	return b.String()
}

// speaksOf is true for a name with a star that stands for a name of the vocabulary.
func speaksOf(name string, wanted map[string]bool) bool {
	prefix, ok := strings.CutSuffix(name, "*")
	if !ok {
		return false
	}
	for w := range wanted {
		if strings.HasPrefix(w, prefix) {
			return true
		}
	}
	return false
}

// blobs are the files of a clone by their ids.
type blobs struct {
	t     *testing.T
	clone string
	seen  map[string]string
}

type branchFiles struct {
	blobs *blobs
	ids   map[string]string // path to id
	class map[string]string // name to path
}

func (b *blobs) git(stdin string, args ...string) []byte {
	b.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", b.clone}, args...)...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("git %v in %s: %v", args, b.clone, err)
	}
	return out
}

var (
	metadata = plaintext.Regexp(`\.(bb|inc|bbclass|bbappend)$|conf/machine/[^/]+\.conf$|layers/[^/]+/conf/[a-z]+/.*\.(conf|inc)$|local\.conf\.sample$`)
	// The layer contrib of meta-tegra has older versions of gcc.
	contribGCC = "contrib/recipes-devtools/gcc"
	aside      = plaintext.Regexp(`^(contrib|meta-skeleton|meta-selftest)/|/lib/oeqa/`) // layers of their own
)

func (b *blobs) branch(rev string) branchFiles {
	f := branchFiles{b, map[string]string{}, map[string]string{}}
	var lacking []string
	for _, entry := range strings.Split(string(b.git("", "ls-tree", "-r", "-z", rev)), "\x00") {
		head, file, _ := strings.Cut(entry, "\t")
		fields := strings.Fields(head)
		if len(fields) != 3 || fields[1] != "blob" || !metadata().MatchString(file) || aside().MatchString(file) && !strings.HasPrefix(file, contribGCC) {
			continue
		}
		f.ids[file] = fields[2]
		if name, ok := strings.CutSuffix(path.Base(file), ".bbclass"); ok {
			f.class[name] = file
		}
		if _, ok := b.seen[fields[2]]; !ok {
			lacking = append(lacking, fields[2])
		}
	}
	b.read(lacking)
	return f
}

// read takes many blobs out of the clone at once.
func (b *blobs) read(ids []string) {
	out := bytes.NewBuffer(b.git(strings.Join(ids, "\n")+"\n", "cat-file", "--batch"))
	for range ids {
		head, err := out.ReadString('\n')
		fields := strings.Fields(head)
		if err != nil || len(fields) != 3 {
			b.t.Fatalf("git cat-file said %q, %v", head, err)
		}
		size, _ := strconv.Atoi(fields[2])
		text := make([]byte, size+1)
		if _, err := io.ReadFull(out, text); err != nil {
			b.t.Fatal(err)
		}
		b.seen[fields[0]] = withoutFunctions(string(text))
	}
}

var function = plaintext.Regexp(`^(python|fakeroot| )*[A-Za-z0-9_:.${}+-]*\s*\(\)\s*\{`)

// withoutFunctions leaves of a recipe what a configuration file may hold too.
func withoutFunctions(text string) string {
	var b strings.Builder
	inside, def := false, false
	for line := range strings.Lines(text) {
		switch {
		case inside:
			inside = !strings.HasPrefix(line, "}")
			continue
		case function().MatchString(line):
			if name, _, _ := strings.Cut(line, " "); typeCommand().MatchString(name) {
				b.WriteString(strings.TrimSuffix(name, "()") + " = \"\"\n")
			}
			inside = !strings.HasSuffix(strings.TrimSpace(line), "}")
			continue
		case strings.HasPrefix(line, "def "):
			def = true
			continue
		case def && (strings.TrimSpace(line) == "" || strings.IndexByte(" \t#", line[0]) >= 0):
			continue
		}
		def = false
		b.WriteString(line)
	}
	return b.String()
}

// names calls found for every name that a file gives to the branch.
func (f branchFiles) names(file string, found func(name string, recipe bool)) {
	base := path.Base(file)
	if strings.HasPrefix(file, contribGCC) {
		if pv, ok := strings.CutPrefix(base, "gcc_"); ok {
			found(gccPrefix+strings.TrimSuffix(pv, ".bb"), false)
		}
		return
	}
	switch path.Ext(file) {
	case ".conf":
		found("machine:"+strings.TrimSuffix(base, ".conf"), false)
	case ".bbclass":
		found(classPrefix+strings.TrimSuffix(base, ".bbclass"), false)
		for _, name := range imageTypes(f.blobs.seen[f.ids[file]]) {
			found(typePrefix+name, false)
		}
	case ".bb", ".bbappend":
		pn, pv, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(base, "append"), ".bb"), "_")
		if strings.HasSuffix(pn, "-native") || strings.HasPrefix(pn, "nativesdk-") || strings.Contains(pn, "%") {
			return
		}
		if path.Ext(file) == ".bb" {
			found(pn, true)
		}
		if pn == "gcc" {
			found(gccPrefix+pv, false)
		}
		if pn == "mesa" { // which its code adds to RPROVIDES
			for _, name := range words("libegl libgl libgles1 libgles2 libgles3 libglx") {
				found(name, false)
			}
		}
		r := recipe{files: f, vars: map[string]string{"PN": pn, "BPN": pn, "PV": pv}, weak: map[string]bool{}, read: map[string]bool{}}
		r.file(file)
		for _, name := range r.packages() {
			found(name, false)
		}
	}
}

// setting is true for a class, a type of images or a version of gcc.
func setting(name string) bool {
	return strings.Contains(name, ":") && !strings.HasPrefix(name, machinePrefix)
}

// imageTypes are the types of images, and the conversions of them, that a class knows.
func imageTypes(text string) []string {
	statements, _, err := parseConf(Source{Text: text})
	if err != nil {
		return nil
	}
	var all []string
	for _, s := range statements {
		if m := typeCommand().FindStringSubmatch(s.Var); m != nil {
			all = append(all, m[1])
		}
		if s.Var == "IMAGE_TYPES" || s.Var == "CONVERSIONTYPES" || s.Var == "COMPRESSIONTYPES" {
			for _, w := range s.Words {
				if plain().MatchString(w.Text) {
					all = append(all, w.Text)
				}
			}
		}
	}
	return all
}

// recipe is what a recipe and all that it includes assign.
type recipe struct {
	files branchFiles
	vars  map[string]string
	weak  map[string]bool
	read  map[string]bool
	lists []string // values that name packages
}

func (r *recipe) file(file string) {
	id, ok := r.files.ids[file]
	if !ok || r.read[file] {
		return
	}
	r.read[file] = true
	statements, _, err := parseConf(Source{File: file, Text: r.files.blobs.seen[id]})
	if err != nil {
		r.files.blobs.t.Fatal(err)
	}
	for _, s := range statements {
		r.statement(path.Dir(file), s)
	}
}

var naming = plaintext.Regexp(`^(PACKAGES|PACKAGE_BEFORE_PN|PROVIDES|RPROVIDES|PACKAGES_DYNAMIC)([:_].*)?$`)

func (r *recipe) statement(dir string, s Statement) {
	switch {
	case s.Var == "require" || s.Var == "include":
		target := r.expand(s.Value)
		for _, at := range []string{path.Join(dir, target), target} {
			r.file(at)
		}
		for file := range r.files.ids {
			if strings.HasSuffix(file, "/"+target) {
				r.file(file)
			}
		}
	case s.Var == "inherit":
		for _, name := range strings.Fields(r.expand(s.Value)) {
			r.file(r.files.class[name])
		}
	case s.Flag != "" || s.Op == "":
	case strings.HasPrefix(s.Var, "PACKAGES_DYNAMIC"):
		for _, w := range s.Words {
			prefix, _, _ := strings.Cut(strings.TrimPrefix(w.Text, "^"), ".*")
			if i := strings.LastIndexByte(prefix, '-'); i > 0 { // as of ^util-linux-lib.*
				prefix = prefix[:i]
			}
			r.lists = append(r.lists, prefix+"-*")
		}
	case naming().MatchString(s.Var):
		r.lists = append(r.lists, s.Value)
	default:
		for _, prefix := range []string{"FILES", "ALLOW_EMPTY", "RDEPENDS"} {
			if rest, ok := strings.CutPrefix(s.Var, prefix); ok && rest != "" && strings.IndexByte("_:", rest[0]) >= 0 {
				name := rest[1:]
				for _, cut := range []string{":", "_append", "_prepend", "_remove", "_class-", "_tegra"} {
					name, _, _ = strings.Cut(name, cut)
				}
				r.lists = append(r.lists, name)
			}
		}
	}
	if s.Flag == "" && (s.Op == "=" || s.Op == ":=" || s.Op == "?=" || s.Op == "??=") {
		weak := strings.HasPrefix(s.Op, "?")
		if _, set := r.vars[s.Var]; !set || !weak || r.weak[s.Var] && s.Op == "?=" {
			r.vars[s.Var], r.weak[s.Var] = s.Value, s.Op == "??="
		}
	}
}

var (
	python   = plaintext.Regexp(`\$\{@[^{}]*(\{[^{}]*\}[^{}]*)*\}`)
	variable = plaintext.Regexp(`\$\{([^{}@]+)\}`)
	plain    = plaintext.Regexp(`^[a-z0-9][a-z0-9+.-]*(-\*)?$`)
)

func (r *recipe) expand(text string) string {
	text = python().ReplaceAllString(text, " ")
	for range 8 {
		next := variable().ReplaceAllStringFunc(text, func(v string) string { return r.vars[v[2:len(v)-1]] })
		if next = python().ReplaceAllString(next, " "); next == text {
			break
		}
		text = next
	}
	return text
}

// packages are the names that are surely names: no patterns, and none that bitbake
// makes for every recipe.
func (r *recipe) packages() []string {
	var all []string
	for _, list := range r.lists {
		for _, name := range strings.Fields(r.expand(list)) {
			if plain().MatchString(name) && recipeStem(name) == name && !strings.HasSuffix(name, "-native") && !strings.HasPrefix(name, "nativesdk-") && len(name) > 2 {
				all = append(all, name)
			}
		}
	}
	return all
}
