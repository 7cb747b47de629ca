package layers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/layers/git"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
	"slipway/layers/yaml"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// write makes files below a new folder; names may have slashes.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const sha = "0e12345678901234567890123456789012345678"

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"base.yml": `
header: {version: 14}
distro: poky
machine: from-base
defaults: {repos: {branch: scarthgap}}
repos:
  poky:
    url: https://example.com/poky
    layers: {meta: , meta-poky: , meta-yocto-bsp: disabled}
local_conf_header:
  a: one
  b: two
`,
		"boards/orin.yml": `
header:
  version: 8
  includes: [base.yml]
machine: jetson-orin-nano-devkit
target: [core-image-minimal, mc:xavier:core-image-base]
env: {SSTATE_DIR: , EDITION: no}
repos:
  here:
  meta-tegra:
    url: https://example.com/meta-tegra
    branch:
    commit: 0e12345678901234567890123456789012345678
  pinned: {url: u, layers: {x: {prio: 7}}}
local_conf_header:
  b: |
    three = "3"
`,
		"boards/orin.lock.yml": `
header: {version: 14}
overrides: {repos: {poky: {commit: 1111111111111111111111111111111111111111}}}
`,
		".git/HEAD": "",
	})
	p, err := Load(t.Context(), filepath.Join(dir, "boards/orin.yml"), Workspace{})
	if err != nil {
		t.Fatal(err)
	}
	no := "no"
	want := Project{
		File: filepath.Join(dir, "boards/orin.yml"), Root: dir, BuildSystem: "openembedded",
		Machine: "jetson-orin-nano-devkit", Distro: "poky", Task: "build",
		Targets: []string{"core-image-minimal", "mc:xavier:core-image-base"},
		Env:     map[string]*string{"SSTATE_DIR": nil, "EDITION": &no},
		Repos: []Repo{
			{Remote: git.Remote{ID: "poky", URL: "https://example.com/poky", Branch: "scarthgap", Commit: strings.Repeat("1", 40)}, Name: "poky", Locked: true, Layers: []Layer{{Name: "meta"}, {Name: "meta-poky"}}},
			{Remote: git.Remote{ID: "here", Branch: "scarthgap"}, Name: "here", Layers: []Layer{{}}},
			{Remote: git.Remote{ID: "meta-tegra", URL: "https://example.com/meta-tegra", Commit: sha}, Name: "meta-tegra", Layers: []Layer{{}}},
			{Remote: git.Remote{ID: "pinned", URL: "u", Branch: "scarthgap"}, Name: "pinned", Layers: []Layer{{Name: "x", Priority: 7}}},
		},
		LocalConf: map[string]string{"a": "one", "b": "three = \"3\"\n"},
	}
	if diff := cmp.Diff(want, p, sameProject...); diff != "" {
		t.Errorf("Load: (-want +got)\n%s", diff)
	}
}

// refusal is a project file that Load refuses, and a part of what it says then.
type refusal struct{ name, input, want string }

// mustRefuse loads files as in/p.yml, beside some that they may include.
func mustRefuse(t *testing.T, tests []refusal) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := refusing(t)
			write(t, dir, map[string]string{"in/p.yml": tt.input})
			_, err := Load(t.Context(), filepath.Join(dir, "in/p.yml"), Workspace{Dir: filepath.Join(dir, "w")})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v; want an error with %q", err, tt.want)
			}
		})
	}
}

// refusing is a folder of files that an include may name in vain.
func refusing(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"x.yml": "header: {version: 1}\n", "in/p.txt": "",
		"in/s.yml":   "header: {version: 1}\n_source_dir: /\n",
		"in/d.yml/f": "", "in/sub/out.yml": "header: {version: 1, includes: [../s.yml]}\n", "in/\x1b[2J.yml": "header: {version: 1}\n",
		"in/back.yml": "header: {version: 1, includes: [p.yml]}\n", "in/locked.yml": "header: {version: 1}\n",
		"in/locked.lock.yml": "header: {version: 14, includes: [locked.yml]}\n",
	})
	for name, to := range map[string]string{"link.yml": "../x.yml", "dangling.yml": "none.yml", "good.yml": "\x1b[2J.yml"} {
		if err := os.Symlink(to, filepath.Join(dir, "in", name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What is no project file.
func TestLoadRefusesFiles(t *testing.T) {
	mustRefuse(t, []refusal{
		{"no header", "machine: x\n", "below it, \"  version: 23\"\nnext: head -n 5 "},
		{"too new", "header: {version: 24}\n", `1:19: header.version is "24"; slipway reads 1 to 23`},
		{"not a number", "header: {version: 'ten'}\n", `header.version is "ten"`},
		{"a number in quotes", "header: {version: '10'}\n", "1:19: header.version is a text; write 10 without quotes"},
		{"a fraction", "header: {version: 1.5}\n", `header.version is "1.5"`},
		{"an unknown tag", "header: {version: 1}\nrepos: !omap {}\n", "repos is a date, a fraction or the like; want keys with values"},
		{"a number as key", "header: {version: 1}\nlocal_conf_header: {10: x}\n", "2:21: the key 10 in local_conf_header is a number to kas; write it in quotes"},
		{"a key of two lines", "header: {version: 1}\nlocal_conf_header: {\"a\\nb\": x}\n", "not one line of text"},
		{"empty", "", "p.yml: holds nothing"},
		{"a comment", "# header\n", "p.yml: holds nothing"},
		{"broken", "header: [1\n", "not valid YAML"},
		{"a tab", "header:\n\tversion: 1\n", "p.yml:2:1: not valid YAML: no value or key can begin with this character: quote the text"},
		{"not UTF-8", "header: {version: 1}\n# é \xe9\n", "p.yml:2:5: not valid YAML: incomplete UTF-8"},
		{"a control character", "header: {version: 1}\nmachine: \x01\n", "p.yml:2:10: not valid YAML: control characters are not allowed"},
		{"a list", "- header\n", "the file is a list; want keys with values"},
		{"two documents", "header: {version: 1}\n---\nheader: {version: 1}\n", "p.yml:2:1: a second document begins here"},
		{"a broken second document", "header: {version: 1}\n---\n[\n", "p.yml:3:1: not valid YAML"},
		{"unknown key", "header: {version: 1}\nmachin: x\n", `2:1: unknown key "machin" in the file: did you mean machine? (have _source_dir,`},
		{"merge key", "header: {version: 1}\nrepos: {<<: a}\n", "the merge key << in repos needs keys with values"},
		{"merge of itself", "header: {version: 1}\nrepos: &r {<<: *r}\n", "p.yml"},
		{"wrong type", "header: {version: 1}\nmachine: [a]\n", "2:10: machine is a list; want a text"},
		{"nothing", "header: {version: 1}\nmachine:\n", "2:9: machine is nothing; want a text"},
		{"too deep", "header: " + strings.Repeat("[", 5000) + "\n", "not valid YAML"},
	})
}

func TestLoadRefusesIncludes(t *testing.T) {
	mustRefuse(t, []refusal{
		{"an include of no repository", "header: {version: 1, includes: [{repo: a, file: b.yml}]}\n", `1:33: include of b.yml: repos names no repository "a"`},
		{"an include without a file", "header: {version: 1, includes: [{repo: a}]}\n", `header.includes[0] lacks the key "file"`},
		{"an include outside another repository", "header: {version: 1, includes: [{repo: here, file: ../x.yml}]}\nrepos: {here: }\n", "1:52: include \"../x.yml\" leaves its repository"},
		{"an include outside through a link", "header: {version: 1, includes: [{repo: here, file: link.yml}]}\nrepos: {here: }\n", "leaves its repository"},
		{"an absolute include", "header: {version: 1, includes: [/etc/passwd]}\n", "1:33: include \"/etc/passwd\" leaves its repository"},
		{"an absolute include of nothing", "header: {version: 1, includes: [/etc/none.yml]}\n", "is not in"},
		{"an include of a folder", "header: {version: 1, includes: [d.yml]}\n", `1:33: include "d.yml" is no file`},
		{"an include of a link to nothing", "header: {version: 1, includes: [dangling.yml]}\n", `1:33: include "dangling.yml" is no file, or a link to none`},
		{"an include that leads out and back", "header: {version: 1, includes: [sub/out.yml]}\n", `sub/out.yml:1:33: include "../s.yml" leaves its repository`},
		{"an include whose name is a command to a terminal", "header: {version: 1, includes: [\"\\e[2J.yml\"]}\n", `include "\x1b[2J.yml" leads to a file with a control character`},
		{"an include of such a name through a link", "header: {version: 1, includes: [good.yml]}\n", `include "good.yml" leads to a file with a control character`},
		{"an include of something else", "header: {version: 1, includes: [p.txt]}\n", "ends in .yml, .yaml or .json"},
		{"source dir in an include", "header: {version: 1, includes: [s.yml]}\n", "allowed in the first file only"},
		{"itself", "header: {version: 1, includes: [p.yml]}\n", `p.yml:1:33: include "p.yml" leads back to`},
		{"itself through another", "header: {version: 1, includes: [back.yml]}\n", `back.yml:1:33: include "p.yml" leads back to`},
		{"itself through its lock", "header: {version: 1, includes: [locked.yml]}\n", `locked.lock.yml:1:34: include "locked.yml" leads back to`},
		{"include outside", "header: {version: 1, includes: [../x.yml]}\n", "leaves its repository"},
		{"include through a link", "header: {version: 1, includes: [link.yml]}\n", "leaves its repository"},
		{"include missing", "header: {version: 1, includes: [none.yml]}\n", `1:33: include "none.yml" is not in`},
	})
}

func TestLoadRefusesRepositories(t *testing.T) {
	repo := func(keys string) string { return "header: {version: 1}\nrepos:\n  r: {" + keys + "}\n" }
	mustRefuse(t, []refusal{
		{"signed", repo("url: u, branch: b, signed: true, allowed_signers: [a]"), "repos.r: slipway checks no signatures; pin the commit"},
		{"unknown repo key", repo("url: u, comit: x"), `3:15: unknown key "comit" in repos.r: did you mean commit? (have allowed_signers, branch, commit,`},
		{"a patch without a repo", repo("url: u, branch: b, patches: {p: {path: x}}"), "3:39: repos.r.patches.p: no repo says where the patch lies"},
		{"a patch without a path", repo("url: u, branch: b, patches: {p: {repo: r}}"), `repos.r.patches.p lacks the key "path"`},
		{"numbers and texts as patches", repo("url: u, branch: b, patches: {1: {path: x, repo: r}, b: {path: y, repo: r}}"), "some keys are numbers to kas and some are texts"},
		{"a number as a layer", repo("url: u, branch: b, layers: {1: }"), "the key 1 in repos.r.layers is a number to kas"},
		{"a date as a patch", repo("url: u, branch: b, patches: {2024-01-02: {path: x, repo: r}}"), "write it in quotes"},
		{"an absolute patch", "header: {version: 1}\nrepos: {r: {url: u, branch: b, patches: {p: {path: /x, repo: here}}}, here: }\n", `path "/x" leaves its repository`},
		{"a layer outside of a folder here", "header: {version: 1}\nrepos: {here: {layers: {../../x: }}}\n", "is not a folder of the repository"},
		{"an absolute layer of a folder here", "header: {version: 1}\nrepos: {here: {layers: {/x: }}}\n", "is not a folder of the repository"},
		{"a patch outside", repo("url: u, branch: b, patches: {p: {path: ../x, repo: r}}"), `path "../x" leaves its repository`},
		{"hg", repo("url: u, branch: b, type: hg"), "3:32: repos.r: slipway checks out git repositories only; name a git mirror"},
		{"svn", repo("url: u, branch: b, type: svn"), `type "svn" is unknown`},
		{"layer value", repo("url: u, branch: b, layers: {x: yes}"), `repos.r.layers.x is "true"; want nothing, disabled or a prio`},
		{"a url with a line break", repo(`url: "a\nb", branch: b`), "holds a control character"},
		{"no ref", repo("url: u"), "no commit, tag or branch"},
		{"dashed url", repo("url: --upload-pack=x, branch: b"), "not a repository's address"},
		{"ext url", repo("url: 'ext::sh -c id', branch: b"), "not a repository's address"},
		{"dashed branch", repo("url: u, branch: --force"), "cannot be a branch or tag"},
		{"refspec and branch", repo("url: u, branch: b, refspec: c"), "drop the refspec"},
		{"tag and branch", repo("url: u, branch: b, tag: t"), "both a tag and a branch"},
		{"tag and a branch that names a tag", repo("url: u, branch: refs/tags/v1, tag: v2"), "both a tag and a branch"},
		{"path outside", repo("url: u, branch: b, path: ../../etc"), "not below the project's"},
		{"name outside", repo("url: u, branch: b, name: /etc"), "not below the project's"},
		{"layer outside", repo("url: u, branch: b, layers: {../../x: }"), "not a folder of the repository"},
		{"prio", repo("url: u, branch: b, layers: {x: {prio: 100}}"), "not a number from -99 to 99"},
	})
}

func TestLoadRefusesSettings(t *testing.T) {
	mustRefuse(t, []refusal{
		{"buildtools", "header: {version: 20}\nbuildtools: {version: '5.0'}\n", "2:13: buildtools: slipway installs no build tools; take this key out"},
		{"build system", "header: {version: 1}\nbuild_system: yocto\n", `2:15: build_system "yocto" is unknown`},
		{"source dir of nowhere", "header: {version: 1}\n_source_dir: none\n", "is not the path of a folder here"},
		{"env", "header: {version: 1}\nenv: {A=B: c}\n", "cannot be the name of a variable"},
		{"target", "header: {version: 1}\ntarget: --server-only\n", "2:9: \"--server-only\" cannot be a machine, distro, task or target"},
		{"machine", "header: {version: 1}\nmachine: 'a\"b'\n", "cannot be a machine"},
	})
}

// A project that is refused has its warnings, which may say why. One without repositories says so.
func TestLoadOfRepositories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yml")
	write(t, filepath.Dir(file), map[string]string{"p.yml": "header: {version: 1}\nrepos:\n  r: {url: u, branch: b}\n  r: {url: u}\n"})
	p, err := Load(t.Context(), file, Workspace{})
	if err == nil || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], `"r" was already set in line 3`) {
		t.Errorf("Load of a repository twice = %q, %v; want a warning of it, and an error", p.Warnings, err)
	}
	write(t, filepath.Dir(file), map[string]string{"p.yml": "header: {version: 1}\n"})
	dir := t.TempDir()
	seen, ws := &progresstest.Recorder{}, Workspace{Dir: dir, Build: filepath.Join(dir, "build")}
	if p, err = Load(t.Context(), file, ws); err == nil {
		err = Checkout(progress.With(t.Context(), progress.New(seen)), p, ws)
	}
	if err != nil || !seen.Saw("layers", "the project file names no repositories") {
		t.Errorf("Checkout of no repositories = %v, %+v; want that said", err, seen.Last("layers"))
	}
}

func TestLoadOfAnEmptyName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yml")
	for _, name := range []string{file + ":", ":" + file} {
		_, err := Load(t.Context(), name, Workspace{Dir: t.TempDir()})
		if err == nil || !strings.HasSuffix(err.Error(), "\nnext: layers dump "+file) {
			t.Errorf("Load(%q) = %v; want the line without the colon", name, err)
		}
	}
}

func TestLoadRefusesFilesOfTwoRepositories(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"in/p.yml": "", "other/.git/HEAD": "", "other/q.yml": ""})
	_, err := Load(t.Context(), filepath.Join(dir, "in/p.yml")+":"+filepath.Join(dir, "other/q.yml"), Workspace{Dir: filepath.Join(dir, "w")})
	if err == nil || !strings.Contains(err.Error(), "the files lie in different repositories") {
		t.Errorf("Load = %v; want it refused", err)
	}
}

// What other people's files have and kas takes.
func TestLoadTakes(t *testing.T) {
	tests := []struct{ name, input string }{
		{"an absolute include of the own repository", "header: {version: 1, includes: [{{dir}}/x.yml]}\n"},
		{"an include with more slashes than needed", "header: {version: 1, includes: [./sub/..//x.yml]}\n"},
		{"an address of version 6", "header: {version: 1}\nrepos: {r: {url: 'ssh://git@[fe80::1]/r', branch: b}}\n"},
		{"a branch with a number sign", "header: {version: 1}\nrepos: {r: {url: u, branch: 'feature#1'}}\n"},
		{"a newer YAML", "# c\n\n%YAML 1.2\n---\nheader: {version: 1}\n"},
		{"a byte order mark", "\ufeffheader: {version: 1}\n"},
		{"the end of a document", "header: {version: 1}\n...\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"p.yml": strings.ReplaceAll(tt.input, "{{dir}}", dir), "x.yml": "header: {version: 1}\n", "sub/f": ""})
			if _, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{}); err != nil {
				t.Errorf("Load = %v; want no error", err)
			}
		})
	}
}

// A folder's name may have a colon.
func TestLoadSeveralFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a:b")
	write(t, dir, map[string]string{"p.yml": "header: {version: 1}\nmachine: p\n", "q.yml": "header: {version: 2}\ndistro: q\n"})
	t.Chdir(dir)
	for files, want := range map[string][2]string{"p.yml:q.yml": {"p", "q"}, filepath.Join(dir, "p.yml"): {"p", defaultDistro}} {
		p, err := Load(t.Context(), files, Workspace{})
		if got := [2]string{p.Machine, p.Distro}; err != nil || got != want {
			t.Errorf("Load(%s) = %q, %v; want %q", files, got, err, want)
		}
	}
}

func TestTypesWarn(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"p.yml": "header: {version: 1}\nenv: {A: 12:30, B: no, C: 2024-01-02, D: 0e12, E: 1.0, F: 'no'}\nmachine: 0x10\n"})
	p, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"machine": p.Machine}
	for name, v := range p.Env {
		got[name] = *v
	}
	want := map[string]string{"A": "12:30", "B": "no", "C": "2024-01-02", "D": "0e12", "E": "1.0", "F": "no", "machine": "0x10"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("texts (-want +got):\n%s", diff)
	}
	first := filepath.Join(dir, "p.yml") + ":2:10: env.A is read as the text 12:30; kas takes that for a number and refuses the file, so write it in quotes"
	if len(p.Warnings) != 5 || p.Warnings[0] != first {
		t.Errorf("warnings %q; want five, the first %q", p.Warnings, first)
	}
}

// The variables of kas that Slipway does not follow are in one warning. Empty ones are in none.
func TestIgnoredVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yml")
	write(t, filepath.Dir(file), map[string]string{"p.yml": "header: {version: 1}\nmachine: m\n"})
	t.Setenv("KAS_WORK_DIR", "")
	if p, err := Load(t.Context(), file, Workspace{}); err != nil || len(p.Warnings) > 0 {
		t.Errorf("Load = %q, %v; want no warning", p.Warnings, err)
	}
	all := strings.Fields("KAS_WORK_DIR KAS_BUILD_DIR KAS_REPO_REF_DIR KAS_PREMIRRORS KAS_CLONE_DEPTH KAS_BUILDTOOLS_DIR KAS_CONTAINER_ENGINE KAS_CONTAINER_IMAGE KAS_IMAGE_VERSION KAS_RUNTIME_ARGS")
	for _, name := range all {
		t.Setenv(name, "1")
	}
	p, err := Load(t.Context(), file, Workspace{})
	want := []string{strings.Join(all, ", ") + ": Slipway does not follow these variables of kas; everything is below build/"}
	if diff := cmp.Diff(want, p.Warnings); err != nil || diff != "" {
		t.Errorf("Load = %v (-want +got):\n%s", err, diff)
	}
}

// JSON is stricter than YAML, and has no numbers and words of its own kind.
func TestParseJSON(t *testing.T) {
	tests := []struct{ name, input, machine, wantErr string }{
		{"a character in two halves", `{"header": {"version": 1}, "machine": "a\ud83d\ude00"}`, "a\U0001f600", ""},
		{"a byte order mark", "\ufeff" + `{"header": {"version": 1}, "machine": "m"}`, "m", ""},
		{"a word", `{"header": {"version": 1}, "machine": "no"}`, "no", ""},
		{"a fraction", `{"header": {"version": 1}, "repos": {"r": {"layers": {"m": {"prio": 1e0}}}}}`, "", `p.json:1:69: repos.r.layers.m.prio is a date, a fraction or the like; want a number`},
		{"a comment", "{\n# c\n\"header\": {\"version\": 1}}", "", "p.json:2:1: not valid JSON"},
		{"YAML", "header: {version: 1}", "", "p.json:1:1: not valid JSON"},
		{"a second value", "{} {}", "", "p.json:1:4: not valid JSON"},
		{"nothing", "", "", "p.json:1:1: not valid JSON"},
		{"an unknown key", "{\"header\": {\"version\": 1},\n  \"machin\": 1}", "", `p.json:2:3: unknown key "machin"`},
		{"too deep", strings.Repeat("[", 20000), "", "exceeded max depth"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, warnings, err := yaml.Decode("p.json", []byte(tt.input), project, false)
			if tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) || tt.wantErr == "" && err != nil {
				t.Errorf("parse = %v; want an error with %q", err, tt.wantErr)
			}
			if got := v.Get("machine").TextOr(""); got != tt.machine || len(warnings) > 0 {
				t.Errorf("machine %q, warnings %q; want %q and none", got, warnings, tt.machine)
			}
		})
	}
}

func TestDuplicateKeysWarn(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"p.yml": "header: {version: 1}\nmachine: a\nmachine: b\n"})
	p, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Machine != "b" || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], `p.yml:3:1: "machine" was already set in line 2`) {
		t.Errorf("machine %q, warnings %q; want b and one warning with both lines", p.Machine, p.Warnings)
	}
}

func TestDumpLoadsAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"inc.yml": "header: {version: 17}\nlocal_conf_header: {x: \"A = 1\\nB = 2\\n\"}\n",
		"p.yml":   "header: {version: 8, includes: [inc.yml]}\nenv: {A: , B: 'yes', C: 0e12}\nrepos:\n  r: {url: u, commit: " + sha + ", layers: {m: {prio: -3}, n: }}\n",
	})
	before, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{})
	if err != nil {
		t.Fatal(err)
	}
	flat, err := Dump(before)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"flat.yml": string(flat)})
	after, err := Load(t.Context(), filepath.Join(dir, "flat.yml"), Workspace{})
	if err != nil {
		t.Fatalf("%v\n%s", err, flat)
	}
	again, err := Dump(after)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(flat), string(again)); diff != "" {
		t.Errorf("Dump of a dump differs: (-first +second)\n%s", diff)
	}
	if after.version != 17 || *after.Env["C"] != "0e12" || after.Repos[0].Commit != sha {
		t.Errorf("Dump lost something:\n%s", flat)
	}
}

func TestSubmoduleBelongsToItsParent(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		".git/HEAD":        "",
		"sub/.git":         "gitdir: ../.git/modules/sub\n",
		"linked/.git":      "gitdir: /elsewhere/.git/worktrees/linked\n",
		"sub/kas/p.yml":    "header: {version: 1}\n",
		"linked/kas/p.yml": "header: {version: 1}\n",
	})
	for file, want := range map[string]string{"sub/kas/p.yml": dir, "linked/kas/p.yml": filepath.Join(dir, "linked")} {
		p, err := Load(t.Context(), filepath.Join(dir, file), Workspace{})
		if err != nil || p.Root != want {
			t.Errorf("Load(%s).Root = %q, %v; want %q", file, p.Root, err, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	add := func(p, included, lock, other string) { f.Add([]byte(p), []byte(included), []byte(lock), []byte(other)) }
	plain := "header: {version: 14}\n"
	add("header: {version: 14, includes: [a.yml]}\nmachine: m\ntarget: [a, mc:b:c]\n", plain, "", "")
	add("header: {version: 1}\nrepos:\n  r: {url: u, commit: "+sha+", layers: {a: , b: disabled, c: {prio: 3}}}\n", "", "", "")
	add("header: &h {version: 1}\nenv: &e {A: , B: c}\noverrides: {repos: {r: {commit: , branch: x}}}\n", "", "", "")
	add("header: &a [*a, *a]\n", "", "", "")
	add("{\n\t\"header\": {\"version\": 3}\n}", "", "", "")
	add("header: {version: 14, includes: [{repo: other, file: ../x.yml}, ../x.yml]}\nrepos: {other: {path: other}}\n", "", "", "")
	add("header: {version: 1}\nrepos: {a: {url: u, branch: b}}\n", "", "header: {version: 14}\noverrides: {repos: {a: {commit: "+sha+"}}}\n", "")
	add("header: {version: 14, includes: [a.yml, {repo: other, file: y.yml}]}\nenv: &e {A: b}\nlocal_conf_header: {<<: [*e, *e], c: \"d\\t\\n\\n\"}\n",
		"header: {version: 3}\nlocal_conf_header: {c: ' a: |'}\n", plain,
		"header: {version: 2}\ndefaults: {repos: {branch: x, patches: {repo: r}}}\nrepos: {r: {url: u, patches: {p: {path: q}}}}\n")
	f.Fuzz(func(t *testing.T, p, included, lock, other []byte) {
		dir := t.TempDir()
		write(t, dir, map[string]string{
			"x.yml": "header: {version: 1}\nmachine: from-outside\n", "in/.git/HEAD": "",
			"in/p.yml": string(p), "in/a.yml": string(included), "in/other/y.yml": string(other),
		})
		if len(lock) > 0 {
			write(t, dir, map[string]string{"in/p.lock.yml": string(lock)})
		}
		checkLoad(t, dir)
	})
}

// checkLoad reads the files without checking anything out, and what it read again from a dump.
func checkLoad(t *testing.T, dir string) {
	t.Helper()
	l, err := newLoader(filepath.Join(dir, "in/p.yml"), Workspace{Dir: filepath.Join(dir, "in")})
	if err != nil {
		t.Fatal(err)
	}
	l.placed["other"] = Repo{Remote: git.Remote{ID: "other"}, Path: "other"}
	in, err := l.readOnce()
	if err != nil {
		return
	}
	p, err := in.buildProject()
	if err != nil {
		return
	}
	if p.Machine == "from-outside" {
		t.Error("Load read a file outside the repository")
	}
	checkDump(t, p)
}

// FuzzParse is FuzzLoad for one file, without a disk.
func FuzzParse(f *testing.F) {
	f.Add([]byte("header: {version: 0x0E}\nenv: &e {A: , B: c}\nlocal_conf_header: {<<: [*e, *e], c: \"d\\t\\n\\n\"}\n"))
	f.Add([]byte("header: {version: 1}\nrepos:\n  r: {url: u, commit: " + sha + ", layers: {a: , b: no, c: {prio: 3}}}\nmenu_configuration: {a: yes, b: 1}\n"))
	f.Add([]byte("header: {version: 1}\ndistro: ''\nrepos:\n  h: {layers: {../m: }}\n  r: {url: u, commit: main, patches: {0010: {path: ../p, repo: h}, 9: , 0x7: {path: q, repo: n}}}\n"))
	f.Add([]byte("header: {version: 1}\nbblayers_conf_header:\n  ? a\n  : |2+\n     b\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, _, err := yaml.Decode("p.yml", data, project, false)
		if err != nil {
			return
		}
		in := &reading{loader: &loader{root: "/r"}, merged: v}
		if in.checkHeader("p.yml", v) != nil {
			return
		}
		if p, err := in.buildProject(); err == nil {
			checkDump(t, p)
		}
	})
}

// checkDump wants a project to stay below the checkouts, and to be the same
// after it was dumped and read again.
func checkDump(t *testing.T, p Project) {
	t.Helper()
	for _, r := range p.Repos {
		if r.URL != "" && !strings.HasPrefix(p.Dir(Workspace{Dir: "/d"}, r), "/d/") {
			t.Errorf("repository %q would be checked out in %s", r.ID, p.Dir(Workspace{Dir: "/d"}, r))
		}
	}
	flat, err := Dump(p)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := yaml.Decode("p.yml", flat, project, false)
	if err != nil {
		t.Fatalf("Dump wrote what Load refuses: %v\n%s", err, flat)
	}
	second, err := (&reading{loader: &loader{root: p.Root, given: p.File}, version: p.version, merged: again}).buildProject()
	if err != nil {
		t.Fatalf("Dump wrote another project: %v\n%s", err, flat)
	}
	if diff := cmp.Diff(p, second, sameProject...); diff != "" {
		t.Errorf("Dump wrote another project (-was +is):\n%s\n%s", diff, flat)
	}
}

// sameProject compares what files say, and not where they say it.
var sameProject = []cmp.Option{
	cmp.FilterPath(func(p cmp.Path) bool {
		return slices.Contains([]string{".At", ".CommitAt", ".merged", ".version", ".setup", ".Warnings", ".read"}, p.Last().String())
	}, cmp.Ignore()),
	cmp.AllowUnexported(Project{}, Repo{}),
	cmpopts.EquateEmpty(),
}

// Loading a project again shows no step for sources of includes that are in place.
func TestLoadShowsNoStepWithoutAMove(t *testing.T) {
	url, _, _ := server(t)
	write(t, url, map[string]string{"more.yml": "header: {version: 14}\nmachine: m\n"})
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "more")
	dir := t.TempDir()
	write(t, dir, map[string]string{"p.yml": "header: {version: 14, includes: [{repo: r, file: more.yml}]}\nrepos:\n  r: {url: " + url + ", commit: " + headOf(t, url) + "}\n"})
	ws := Workspace{Dir: dir, Build: filepath.Join(dir, "b")}
	for i, want := range []string{"1 of 1 checked out", ""} {
		seen := &progresstest.Recorder{}
		if _, err := Load(progress.With(t.Context(), progress.New(seen)), filepath.Join(dir, "p.yml"), ws); err != nil {
			t.Fatal(err)
		}
		if got := seen.Last("layers").Detail; got != want {
			t.Errorf("Load %d showed %q; want %q", i, got, want)
		}
	}
}
