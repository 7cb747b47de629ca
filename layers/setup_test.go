package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		Machine: "qemuarm64", Distro: "poky", Targets: []string{"core-image-minimal"}, Task: "build",
		Repos: []Repo{
			{ID: "oe", Name: "oe", Path: "oe", URL: "https://example.org/oe", Branch: "wrynose", Commit: strings.Repeat("1", 40), Locked: true, Layers: []Layer{{Name: "meta"}}},
			{ID: "tagged", Name: "deep/er", Path: "deep/er", URL: "https://example.com/last", Tag: "v1.0", Layers: []Layer{{Name: "meta-b"}}},
			{ID: "pinned", Name: "pinned", Path: "pinned", URL: "u", Branch: "main", Commit: sha},
			{ID: "any", Name: "any", Path: "any", URL: "v", Tag: "v2"},
			{ID: "here", Name: "here", Path: "/opt/here", Layers: []Layer{{Name: "."}}},
			{ID: ".", Name: filepath.Base(dir), Layers: []Layer{{Name: "own"}}},
		},
		Env:      map[string]*string{"BUILD_ID": nil, "TOKEN": nil},
		Warnings: []string{filepath.Join(dir, "setup/sources-fixed-revisions.json") + ":2:9: sources.gone is not in the project file; as with bitbake-setup, it is not used"},
	}
	ignore := cmp.FilterPath(func(p cmp.Path) bool {
		name := p.Last().String()
		return name == ".at" || name == ".setup"
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
		{"column", "", `{"description": "é", "versio": "1.0"}`, `:1:22: unknown key "versio" in the file (have bitbake-setup, description, expires, sources, version)`},
		{"type", "", `{"version": 1.0}`, ":1:13: version is a number; want a text"},
		{"null", "", `{"version": null}`, ":1:13: version is nothing; want a text"},
		{"version", "", `{"version": "2.0", "description": "", "bitbake-setup": {}}`, `:1:13: version is "2.0"; slipway reads "1.0"`},
		{"no description", "", `{"version": "1.0", "bitbake-setup": {}}`, `:1:1: the file has no "description"`},
		{"no configurations", "", `{"version": "1.0", "description": "", "bitbake-setup": {}}`, `bitbake-setup has no "configurations"`},
		{"empty configurations", "", setupText(setupCore, ""), "configurations is empty"},
		{"no sources", "", `{"version": "1.0", "description": "", "bitbake-setup": {"configurations": [` + setupOne + `]}}`, `no "sources"`},
		{"expires", "", strings.Replace(setupText(setupCore, setupOne), `"d"`, `"d", "expires": "soon"`, 1), `expires is "soon"; want a date such as`},
		{"which", "", setupText(setupCore, two), "which configuration? Write it behind the file's name: #one (or two)"},
		{"not one", "#three", setupText(setupCore, two), `no configuration is named "three" (have one, two)`},
		{"no choice", "#one,machine/x", setupText(setupCore, setupOne), `configuration "one" has no choice "machine/x"`},
		{"fragment to choose", "#one", setupText(setupCore, fmt.Sprintf(nested, "")), "oe-fragments-one-of.m: choose one, and write it behind the file's name (#configuration,fragment): machine/a"},
		{"one-of twice", "#one,machine/a", setupText(setupCore, fmt.Sprintf(nested, `, "oe-fragments-one-of": {}`)), "oe-fragments-one-of cannot be added to that of line 1"},
		{"notes of two kinds", "#xone", setupText(setupCore, `{"name": "x", "notes": "n", "configurations": [{"name": "one", "notes": ["m"]}]}`), "notes cannot be added to that of line 1"},
		{"no name", "", setupText(setupCore, `{"description": "d", "bb-layers": ["oe/meta"]}`), "a configuration needs a name"},
		{"nothing to build", "", setupText(setupCore, `{"name": "one", "description": "d"}`), "has neither bb-layers nor oe-template"},
		{"beside a template", "", setupText(setupCore, `{"name": "one", "description": "d", "oe-template": "t", "bb-layers-file-relative": ["x"]}`), "goes with bb-layers, not with a template"},
		{"strange fragment", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "oe-fragments": ["a\"b/c"]}`), `"a\"b/c" cannot be a fragment; one is named layer/path`},
		{"strange variable", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "bb-env-passthrough-additions": ["A B"]}`), `"A B" cannot be a variable`},
		{"layer elsewhere", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["other/meta"]}`), `"other/meta" is in none of the sources (have oe)`},
		{"layer outside", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/../../x"]}`), "is not a folder below the checkouts; name a layer outside them as a local source"},
		{"absolute layer", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["/etc"]}`), "is not a folder below the checkouts"},
		{"own layer missing", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "bb-layers-file-relative": ["none"]}`), "bb-layers-file-relative: there is no "},
		{"own layer outside", "", setupText(setupCore, `{"name": "one", "description": "d", "bb-layers": ["oe/meta"], "bb-layers-file-relative": ["../"]}`), `"../" leaves the repository`},
		{"two origins", "", setupText(`"oe": {"local": {"path": "/x"}, "git-remote": {"uri": "u", "rev": "r"}}`, setupOne), "has both git-remote and local"},
		{"no origin", "", setupText(`"oe": {}`, setupOne), "has neither git-remote nor local"},
		{"no address", "", setupText(`"oe": {"git-remote": {"rev": "r"}}`, setupOne), "needs a uri or remotes"},
		{"no revision", "", setupText(`"oe": {"git-remote": {"uri": "u"}}`, setupOne), `sources.oe.git-remote has no "rev"`},
		{"option as address", "", setupText(`"oe": {"git-remote": {"uri": "--upload-pack=x", "rev": "r"}}`, setupOne), "is not a repository's address"},
		{"command as address", "", setupText(`"oe": {"git-remote": {"uri": "ext::sh -c x", "rev": "r"}}`, setupOne), "is not a repository's address"},
		{"fetcher's address", "", setupText(`"oe": {"git-remote": {"uri": "git://x/y;protocol=https", "rev": "r"}}`, setupOne), "has parameters of bitbake's fetcher"},
		{"option as branch", "", setupText(`"oe": {"git-remote": {"uri": "u", "rev": "-x"}}`, setupOne), `"-x" cannot be a branch or tag`},
		{"folder outside", "", setupText(`"oe": {"path": "../oe", "git-remote": {"uri": "u", "rev": "r"}}`, setupOne), `sources.oe: its folder "../oe" is not below the checkouts`},
		{"same folder", "", setupText(setupCore+`, "oe2": {"path": "oe/", "git-remote": {"uri": "u", "rev": "r"}}`, setupOne), "sources.oe2: has the same folder as sources.oe"},
		{"local path", "", setupText(`"oe": {"local": {"path": "x"}}`, setupOne), `path "x" is not absolute; begin it with / or ~/`},
		{"too deep", "", setupText(setupCore, strings.Repeat(`{"configurations": [`, 20)+setupOne+strings.Repeat(`]}`, 20)), "too many or too deeply nested values"},
		{"too large", "", `{"description": "` + strings.Repeat("x", maxFileBytes) + `"}`, "larger than 1048576 bytes"},
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

func TestLoadSetupWarnings(t *testing.T) {
	text := "{\"version\": \"1.0\",\n\"expires\": \"2020-05-31\",\n\"description\": \"d\",\n\"description\": \"e\",\n\"sources\": {" + setupCore + `}, "bitbake-setup": {"configurations": [{"name": "one", "description": "d", "bb-layers": ["oe/meta"],
"oe-template": "t"}]}}`
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
		`/x.conf.json:6:16: bb-layers and oe-template: the template has layers of its own, which bitbake-setup leaves out here; drop one of the two`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings: (-want +got)\n%s", diff)
	}
}

var _ = os.Getenv
