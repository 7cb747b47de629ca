package plan

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images"
	"slipway/layers/plaintext"
)

func textOf(s string) *string { return &s }

// oneBoard is a project with one board of a layer in a submodule, and one of a layer here.
func oneBoard(t *testing.T) clone {
	t.Helper()
	t.Setenv("SLIPWAY_LOCAL", "")
	c := newClone(t)
	c.write(map[string]*string{
		"boards/sub/board.yml":      textOf("extends: jetson-orin-nano-devkit\nsuites: []\n"),
		"boards/sub/kas.yml":        textOf("header: {version: 14}\nrepos:\n  up:\n    path: links/up\n    layers: {meta: }\n  oe: {url: 'https://example.org/oe', branch: main}\n"),
		"boards/deep/board.yml":     textOf("extends: jetson-orin-nano-devkit\nsuites: []\n"),
		"boards/deep/kas.yml":       textOf("header: {version: 14}\nrepos: {here: {layers: {links/deep: }}}\n"),
		"boards/here/board.yml":     textOf("extends: jetson-orin-nano-devkit\n"),
		"boards/here/kas.yml":       textOf("header: {version: 14}\nrepos: {here: {layers: {meta-here: }}}\n"),
		"meta-here/conf/layer.conf": textOf("A = \"${LAYERDIR}/recipes\"\n"),
		"README":                    textOf("a\n"),
	})
	if err := os.MkdirAll(filepath.Join(c.dir, "links"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../repos/up", filepath.Join(c.dir, "links/up")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../repos/up/meta-deep", filepath.Join(c.dir, "links/deep")); err != nil {
		t.Fatal(err)
	}
	c.gitlink("repos/up", oldPin)
	return c
}

// gitlink sets the commit of a submodule.
func (c clone) gitlink(path, commit string) {
	c.t.Helper()
	if err := os.MkdirAll(filepath.Join(c.dir, path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	c.git("update-index", "--add", "--cacheinfo", submoduleMode+","+commit+","+path)
}

func makePlan(t *testing.T, c clone, from, to string) (Plan, error) {
	t.Helper()
	return Make(t.Context(), filepath.Join(c.dir, "boards"), Options{From: from, To: to, Images: images.Options{Dir: t.TempDir()}})
}

func does(p Plan) map[string]string {
	m := map[string]string{}
	for _, b := range p.Boards {
		m[b.Board] = b.neededWork() + " " + strings.Join(b.Why, ", ")
	}
	return m
}

// A submodule's layers are its commit, also through a link.
func TestSubmodule(t *testing.T) {
	c := oneBoard(t)
	c.git("add", "boards", "meta-here", "README", "links")
	c.git("commit", "-qm", "base")
	c.gitlink("repos/up", newPin)
	c.git("commit", "-qm", "move")
	p, err := makePlan(t, c, "HEAD~1", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"here": "- ", "deep": "build submodule repos/up moves from 111111111111 to 222222222222", "sub": "build submodule repos/up moves from 111111111111 to 222222222222"}
	if diff := cmp.Diff(want, does(p)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if notes := p.Boards[2].Notes; len(notes) != 1 || !strings.Contains(notes[0], "no pin says the commit of oe") {
		t.Errorf("notes = %q; want that oe has no pin", notes)
	}
}

// bitbake that lies in the repository is an input of each board that it builds.
func TestOwnBitbake(t *testing.T) {
	c := oneBoard(t)
	c.write(map[string]*string{
		"boards/own/board.yml":        textOf("extends: jetson-orin-nano-devkit\n"),
		"boards/own/kas.yml":          textOf("header: {version: 14}\nrepos:\n  poky: {path: poky, layers: {meta: }}\n  tool: {path: tool, layers: {.: disabled}}\n"),
		"poky/meta/conf/layer.conf":   textOf("A = \"1\"\n"),
		"poky/bitbake/lib/bb/data.py": textOf("a\n"),
		"tool/x":                      textOf("a\n"),
		"bitbake/bin/bitbake":         textOf("a\n"),
	})
	for path, want := range map[string]string{"poky/bitbake/lib/bb/data.py": "own", "tool/x": "own", "bitbake/bin/bitbake": "here deep"} {
		base := c.commit("base")
		c.write(map[string]*string{path: textOf(path)})
		p, err := makePlan(t, c, base, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range p.Boards {
			if b.Build != slices.Contains(strings.Fields(want), b.Board) {
				t.Errorf("%s: %s: build is %v, %q", path, b.Board, b.Build, b.Why)
			}
		}
	}
}

// A folder that SLIPWAY_LOCAL names is nobody's commit: it is taken.
func TestLayerElsewhere(t *testing.T) {
	c := oneBoard(t)
	base := c.commit("base")
	c.write(map[string]*string{"README": textOf("b\n")})
	c.commit("change")
	outside := t.TempDir()
	c.write(map[string]*string{"boards/sub": nil, "boards/deep": nil}) // have no repository "here"
	t.Setenv("SLIPWAY_LOCAL", "here="+outside)
	p, err := makePlan(t, c, base, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := does(p)["here"]; !strings.HasPrefix(got, "build "+outside) {
		t.Errorf("here = %q; want it built because of %s", got, outside)
	}
}

// Only the branch's own changes count, not those that main got in the meantime.
func TestMergeBase(t *testing.T) {
	c := oneBoard(t)
	base := c.commit("base")
	c.write(map[string]*string{"meta-here/conf/layer.conf": textOf("B = \"1\"\n")})
	c.commit("on main")
	c.git("checkout", "-qb", "topic", base)
	c.write(map[string]*string{"README": textOf("b\n")})
	c.commit("on topic")
	p, err := makePlan(t, c, "main", "")
	if err != nil {
		t.Fatal(err)
	}
	if builds, _ := p.count(); p.From != base || builds > 0 {
		t.Errorf("plan = %+v; want nothing to build since %s", p, base)
	}
}

func TestWrongCommits(t *testing.T) {
	c := oneBoard(t)
	base := c.commit("base")
	c.git("checkout", "-q", "--orphan", "alone")
	c.commit("alone")
	c.git("checkout", "-q", "main")
	c.commit("second")
	shallow := newClone(t)
	shallow.git("fetch", "-q", "--depth=1", "file://"+c.dir, "main", "alone:alone")
	shallow.git("checkout", "-q", "FETCH_HEAD")
	for _, test := range []struct {
		c        clone
		from, to string
		want     []string
	}{
		{c, "nosuch", "", []string{`--from: "nosuch" is no commit`, "next: git fetch --all --tags"}},
		{c, "alone~3", "", []string{`"alone~3" does not exist: the history of alone is shorter`, "next: git log --oneline alone"}},
		{c, "--output=x", "", []string{`--from: "--output=x" is no commit`}},
		{c, base, "nosuch", []string{`--to: "nosuch" is no commit`}},
		{c, "alone", "", []string{"have no commit in common", "next: git log"}},
		{shallow, base, "", []string{"which is shallow", "next: git fetch --unshallow"}},
		{shallow, "alone", "", []string{"this clone is shallow", "next: git fetch --unshallow"}},
	} {
		_, err := makePlan(t, test.c, test.from, test.to)
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("from %s to %q: %v; want %q", test.from, test.to, err, want)
			}
		}
	}
	_, err := Make(t.Context(), t.TempDir(), Options{From: "HEAD"})
	if err == nil || !strings.Contains(err.Error(), "no git repository") {
		t.Errorf("without git: %v", err)
	}
}

// What a build's checkouts and the work tree have, a plan leaves as it is.
func TestLeavesAll(t *testing.T) {
	c, base, shared := newProject(t)
	dir := t.TempDir()
	c.write(c.editsOf(map[string]string{"boards/oe-a/kas.yml": "FIRST=>THIRD"}, shared))
	before := c.git("status", "--porcelain")
	if _, err := Make(t.Context(), filepath.Join(c.dir, "boards"), Options{From: base, Images: images.Options{Dir: dir}}); err != nil {
		t.Fatal(err)
	}
	if after := c.git("status", "--porcelain"); after != before {
		t.Errorf("git status was %q and is %q", before, after)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "cache" {
		t.Errorf("left = %q, %v; want the cache of repositories alone", left, err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "slipway-plan-*")); len(left) > 0 {
		t.Errorf("left = %q", left)
	}
}

func TestForms(t *testing.T) {
	p := Plan{From: "c0ffee", changed: 2, Boards: []Board{
		{Board: "a", Build: true, Test: true, Why: []string{"x differs", "y differs"}},
		{Board: "b", Test: true, Why: []string{"z differs"}, Notes: []string{"no pin"}},
		{Board: "c", Why: []string{}},
	}, Gone: []string{"d"}, Matrix: Matrix{[]Job{{"a", "build", true}}}, Lab: Matrix{[]Job{{"a", "flash", true}}}}
	var text, github, asJSON bytes.Buffer
	for _, err := range []error{p.Write(&text), p.writeGitHub(&github), plaintext.WriteJSON(&asJSON, p)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := "a  build  x differs, and 1 more\nb  test   z differs\nc  -      \nd  gone   \nb  note   no pin\n2 files changed since c0ffee: build 1 of 3 boards, test 2\n"
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if want := "any=true\nmatrix={\"include\":[{\"board\":\"a\",\"command\":\"build\",\"bitbake\":true}]}\n" +
		"lab_any=true\nlab={\"include\":[{\"board\":\"a\",\"command\":\"flash\",\"bitbake\":true}]}\n"; github.String() != want {
		t.Errorf("github = %q; want %q", github.String(), want)
	}
	output := filepath.Join(t.TempDir(), "output")
	var shown bytes.Buffer
	for range 2 { // GitHub's file holds what earlier steps wrote
		if err := p.SaveGitHub(&shown, output); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(output); err != nil || string(got) != strings.Repeat(github.String(), 2) || shown.String() != strings.Repeat(text.String(), 2) {
		t.Errorf("GITHUB_OUTPUT = %q, %v, and the plan %q", got, err, shown.String())
	}
	github.Reset()
	if err := (Plan{}).writeGitHub(&github); err != nil || github.String() != "any=false\nmatrix={\"include\":[]}\nlab_any=false\nlab={\"include\":[]}\n" {
		t.Errorf("github without a job = %q, %v", github.String(), err)
	}
	var back Plan
	if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || len(back.Boards) != 3 || len(back.Matrix.Include) != 1 {
		t.Errorf("json = %s, %v", asJSON.String(), err)
	}
}

func FuzzRaw(f *testing.F) {
	f.Add(":100644 100644 " + oldPin + " " + newPin + " M\x00a b\x00:000000 160000 0 1 A\x00c\x00")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseRaw(text)
		for _, c := range all {
			if err != nil || c.path == "" {
				t.Errorf("parseRaw = %+v, %v", c, err)
			}
		}
	})
}
