package layers

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"slipway/layers/localfile"

	"github.com/google/go-cmp/cmp"
)

// Tests against the real bitbake-setup. It runs as an ordinary user, since
// bitbake, which it runs to enable fragments, refuses root.

func bitbakeSetup(t *testing.T) string {
	t.Helper()
	bitbake := os.Getenv("SLIPWAY_BITBAKE")
	if bitbake == "" {
		t.Skip("SLIPWAY_BITBAKE is not set: it names a git clone of bitbake, here 2.18 or later")
	}
	program := filepath.Join(bitbake, "bin/bitbake-setup")
	if !localfile.Exists(program) {
		t.Skipf("%s is missing: this needs bitbake 2.18 or later", program)
	}
	if !knows(t, program, "_get_remotes") {
		t.Skipf("%s wants remotes where ours writes a uri: this needs bitbake 2.18 or later", program)
	}
	return program
}

// knows says whether a bitbake-setup has a part that not all have.
func knows(t *testing.T, program, part string) bool {
	t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), part)
}

// setupWorld is a folder that bitbake-setup and slipway both set up the same project files in.
type setupWorld struct {
	t            *testing.T
	program, dir string
}

func newSetupWorld(t *testing.T) setupWorld {
	t.Helper()
	w := setupWorld{t: t, program: bitbakeSetup(t)}
	var err error
	if w.dir, err = os.MkdirTemp("", "setup"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(w.dir) })
	if err := os.Chmod(w.dir, 0o777); err != nil { // the other user's too
		t.Fatal(err)
	}
	write(t, w.dir, map[string]string{"home/.gitconfig": "[safe]\n\tdirectory = *\n[user]\n\tname = x\n\temail = x@example.com\n"})
	if err := os.Chmod(filepath.Join(w.dir, "home"), 0o777); err != nil {
		t.Fatal(err)
	}
	return w
}

// repo makes a git repository with a branch main and a tag v1 behind it.
func (w setupWorld) repo(name string, files map[string]string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, "src", name)
	write(w.t, dir, files)
	w.git(dir, "init", "-q", "-b", "main")
	w.git(dir, "add", ".")
	w.git(dir, "commit", "-q", "-m", "one")
	w.git(dir, "tag", "-a", "-m", "first", "v1")
	w.git(dir, "commit", "-q", "--allow-empty", "-m", "two")
}

func (w setupWorld) git(dir string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+filepath.Join(w.dir, "home/.gitconfig"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// theirs sets a project up with bitbake-setup and returns its folder.
func (w setupWorld) theirs(name, file string, args ...string) string {
	w.t.Helper()
	setup := filepath.Join(w.dir, "theirs", name)
	if err := os.MkdirAll(filepath.Dir(setup), 0o777); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(setup), 0o777); err != nil {
		w.t.Fatal(err)
	}
	argv := []string{
		"--setting", "default", "top-dir-prefix", w.dir, "--setting", "default", "top-dir-name", "theirs",
		"init", "--non-interactive", "--setup-dir-name", name, file,
	}
	cmd := exec.Command(w.program, append(argv, args...)...)
	cmd.Dir = w.dir
	cmd.Env = []string{"HOME=" + filepath.Join(w.dir, "home"), "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=en_US.UTF-8"}
	if os.Getuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("bitbake-setup: %v\n%s", err, out)
	}
	return setup
}

// ours sets the same project up and returns it and its folder.
func (w setupWorld) ours(name, file string, choices ...string) (Project, string) {
	w.t.Helper()
	setup := filepath.Join(w.dir, "ours", name)
	ws := Workspace{Dir: filepath.Join(setup, "layers")}
	if len(choices) > 0 {
		file += "#" + strings.Join(choices, ",")
	}
	p, err := Load(w.t.Context(), file, ws)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := Checkout(w.t.Context(), p, ws); err != nil {
		w.t.Fatal(err)
	}
	if err := Configure(p, ws, filepath.Join(setup, "build")); err != nil {
		w.t.Fatal(err)
	}
	return p, setup
}

// confFiles are the files of a build's conf/, but for the user's site.conf and
// what Configure remembers.
func confFiles(t *testing.T, setup string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(filepath.Join(setup, "build/conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "site.conf" && e.Name() != writtenFile {
			files[e.Name()] = conf(t, filepath.Join(setup, "build"), e.Name())
		}
	}
	return files
}

// same compares what both made, with the paths of one put into those of the other.
func (w setupWorld) same(theirs, ours string, local map[string]string) {
	w.t.Helper()
	paths := []string{}
	for name, path := range local {
		paths = append(paths, filepath.Join(theirs, "layers", name), path)
	}
	paths = append(paths, theirs, ours)
	put := strings.NewReplacer(paths...)
	want := confFiles(w.t, theirs)
	for name, text := range want {
		want[name] = put.Replace(text)
	}
	if diff := cmp.Diff(want, confFiles(w.t, ours)); diff != "" {
		w.t.Errorf("conf/: (-theirs +ours)\n%s", diff)
	}
	checkouts, err := filepath.Glob(filepath.Join(ours, "layers/*/.git"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, git := range checkouts {
		name := filepath.Base(filepath.Dir(git))
		a, b := w.git(filepath.Join(theirs, "layers", name), "rev-parse", "HEAD"), w.git(filepath.Dir(git), "rev-parse", "HEAD")
		if a != b {
			w.t.Errorf("%s is at %s; want %s", name, b, a)
		}
	}
}

const worldSources = `
"core": {"git-remote": {"uri": "file://%[1]s/src/core", "branch": "main", "rev": "main"}},
"meta-é": {"path": "meta-b", "git-remote": {"remotes": {"origin": {"uri": "file://%[1]s/src/meta-b"}}, "branch": "main", "rev": "v1"}},
"here": {"local": {"path": "%[1]s/src/here"}}`

const worldConfigurations = `{
  "description": "A <b> & 'c' 😀 ", "notes": ["one"],
  "bb-layers": ["core/./meta", "meta-b"], "bb-layers-file-relative": ["../src/here/../../own"],
  "configurations": [
    {"name": "plain", "description": "plain"},
    {"name": "more", "description": "more", "notes": ["two", "ü"], "bb-layers": ["here/meta-here"], "bb-env-passthrough-additions": ["BUILD_ID"]}
  ]}`

// Everything that bitbake-setup writes by itself.
func TestSetupAsBitbakeSetup(t *testing.T) {
	w := newSetupWorld(t)
	w.repo("core", map[string]string{"meta/conf/layer.conf": "", "oe-init-build-env": ":\n", "scripts/oe-setup-build": "#!/bin/false\n"})
	w.repo("meta-b", map[string]string{"conf/layer.conf": ""})
	w.repo("here", map[string]string{"meta-here/conf/layer.conf": ""})
	file := filepath.Join(w.dir, "conf/a.conf.json")
	text := strings.ReplaceAll(setupText(worldSources, worldConfigurations), "%[1]s", w.dir)
	if !knows(t, w.program, `"notes"`) { // bitbake 2.18, which would leave them out
		text = strings.NewReplacer(`"notes": ["one"],`, "", `"notes": ["two", "ü"],`, "").Replace(text)
	}
	write(t, w.dir, map[string]string{
		"conf/a.conf.json":    text,
		"conf/.git/HEAD":      "", // the project's repository ends here
		"own/conf/layer.conf": "",
	})
	if err := os.Rename(filepath.Join(w.dir, "conf/.git"), filepath.Join(w.dir, ".git")); err != nil {
		t.Fatal(err)
	}
	local := map[string]string{"here": filepath.Join(w.dir, "src/here")}
	for _, name := range []string{"plain", "more"} {
		t.Run(name, func(t *testing.T) {
			w := setupWorld{t, w.program, w.dir}
			theirs := w.theirs(name, file, name)
			p, ours := w.ours(name, file, name)
			w.same(theirs, ours, local)
			if name == "more" {
				w.sameDump(p, theirs, ours, local)
			}
		})
	}
	t.Run("lock", func(t *testing.T) { sameLock(setupWorld{t, w.program, w.dir}, file) })
}

// A dump is a bitbake-setup file that both read as the project it was made of.
func (w setupWorld) sameDump(p Project, theirs, ours string, local map[string]string) {
	w.t.Helper()
	flat, err := Dump(p)
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.dir, "conf/flat.conf.json")
	if err := os.WriteFile(file, flat, 0o644); err != nil {
		w.t.Fatal(err)
	}
	w.same(w.theirs("flat", file), ours, local)
	_, again := w.ours("flat", file)
	w.same(theirs, again, local)
}

// A lock of ours is the very file that bitbake-setup writes, and each takes the other's.
func sameLock(w setupWorld, file string) {
	p, _ := w.ours("locked", file, "plain")
	if err := Lock(w.t.Context(), p, Workspace{}, []string{AllPins}); err != nil {
		w.t.Fatal(err)
	}
	ours, err := os.ReadFile(LockFile(p.File))
	if err != nil {
		w.t.Fatal(err)
	}
	theirs, err := os.ReadFile(filepath.Join(w.theirs("locked", file, "plain"), "layers/sources-fixed-revisions.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	if diff := cmp.Diff(string(theirs), string(ours)); diff != "" {
		w.t.Errorf("%s: (-theirs +ours)\n%s", LockFile(p.File), diff)
	}
	before := w.git(filepath.Join(w.dir, "src/core"), "rev-parse", "HEAD")
	w.git(filepath.Join(w.dir, "src/core"), "commit", "-q", "--allow-empty", "-m", "three")
	pinned, setup := w.ours("pinned", file, "plain")
	if r := pinned.Repos[0]; !r.Locked || r.Commit != before || w.git(filepath.Join(setup, "layers/core"), "rev-parse", "HEAD") != before {
		w.t.Errorf("with a lock file: %+v; want it at %s", r, before)
	}
	w.same(w.theirs("pinned", file, "plain", "--source-overrides", LockFile(p.File)), setup, map[string]string{"here": filepath.Join(w.dir, "src/here")})
}

// Fragments, which need the real OpenEmbedded too.
func TestSetupAsOpenEmbedded(t *testing.T) {
	core := os.Getenv("SLIPWAY_OECORE")
	if core == "" {
		t.Skip("SLIPWAY_OECORE is not set: it names a git clone of openembedded-core, whinlatter or later")
	}
	w := newSetupWorld(t)
	w.git(w.dir, "clone", "-q", "--depth=1", "file://"+core, filepath.Join(w.dir, "src/openembedded-core"))
	if err := os.Symlink(os.Getenv("SLIPWAY_BITBAKE"), filepath.Join(w.dir, "src/bitbake")); err != nil {
		t.Fatal(err)
	}
	w.repo("mine", map[string]string{
		"meta-mine/conf/layer.conf":                "BBPATH .= \":${LAYERDIR}\"\nBBFILE_COLLECTIONS += \"mine\"\nBBFILE_PATTERN_mine = \"^${LAYERDIR}/\"\nBBFILES += \"${LAYERDIR}/*.bb\"\n",
		"meta-mine/conf/fragments/some/thing.conf": "BB_CONF_FRAGMENT_SUMMARY = \"s\"\nBB_CONF_FRAGMENT_DESCRIPTION = \"d\"\n",
	})
	file := filepath.Join(w.dir, "oe.conf.json")
	write(t, w.dir, map[string]string{"oe.conf.json": strings.ReplaceAll(setupText(`
"bitbake": {"local": {"path": "@/src/bitbake"}},
"openembedded-core": {"local": {"path": "@/src/openembedded-core"}},
"mine": {"git-remote": {"uri": "file://@/src/mine", "branch": "main", "rev": "main"}}`, `{
  "description": "d", "oe-fragments": ["machine/qemuarm", "mine/some/thing"],
  "oe-fragments-one-of": {"machine": {"description": "m", "options": ["machine/qemux86-64", "machine/qemuarm64"]},
                          "distro": {"description": "d", "options": [{"name": "distro/nodistro"}]}},
  "configurations": [
    {"name": "layers", "bb-layers": ["openembedded-core/meta", "mine/meta-mine"], "oe-fragments": ["core/yocto/sstate-mirror-cdn"]},
    {"name": "plain", "bb-layers": ["openembedded-core/meta", "mine/meta-mine"]}
  ]}`), "@", w.dir)})
	local := map[string]string{"openembedded-core": filepath.Join(w.dir, "src/openembedded-core")}
	for _, name := range []string{"layers", "plain"} {
		t.Run(name, func(t *testing.T) {
			w := setupWorld{t, w.program, w.dir}
			choices := []string{name, "machine/qemuarm64", "distro/nodistro"}
			theirs := w.theirs(name, file, choices...)
			_, ours := w.ours(name, file, choices...)
			w.same(theirs, ours, local)
			if text := confFiles(t, ours)["toolcfg.conf"]; !strings.Contains(text, `OE_FRAGMENTS += "mine/some/thing `) {
				t.Errorf("toolcfg.conf:\n%s\nwant our fragment and no qemuarm", text)
			}
		})
	}
}

// Every configuration that bitbake itself comes with loads, with each first choice.
func TestSetupRegistry(t *testing.T) {
	registry := filepath.Join(filepath.Dir(filepath.Dir(bitbakeSetup(t))), "default-registry/configurations")
	loaded := 0
	err := filepath.WalkDir(registry, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, setupEnding) {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, choices := range firstChoices(t, data) {
			p, err := Load(t.Context(), path+"#"+choices, Workspace{})
			if err != nil || len(p.Repos) < 3 || p.Machine != "qemux86-64" {
				t.Errorf("Load(%s#%s) = %+v, %v; want its repositories and machine", path, choices, p, err)
			}
			loaded++
		}
		return nil
	})
	if err != nil || loaded < 6 {
		t.Errorf("loaded %d configurations of %s, %v; want 6 or more", loaded, registry, err)
	}
}

// firstChoices are the choices of each of a file's configurations, each fragment
// being the first of its list. It knows one level of nesting.
func firstChoices(t *testing.T, data []byte) []string {
	t.Helper()
	type part struct {
		Name           string
		OneOf          map[string]struct{ Options []option } `json:"oe-fragments-one-of"`
		Configurations []part
	}
	var file struct {
		Setup struct{ Configurations []part } `json:"bitbake-setup"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, outer := range file.Setup.Configurations {
		inner := outer.Configurations
		if len(inner) == 0 {
			inner = []part{{}}
		}
		for _, c := range inner {
			words := []string{outer.Name + c.Name}
			for _, key := range slices.Sorted(maps.Keys(outer.OneOf)) {
				words = append(words, outer.OneOf[key].Options[0].name)
			}
			all = append(all, strings.Join(words, ","))
		}
	}
	return all
}

// option is a fragment to choose, described or not.
type option struct{ name string }

func (o *option) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &o.name); err == nil {
		return nil
	}
	var described struct{ Name string }
	err := json.Unmarshal(data, &described)
	o.name = described.Name
	return err
}
