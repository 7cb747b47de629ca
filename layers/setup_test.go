package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/yaml"

	"github.com/google/go-cmp/cmp"
)

// setupText is a bitbake-setup file with these sources and configurations.
func setupText(sources, configurations string) string {
	return fmt.Sprintf(`{"version": "1.0", "description": "d", "sources": {%s}, "bitbake-setup": {"configurations": [%s]}}`, sources, configurations)
}

const (
	setupCore = `"oe": {"git-remote": {"uri": "https://example.com/oe", "branch": "wrynose", "rev": "wrynose"}}`
	setupOne  = `{"name": "one", "description": "d", "bb-layers": ["oe/meta"]}`
)

// Every key, of two configurations in one that both add to it.
const setupWhole = `{
  "description": "All that there is", "version": "1.0", "expires": "2999-12-31",
  "sources": {
    "oe": {"git-remote": {"uri": "https://example.com/oe", "branch": "wrynose", "rev": "wrynose", "describe": "x"}},
    "tagged": {"path": "deep/er", "contains_this_file": true, "git-remote": {
       "remotes": {"origin": {"uri": "https://example.com/first"}, "other": {"uri": "https://example.com/last"}},
       "branch": "main", "rev": "v1.0"}},
    "pinned": {"git-remote": {"uri": "u", "branch": "main", "rev": "0e12345678901234567890123456789012345678"}},
    "any": {"git-remote": {"uri": "v", "rev": "refs/tags/v2"}},
    "here": {"local": {"path": "/opt/here"}}
  },
  "bitbake-setup": {"configurations": [{
    "name": "board-", "description": "a board ", "setup-dir-name": "$machine-here",
    "bb-layers": ["oe/meta", "deep/er/meta-b"], "bb-env-passthrough-additions": ["BUILD_ID"],
    "oe-fragments": ["core/first"],
    "oe-fragments-one-of": {
      "machine": {"description": "m", "options": ["machine/qemux86-64", "machine/qemuarm64"]},
      "distro": {"description": "d", "options": [{"name": "distro/poky", "description": "p"}, {"name": "distro/tiny"}]}},
    "configurations": [
      {"name": "a", "description": "of kind a", "notes": ["one", "two"], "bb-layers": ["here"], "bb-layers-file-relative": ["../own"],
       "oe-fragments": [{"name": "core/second"}, "machine/other"], "bb-env-passthrough-additions": ["TOKEN"]},
      {"name": "b", "description": "of kind b", "install-buildtools": {"url": "u", "sha256sum": "s"}}
    ]
  }]}
}`

func setupProject(t *testing.T, files map[string]string, name string) (Project, string, error) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	p, err := Load(t.Context(), filepath.Join(dir, name), Workspace{Dir: filepath.Join(dir, "layers")})
	return p, dir, err
}

func TestLoadSetup(t *testing.T) {
	files := map[string]string{
		".git/HEAD":             "",
		"own/conf/layer.conf":   "",
		"setup/board.conf.json": setupWhole,
		"setup/sources-fixed-revisions.json": `{"sources": {"oe": {"git-remote": {"uri": "https://example.org/oe", "branch": "wrynose", "rev": "1111111111111111111111111111111111111111"}},
"gone": {"local": {"path": "x"}}}}`,
	}
	p, dir, err := setupProject(t, files, "setup/board.conf.json#board-a,distro/poky,machine/qemuarm64")
	if err != nil {
		t.Fatal(err)
	}
	want := Project{
		File: filepath.Join(dir, "setup/board.conf.json#board-a,distro/poky,machine/qemuarm64"), Root: dir,
		BuildSystem: "openembedded", Machine: "qemuarm64", Distro: "poky", Targets: []string{"core-image-minimal"}, Task: "build",
		Repos: []Repo{
			{Remote: git.Remote{ID: "oe", URL: "https://example.org/oe", Branch: "wrynose", Commit: strings.Repeat("1", 40)}, Name: "oe", Path: "oe", Locked: true, Layers: []Layer{{Name: "meta"}}},
			{Remote: git.Remote{ID: "tagged", URL: "https://example.com/last", Tag: "v1.0"}, Name: "deep/er", Path: "deep/er", Layers: []Layer{{Name: "meta-b"}}},
			{Remote: git.Remote{ID: "pinned", URL: "u", Branch: "main", Commit: sha}, Name: "pinned", Path: "pinned"},
			{Remote: git.Remote{ID: "any", URL: "v", Tag: "v2"}, Name: "any", Path: "any"},
			{Remote: git.Remote{ID: "here"}, Name: "here", Path: "/opt/here", Layers: []Layer{{Name: "."}}},
			{Remote: git.Remote{ID: "."}, Name: filepath.Base(dir), Layers: []Layer{{Name: "own"}}},
		},
		Env: map[string]*string{"BUILD_ID": nil, "TOKEN": nil},
		Warnings: []string{
			filepath.Join(dir, "setup/sources-fixed-revisions.json") + ":2:9: sources.gone is not in the project file; as with bitbake-setup, it is not used",
			filepath.Join(dir, "setup/sources-fixed-revisions.json") + ":1:20: sources.oe comes from https://example.org/oe here and from https://example.com/oe in the project file; as with bitbake-setup, this file takes precedence; layers lock rewrites it from the project file",
		},
	}
	ignore := cmp.FilterPath(func(p cmp.Path) bool {
		name := p.Last().String()
		return name == ".At" || name == ".CommitAt" || name == ".setup" || name == ".read"
	}, cmp.Ignore())
	if diff := cmp.Diff(want, p, ignore, cmp.AllowUnexported(Project{}, Repo{})); diff != "" {
		t.Errorf("Load: (-want +got)\n%s", diff)
	}
	fragments := []string{"core/first", "core/second", "distro/poky", "machine/qemuarm64"}
	if diff := cmp.Diff(fragments, p.setup.fragments); diff != "" {
		t.Errorf("fragments: (-want +got)\n%s", diff)
	}
	if p.setup.description != "a board of kind a" || p.setup.notes != "one\ntwo" {
		t.Errorf("description %q, notes %q; want those of both configurations", p.setup.description, p.setup.notes)
	}
}

func TestLoadSetupErrors(t *testing.T) {
	two := setupOne + `, {"name": "two", "description": "d", "bb-layers": ["oe/meta"]}`
	nested := `{"description": "d", "bb-layers": ["oe/meta"], "oe-fragments-one-of": {"m": {"description": "d", "options": ["machine/a"]}}, "configurations": [{"name": "one"%s}]}`
	for _, test := range []struct{ name, choice, text, want string }{
		{"no JSON", "", `{"version": "1.0",}`, ":1:19: not valid JSON: invalid character '}'"},
		{"half", "", "{\n  \"version\": ", ":2:13: not valid JSON: unexpected end"},
		{"two documents", "", setupText(setupCore, setupOne) + "\n{}", ":2:1: not valid JSON: invalid character '{' after"},
		{"encoding", "", "{\"\xff\"}", ":1:3: not UTF-8"},
		{"a byte order mark", "", "\ufeff" + setupText(setupCore, setupOne), ":1:1: begins with a byte order mark"},
		{"column", "", `{"description": "é", "versio": "1.0"}`, `:1:22: unknown key "versio" in the file: did you mean version? (have bitbake-setup, description, expires, sources, version)`},
		{"type", "", `{"version": 1.0}`, ":1:13: version is a date, a fraction or the like; want a text"},
		{"null", "", `{"version": null}`, ":1:13: version is nothing; want a text"},
		{"version", "", strings.Replace(setupText(setupCore, setupOne), "1.0", "2.0", 1), `:1:13: version is "2.0"; slipway reads "1.0"`},
		{"no description", "", `{"version": "1.0", "sources": {}}`, `:1:1: the file lacks the key "description"`},
		{"no configurations", "", `{"version": "1.0", "description": "", "bitbake-setup": {}}`, `:1:56: bitbake-setup lacks the key "configurations"`},
		{"empty configurations", "", setupText(setupCore, ""), "configurations is empty"},
		{"no sources", "", `{"version": "1.0", "description": "", "bitbake-setup": {"configurations": [` + setupOne + `]}}`, `:1:1: the file lacks the key "sources"`},
		{"expires", "", strings.Replace(setupText(setupCore, setupOne), `"d"`, `"d", "expires": "soon"`, 1), `expires is "soon"; want a date such as`},
		{"which", "", setupText(setupCore, two), "which configuration? A board's file must leave one; elsewhere write it behind the file's name: #one (or two)\nnext: layers dump "},
		{"not one", "#three", setupText(setupCore, two), `no configuration is named "three" (have one, two)`},
		{"no choice", "#one,machine/x", setupText(setupCore, setupOne), `configuration "one" has no choice "machine/x"`},
		{"fragment to choose", "#one", setupText(setupCore, fmt.Sprintf(nested, "")), "oe-fragments-one-of.m: choose one, for a board in oe-fragments, elsewhere behind the file's name (#configuration,fragment): machine/a"},
		{"one-of twice", "#one,machine/a", setupText(setupCore, fmt.Sprintf(nested, `, "oe-fragments-one-of": {}`)), "oe-fragments-one-of cannot be added to that of line 1"},
		{"notes of two kinds", "#xone", setupText(setupCore, `{"name": "x", "notes": "n", "configurations": [{"name": "one", "notes": ["m"]}]}`), "notes cannot be added to that of line 1"},
		{"control character in a key", "", `{"a\u001bb": 1}`, `:1:2: a key in the file is not one line of text`},
		{"control character in a name", "", setupText(setupCore, `{"name": "a\u001bb"}`), "holds a control character"},
		{"no name", "", setupText(setupCore, `{"description": "d", "bb-layers": ["oe/meta"]}`), "a configuration needs a name"},
		{"nothing to build", "", setupText(setupCore, `{"name": "one", "description": "d"}`), "has no bb-layers"},
		{"template", "", setupText(setupCore, `{"name": "one", "description": "d", "oe-template": "t"}`), "oe-template: slipway reads no templates; write the layers"},
		{"strange fragment", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "oe-fragments": ["a\"b/c"]}`), `"a\"b/c" cannot be a fragment; one is named layer/path`},
		{"strange variable", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "bb-env-passthrough-additions": ["A B"]}`), `"A B" cannot be a variable`},
		{"layer elsewhere", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["other/meta"]}`), `"other/meta" is in none of the sources (have oe)`},
		{"layer outside", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/../../x"]}`), "is not a folder below the checkouts; name a layer outside them as a local source"},
		{"absolute layer", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["/etc"]}`), "is not a folder below the checkouts"},
		{"own layer outside", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "bb-layers-file-relative": ["../"]}`), `"../" leaves the repository`},
		{"two origins", "", setupText(`"oe": {"local": {"path": "/x"}, "git-remote": {"uri": "u", "rev": "r"}}`, setupOne), "has both git-remote and local"},
		{"no origin", "", setupText(`"oe": {}`, setupOne), "has neither git-remote nor local"},
		{"no address", "", setupText(`"oe": {"git-remote": {"rev": "r"}}`, setupOne), "needs a uri or remotes"},
		{"no revision", "", setupText(`"oe": {"git-remote": {"uri": "u"}}`, setupOne), `sources.oe.git-remote lacks the key "rev"`},
		{"option as address", "", setupText(`"oe": {"git-remote": {"uri": "--upload-pack=x", "rev": "r"}}`, setupOne), "is not a repository's address"},
		{"command as address", "", setupText(`"oe": {"git-remote": {"uri": "ext::sh -c x", "rev": "r"}}`, setupOne), "is not a repository's address"},
		{"fetcher's address", "", setupText(`"oe": {"git-remote": {"uri": "git://x/y;protocol=https", "rev": "r"}}`, setupOne), "has parameters of bitbake's fetcher"},
		{"option as branch", "", setupText(`"oe": {"git-remote": {"uri": "u", "rev": "-x"}}`, setupOne), `"-x" cannot be a branch or tag`},
		{"folder outside", "", setupText(`"oe": {"path": "../oe", "git-remote": {"uri": "u", "rev": "r"}}`, setupOne), `sources.oe: its folder "../oe" is not below the checkouts`},
		{"same folder", "", setupText(setupCore+`, "oe2": {"path": "oe/", "git-remote": {"uri": "u", "rev": "r"}}`, setupOne), "sources.oe2: has the same folder as sources.oe"},
		{"local path", "", setupText(`"oe": {"local": {"path": "x"}}`, setupOne), `path "x" is not absolute; begin it with / or ~/`},
		{"too deep", "", setupText(setupCore, strings.Repeat(`{"configurations": [`, 20)+setupOne+strings.Repeat(`]}`, 20)), "too many or too deeply nested values"},
		{"too large", "", `{"description": "` + strings.Repeat("x", yaml.MaxFileBytes) + `"}`, "larger than 1024 KiB"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := setupProject(t, map[string]string{".git/HEAD": "", "x.conf.json": test.text}, "x.conf.json"+test.choice)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Load = %v; want %q", err, test.want)
			}
		})
	}
	if _, _, err := setupProject(t, nil, "a.yml:b.conf.json"); err == nil || !strings.Contains(err.Error(), "cannot be merged with others") {
		t.Errorf("Load(a.yml:b.conf.json) = %v; want it refused", err)
	}
}

// A file that a program wrote is often one line, and each value in it has a place.
func TestSetupOfOneLine(t *testing.T) {
	text := strings.Repeat(`{"notes": "`+strings.Repeat("é", 20)+`"},`, yaml.MaxValues/3-100)
	began := time.Now()
	_, _, err := yaml.Decode("x.conf.json", []byte(setupText(setupCore, text+`{"odd": ""}`)), setupFile, true)
	want := fmt.Sprintf("x.conf.json:1:%d: unknown key \"odd\"", utf8.RuneCountInString(setupText(setupCore, text+"{"))-len(`]}}`)+1)
	if took := time.Since(began); err == nil || !strings.HasPrefix(err.Error(), want) || took > 5*time.Second {
		t.Errorf("parse = %.100v after %v; want %q at once", err, took, want)
	}
}

func TestLoadSetupWarnings(t *testing.T) {
	text := "{\"version\": \"1.0\",\n\"expires\": \"2020-05-31\",\n\"description\": \"d\",\n\"description\": \"e\",\n\"sources\": {" + setupCore + `}, "bitbake-setup": {"configurations": [{"name": "one", "description": "d", "bb-layers": ["oe/meta"]}]}}`
	p, dir, err := setupProject(t, map[string]string{"x.conf.json": text}, "x.conf.json")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range p.Warnings {
		got = append(got, strings.TrimPrefix(w, dir))
	}
	want := []string{
		`/x.conf.json:4:1: "description" was already set in line 3; as with bitbake-setup, line 4 holds`,
		`/x.conf.json:2:12: this project file's support ended on 2020-05-31; take a newer one`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings: (-want +got)\n%s", diff)
	}
}

// A small OpenEmbedded and a layer, where checkouts would lie.
func setupCheckouts(t *testing.T, dir string) Workspace {
	t.Helper()
	write(t, dir, map[string]string{
		"layers/oe/meta/conf/layer.conf":        "",
		"layers/oe/meta/conf/bitbake.conf":      "include conf/toolcfg.conf\n",
		"layers/mine/meta-mine/conf/layer.conf": "",
	})
	return Workspace{Dir: filepath.Join(dir, "layers")}
}

const setupMine = setupCore + `, "mine": {"git-remote": {"uri": "u", "branch": "main", "rev": "main"}}`

func setupConfigured(t *testing.T, dir, configuration string) error {
	t.Helper()
	write(t, dir, map[string]string{"x.conf.json": setupText(setupMine, configuration)})
	ws := Workspace{Dir: filepath.Join(dir, "layers")}
	p, err := Load(t.Context(), filepath.Join(dir, "x.conf.json"), ws)
	if err != nil {
		t.Fatal(err)
	}
	return Configure(p, ws, filepath.Join(dir, "build"))
}

func TestConfigureSetup(t *testing.T) {
	const note = "# Automated config file controlled by tools\n#\n# Run 'bitbake-config-build enable-fragment <fragment-name>' to enable additional fragments\n# or replace built-in ones (e.g. machine/<name> or distro/<name> to change MACHINE or DISTRO).\n\n"
	for _, test := range []struct {
		name, configuration string
		want                map[string]string
	}{
		{"layers", `"notes": "n", "bb-layers": ["oe/meta", "mine/meta-mine"], "oe-fragments": ["machine/a", "core/x", "machine/b"]`, map[string]string{
			"bblayers.conf":    "BBLAYERS ?= \" \\\n  @/layers/oe/meta \\\n  @/layers/mine/meta-mine \\\n  \"\n",
			"local.conf":       localConfNote,
			"templateconf.cfg": "", "conf-summary.txt": "d\n", "conf-notes.txt": "n\n",
			"toolcfg.conf": note + "OE_FRAGMENTS += \"core/x machine/b\"\n",
		}},
		{"no notes and fragments", `"bb-layers": ["oe/meta"]`, map[string]string{
			"bblayers.conf":    "BBLAYERS ?= \" \\\n  @/layers/oe/meta \\\n  \"\n",
			"local.conf":       localConfNote,
			"templateconf.cfg": "", "conf-summary.txt": "d\n", "conf-notes.txt": "",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			setupCheckouts(t, dir)
			configuration := `{"name": "one", "description": "d", ` + test.configuration + `}`
			if err := setupConfigured(t, dir, configuration); err != nil {
				t.Fatal(err)
			}
			for name, text := range test.want {
				test.want[name] = strings.ReplaceAll(text, "@", dir)
			}
			if diff := cmp.Diff(test.want, confFiles(t, dir)); diff != "" {
				t.Errorf("conf/: (-want +got)\n%s", diff)
			}
			before := conf(t, filepath.Join(dir, "build"), writtenFile)
			long := time.Now().Add(-time.Hour)
			for name := range test.want {
				if err := os.Chtimes(filepath.Join(dir, "build/conf", name), long, long); err != nil {
					t.Fatal(err)
				}
			}
			if err := setupConfigured(t, dir, configuration); err != nil {
				t.Fatal(err)
			}
			for name := range test.want {
				if info, err := os.Stat(filepath.Join(dir, "build/conf", name)); err != nil || time.Since(info.ModTime()) < time.Minute {
					t.Errorf("%s was written again, or %v", name, err)
				}
			}
			if after := conf(t, filepath.Join(dir, "build"), writtenFile); after != before {
				t.Errorf("what was written is remembered as %s; want %s", after, before)
			}
		})
	}
}

func TestConfigureSetupErrors(t *testing.T) {
	dir := t.TempDir()
	setupCheckouts(t, dir)
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		configuration, want string
		files               map[string]string
	}{
		{`"bb-layers": ["oe/meta"], "oe-fragments": ["machine/a"]`, "does not read fragments from conf/toolcfg.conf; whinlatter and later do", map[string]string{"layers/oe/meta/conf/bitbake.conf": ""}},
		{`"bb-layers": ["oe/meta"], "bb-layers-file-relative": ["none"]`, "bb-layers-file-relative: there is no " + dir + "/none", nil},
		{`"bb-layers": ["oe/meta"], "bb-layers-file-relative": ["out"]`, `"out" leads out of the repository ` + dir, nil},
	} {
		write(t, dir, test.files)
		err := setupConfigured(t, dir, `{"name": "one", "description": "d", `+test.configuration+`}`)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Configure with %s = %v; want %q", test.configuration, err, test.want)
		}
	}
	core := filepath.Join(dir, "layers/oe/meta/conf/bitbake.conf")
	if err := errors.Join(os.Remove(core), os.Symlink("/dev/zero", core)); err != nil {
		t.Fatal(err)
	}
	if err := setupConfigured(t, dir, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "oe-fragments": ["machine/a"]}`); err != nil {
		t.Errorf("Configure with a bitbake.conf without end = %v; want it left to bitbake", err)
	}
}

// People edit these files; nothing of theirs is lost, and nothing of the project's is missed.
func TestConfigureSetupEdited(t *testing.T) {
	dir := t.TempDir()
	setupCheckouts(t, dir)
	tools := filepath.Join(dir, "build/conf/toolcfg.conf")
	configure := func(fragments string) error {
		return setupConfigured(t, dir, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "oe-fragments": [`+fragments+`]}`)
	}
	has := func(want string) {
		t.Helper()
		text, err := os.ReadFile(tools)
		if want == "" && errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil || want == "" || !strings.Contains(string(text), want) {
			t.Fatalf("toolcfg.conf = %q, %v; want %q", text, err, want)
		}
	}
	edit := func(text string) {
		t.Helper()
		if err := os.WriteFile(tools, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct{ edit, fragments, wantErr, want string }{
		{"", `"machine/a"`, "", "machine/a"},
		{"", `"machine/b"`, "", "machine/b"},
		{"by hand", `"machine/b"`, "", "by hand"},
		{"", `"machine/c"`, "toolcfg.conf was edited or made by something else, and ", "by hand"},
		{"", `"machine/b"`, "", "by hand"},
		{"", ``, "", "by hand"},
	}
	for i, s := range steps {
		if s.edit != "" {
			edit(s.edit)
		}
		err := configure(s.fragments)
		if s.wantErr == "" && err != nil || s.wantErr != "" && (err == nil || !strings.Contains(err.Error(), s.wantErr)) {
			t.Fatalf("step %d: Configure = %v; want %q", i, err, s.wantErr)
		}
		has(s.want)
	}
	if err := os.Remove(tools); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(configure(`"machine/a"`), configure(``)); err != nil {
		t.Fatal(err)
	}
	has("")
}

// A project file of kas's takes the place of one of bitbake-setup's, and again.
func TestConfigureAfterSetup(t *testing.T) {
	dir := t.TempDir()
	setupCheckouts(t, dir)
	write(t, dir, map[string]string{"kas.yml": "header: {version: 14}\nmachine: b\n"})
	ws := Workspace{Dir: filepath.Join(dir, "layers")}
	p, err := Load(t.Context(), filepath.Join(dir, "kas.yml"), ws)
	if err != nil {
		t.Fatal(err)
	}
	kas := func() error { return Configure(p, ws, filepath.Join(dir, "build")) }
	const fragments = `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "oe-fragments": ["machine/a"]}`
	if err := setupConfigured(t, dir, fragments); err != nil {
		t.Fatal(err)
	}
	edited := filepath.Join(dir, "build/conf/local.conf")
	if err := os.WriteFile(edited, []byte("A = \"mine\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := kas(); err == nil || !strings.Contains(err.Error(), edited+" was edited, and the project file is now kas's") {
		t.Fatalf("Configure over an edited local.conf = %v; want it left alone", err)
	}
	if got := confFiles(t, dir); got["local.conf"] != "A = \"mine\"\n" || got["toolcfg.conf"] == "" {
		t.Errorf("after that: %q", got)
	}
	if err := errors.Join(os.Remove(edited), kas(), kas()); err != nil {
		t.Fatal(err)
	}
	if got := confFiles(t, dir); len(got) != 2 || !strings.Contains(got["local.conf"], `MACHINE ??= "b"`) || localfile.Exists(filepath.Join(dir, "build/conf", writtenFile)) {
		t.Errorf("conf/ for kas: %q; want local.conf and bblayers.conf alone", got)
	}
	if err := setupConfigured(t, dir, fragments); err == nil || !strings.Contains(err.Error(), "was edited or made by something else") {
		t.Errorf("Configure over kas's files = %v; want them left alone", err)
	}
}

// A lock file is written anew by the project file, which may have been edited since;
// what it takes from elsewhere stays.
func TestLockSetup(t *testing.T) {
	origin, first, second := server(t)
	moved := filepath.Join(t.TempDir(), "moved")
	mustRun(t, ".", "git", "clone", "-q", "--bare", origin, moved)
	dir := t.TempDir()
	lock := filepath.Join(dir, "x.sources-fixed-revisions.json")
	here := `"mine": {"local": {"path": "mine"}}`
	write(t, dir, map[string]string{".git/HEAD": "", "x.sources-fixed-revisions.json": `{"sources": {` + here + `}}`})
	for _, step := range []struct{ uri, rev, locked, warning string }{
		{origin, "main", second, ""},
		{origin, "main", second, ""},
		{origin, first, first, "is not at the commit " + first + ", which the project file pins"},
		{moved, "main", second, "sources.oe comes from " + origin + " here and from " + moved},
	} {
		sources := fmt.Sprintf(`"oe": {"git-remote": {"uri": %q, "rev": %q}}, "mine": {"git-remote": {"uri": %q, "rev": "main"}}`, step.uri, step.rev, origin)
		write(t, dir, map[string]string{"x.conf.json": setupText(sources, setupOne)})
		p, err := Load(t.Context(), filepath.Join(dir, "x.conf.json"), Workspace{})
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Join(p.Warnings, "\n"); !strings.Contains(said, step.warning) || step.warning == "" && said != "" {
			t.Errorf("Load of %s at %s warns %q; want %q", step.uri, step.rev, said, step.warning)
		}
		if err := Lock(t.Context(), p, Workspace{}, []string{AllPins}); err != nil {
			t.Fatal(err)
		}
		v, _, err := yaml.ReadSetup(lock, setupOverrides)
		if err != nil {
			t.Fatal(err)
		}
		remote := v.Get("sources", "oe", "git-remote")
		if remote.Get("uri").Text != step.uri || remote.Get("rev").Text != step.locked || v.Get("sources", "mine", "local", "path").TextOr("") != "mine" {
			text, err := os.ReadFile(lock)
			t.Errorf("the lock of %s at %s: %s, %v; want it at %s", step.uri, step.rev, text, err, step.locked)
		}
	}
}

// What moved since a commit of the project file's own repository.
func TestDiffSetup(t *testing.T) {
	origin, first, second := server(t)
	dir := t.TempDir()
	mustRun(t, dir, "git", "init", "-q", "-b", "main")
	lock := func(commit string) {
		write(t, dir, map[string]string{"x.sources-fixed-revisions.json": fmt.Sprintf(`{"sources": {"oe": {"git-remote": {"uri": %q, "rev": %q}}}}`, origin, commit)})
	}
	lock(first)
	write(t, dir, map[string]string{"own/conf/layer.conf": "", "x.conf.json": setupText(fmt.Sprintf(`"oe": {"git-remote": {"uri": %q, "rev": "main"}}`, origin),
		`{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "bb-layers-file-relative": ["own"]}, {"name": "two", "description": "d", "bb-layers": ["oe/meta"]}`)})
	mustRun(t, dir, "git", "add", ".")
	mustRun(t, dir, "git", "commit", "-q", "-m", "one")
	lock(second)
	ws := Workspace{Dir: filepath.Join(dir, "layers")}
	p, err := Load(t.Context(), filepath.Join(dir, "x.conf.json#one"), ws)
	if err != nil {
		t.Fatal(err)
	}
	older, err := LoadAt(t.Context(), p, "HEAD", ws)
	if err != nil {
		t.Fatal(err)
	}
	moves, err := Diff(t.Context(), older, p, ws, 5)
	if err != nil || len(moves) != 1 || moves[0].From != first || moves[0].To != second || len(moves[0].Commits) != 1 {
		t.Errorf("Diff = %+v, %v; want oe moved by one commit", moves, err)
	}
}

func FuzzSetup(f *testing.F) {
	f.Add(setupWhole, "")
	f.Add(setupText(setupCore, setupOne), `{"sources": {"oe": {"local": {"path": "/x"}}}}`)
	f.Add(setupText(setupMine, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"]}`), `{"sources": {"oe": {"git-remote": {"uri": "u", "rev": "`+sha+`"}}}}`)
	f.Add("{\"a\": \"\\ud800\", \"a\": 1e999}", "")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, lock string) {
		here := filepath.Join(dir, "p")
		if err := errors.Join(os.RemoveAll(here), os.MkdirAll(here, 0o755), os.WriteFile(filepath.Join(here, "x.conf.json"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		if lock != "" {
			if err := os.WriteFile(filepath.Join(here, "sources-fixed-revisions.json"), []byte(lock), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, choices := range []string{"", "#one", "#board-a,machine/qemuarm64,distro/poky"} {
			checkSetup(t, filepath.Join(here, "x.conf.json")+choices)
		}
	})
}

// checkSetup loads a file and checks what holds for each that loads: it touches
// nothing outside its folders, and the dump of it loads as the same project.
func checkSetup(t *testing.T, file string) {
	t.Helper()
	p, err := Load(t.Context(), file, Workspace{})
	if err != nil {
		return
	}
	for _, r := range p.Repos {
		if r.URL != "" && !filepath.IsLocal(r.checkoutFolder()) || strings.HasPrefix(r.URL, "-") {
			t.Errorf("%s: %+v leaves the checkouts or is an option", file, r)
		}
	}
	for _, word := range append(p.setup.fragments, p.Machine, p.Distro) {
		if strings.ContainsAny(word, "\"\\\n $") {
			t.Errorf("%s: %q would reach a conf file", file, word)
		}
	}
	flat, err := Dump(p)
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := cutSetup(file)
	dumped := strings.TrimSuffix(name, setupEnding) + "-flat" + setupEnding
	if err := os.WriteFile(dumped, flat, 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := Load(t.Context(), dumped, Workspace{})
	if err != nil || again.Machine != p.Machine || len(again.Repos) != len(p.Repos) || !slices.Equal(again.setup.fragments, p.setup.fragments) {
		t.Errorf("Load of the dump = %+v, %v; want %+v\n%s", again, err, p, flat)
	}
}
