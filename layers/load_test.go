package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		File: filepath.Join(dir, "boards/orin.yml"), Root: dir,
		Machine: "jetson-orin-nano-devkit", Distro: "poky", Task: "build",
		Targets: []string{"core-image-minimal", "mc:xavier:core-image-base"},
		Env:     map[string]*string{"SSTATE_DIR": nil, "EDITION": &no},
		Repos: []Repo{
			{ID: "poky", Name: "poky", URL: "https://example.com/poky", Branch: "scarthgap", Locked: true, Commit: strings.Repeat("1", 40), Layers: []Layer{{Name: "meta"}, {Name: "meta-poky"}}},
			{ID: "here", Name: "here", Branch: "scarthgap", Layers: []Layer{{}}},
			{ID: "meta-tegra", Name: "meta-tegra", URL: "https://example.com/meta-tegra", Commit: sha, Layers: []Layer{{}}},
			{ID: "pinned", Name: "pinned", URL: "u", Branch: "scarthgap", Layers: []Layer{{Name: "x", Priority: 7}}},
		},
		LocalConf: map[string]string{"a": "one", "b": "three = \"3\"\n"},
	}
	ignore := cmp.FilterPath(func(p cmp.Path) bool {
		name := p.Last().String()
		return name == ".at" || name == ".merged" || name == ".version"
	}, cmp.Ignore())
	if diff := cmp.Diff(want, p, ignore, cmp.AllowUnexported(Project{}, Repo{})); diff != "" {
		t.Errorf("Load: (-want +got)\n%s", diff)
	}
}

func TestLoadRefuses(t *testing.T) {
	repo := func(keys string) string { return "header: {version: 1}\nrepos:\n  r: {" + keys + "}\n" }
	tests := []struct{ name, input, want string }{
		{"no header", "machine: x\n", "no header.version"},
		{"too new", "header: {version: 24}\n", `1:19: header.version is "24"; slipway reads 1 to 23`},
		{"not a number", "header: {version: '0.10'}\n", "want a number"},
		{"empty", "", "not valid YAML"},
		{"broken", "header: [1\n", "not valid YAML"},
		{"a list", "- header\n", "the file is a list; want keys with values"},
		{"two documents", "header: {version: 1}\n---\nheader: {version: 1}\n", "not valid YAML"},
		{"unknown key", "header: {version: 1}\nmachin: x\n", `2:1: unknown key "machin" in the file (have bblayers_conf_header,`},
		{"unknown repo key", repo("url: u, comit: x"), `3:15: unknown key "comit" in repos.r (have branch, commit,`},
		{"patches", repo("url: u, patches: {}"), "3:24: repos.r.patches is not yet read by slipway"},
		{"signers", "header: {version: 19}\nsigners: {}\n", "signers is not yet read by slipway"},
		{"cross-repo include", "header: {version: 1, includes: [{repo: a, file: b}]}\n", "a file of another repository"},
		{"hg", repo("url: u, branch: b, type: hg"), `repos.r.type "hg" is not yet read`},
		{"merge key", "header: {version: 1}\nrepos: {<<: {a: }}\n", "merge key <<"},
		{"isar", "header: {version: 1}\nbuild_system: isar\n", `build_system "isar"`},
		{"wrong type", "header: {version: 1}\nmachine: [a]\n", "2:10: machine is a list; want a text"},
		{"short commit", repo("url: u, commit: 1d54d1c473"), "not a whole commit id"},
		{"no ref", repo("url: u"), "no commit, tag or branch"},
		{"dashed url", repo("url: --upload-pack=x, branch: b"), "not a repository's address"},
		{"ext url", repo("url: 'ext::sh -c id', branch: b"), "not a repository's address"},
		{"dashed branch", repo("url: u, branch: --force"), "cannot be a branch or tag"},
		{"refspec and branch", repo("url: u, branch: b, refspec: c"), "drop the refspec"},
		{"tag and branch", repo("url: u, branch: b, tag: t"), "both a tag and a branch"},
		{"path outside", repo("url: u, branch: b, path: ../../etc"), "not below the project's"},
		{"name outside", repo("url: u, branch: b, name: /etc"), "not below the project's"},
		{"layer outside", repo("url: u, branch: b, layers: {../../x: }"), "not a folder of the repository"},
		{"prio", repo("url: u, branch: b, layers: {x: {prio: 100}}"), "not a number from -99 to 99"},
		{"target", "header: {version: 1}\ntarget: --server-only\n", "cannot be a machine, distro, task or target"},
		{"machine", "header: {version: 1}\nmachine: 'a\"b'\n", "cannot be a machine"},
		{"itself", "header: {version: 1, includes: [p.yml]}\n", "includes itself"},
		{"include outside", "header: {version: 1, includes: [../x.yml]}\n", "leaves its repository"},
		{"include through a link", "header: {version: 1, includes: [link.yml]}\n", "leaves its repository"},
		{"include missing", "header: {version: 1, includes: [none.yml]}\n", `include "none.yml" is neither in`},
		{"too deep", "header: " + strings.Repeat("[", 5000) + "\n", "not valid YAML"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"x.yml": "header: {version: 1}\n", "in/p.yml": tt.input})
			if err := os.Symlink("../x.yml", filepath.Join(dir, "in/link.yml")); err != nil {
				t.Fatal(err)
			}
			_, err := Load(t.Context(), filepath.Join(dir, "in/p.yml"), Workspace{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v; want an error with %q", err, tt.want)
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

func FuzzParse(f *testing.F) {
	f.Add([]byte("header: {version: 14, includes: [a.yml]}\nmachine: m\ntarget: [a, mc:b:c]\n"))
	f.Add([]byte("header: {version: 1}\nrepos:\n  r: {url: u, commit: " + sha + ", layers: {a: , b: disabled, c: {prio: 3}}}\n"))
	f.Add([]byte("header: &h {version: 1}\nenv: &e {A: , B: c}\noverrides: {repos: {r: {commit: , branch: x}}}\n"))
	f.Add([]byte("header: &a [*a, *a]\n"))
	f.Add([]byte("{\n\t\"header\": {\"version\": 3}\n}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, _, err := parse("p.yml", data)
		if err != nil {
			return
		}
		l := loader{root: "/r", merged: merge(nil, v)}
		if l.checkHeader("p.yml", v) != nil {
			return
		}
		p, err := l.project()
		if err != nil {
			return
		}
		for _, r := range p.Repos {
			if r.URL != "" && !strings.HasPrefix(p.Dir(Workspace{Dir: "/d"}, r), "/d/") {
				t.Errorf("repository %q would be checked out in %s", r.ID, p.Dir(Workspace{Dir: "/d"}, r))
			}
		}
		flat, err := Dump(p)
		if err != nil {
			t.Fatalf("Dump: %v", err)
		}
		again, _, err := parse("p.yml", flat)
		if err != nil {
			t.Fatalf("Dump wrote what Load refuses: %v\n%s", err, flat)
		}
		if _, err := (&loader{root: "/r", merged: again}).project(); err != nil {
			t.Errorf("Dump wrote another project: %v\n%s", err, flat)
		}
	})
}
