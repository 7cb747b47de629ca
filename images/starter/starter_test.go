package starter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/yaml"
)

// starters are the boards of Slipway that a project can begin with.
func starters(t *testing.T) (all []images.Spec) {
	t.Helper()
	files, err := fs.Glob(images.Sources(), "boards/*/board.yml")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d boards, %v", len(files), err)
	}
	for _, file := range files {
		spec, err := images.LoadSource(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		if spec.Rig == nil {
			all = append(all, spec)
		}
	}
	return all
}

func planProject(t *testing.T, like string) Plan {
	t.Helper()
	p, err := PlanProject(t.Context(), Request{Folder: "lab", Like: like, Pipelines: slices.Sorted(maps.Keys(Pipelines))})
	if err != nil {
		t.Fatalf("PlanProject like %s: %v", like, err)
	}
	return p
}

// projectOf loads a board's project file without any server.
func projectOf(t *testing.T, spec images.Spec) layers.Project {
	t.Helper()
	p, _, err := images.Project(t.Context(), spec, images.Options{Dir: t.TempDir(), Offline: true})
	if err != nil {
		t.Fatalf("the project of %s: %v", spec.Board, err)
	}
	return p
}

// A project like any board of Slipway's is read without a word, and has that board's layers.
func TestProjectLikeEachBoard(t *testing.T) {
	for _, like := range starters(t) {
		t.Run(like.Board, func(t *testing.T) {
			var original layers.Project
			if like.Debian == nil {
				original = projectOf(t, like)
			}
			folder := t.TempDir()
			t.Chdir(folder)
			plan := planProject(t, like.Board)
			if err := Write(t.Context(), ".", plan.Files); err != nil {
				t.Fatal(err)
			}
			spec, err := images.Load(plan.Board)
			if err != nil || spec.Board != like.Board+"-lab" || spec.Extends != like.Board || spec.Arch != like.Arch || !slices.Contains(spec.Suites, "product") {
				t.Fatalf("Load = %+v, %v; want a board like %s", spec, err, like.Board)
			}
			last := plan.Next[len(plan.Next)-1].Line
			if up := strings.HasPrefix(last, "up "); up != (like.Machine != nil) {
				t.Errorf("the last command is %q, for a board with a virtual machine: %v", last, like.Machine != nil)
			}
			if images.NeedsClone(spec) {
				t.Errorf("NeedsClone(%s) = true; want a board that is built anywhere", spec.Board)
			}
			if like.Debian == nil {
				compareProjects(t, projectOf(t, spec), original)
			}
		})
	}
}

func compareProjects(t *testing.T, got, want layers.Project) {
	t.Helper()
	if got.Machine != want.Machine || got.Distro != want.Distro || !slices.Equal(got.Targets, want.Targets) || len(got.LocalConf) != len(want.LocalConf) || len(got.Warnings) > 0 {
		t.Errorf("machine %q, distro %q, targets %q, %d blocks, warnings %q; want %q, %q, %q, %d, none",
			got.Machine, got.Distro, got.Targets, len(got.LocalConf), got.Warnings, want.Machine, want.Distro, want.Targets, len(want.LocalConf))
	}
	if len(got.Repos) != len(want.Repos) {
		t.Fatalf("%d repositories; want %d", len(got.Repos), len(want.Repos))
	}
	for i, r := range want.Repos {
		is := got.Repos[i]
		switch {
		case is.ID != r.ID || !slices.Equal(is.Layers, r.Layers):
			t.Errorf("repository %d is %s with layers %v; want %s with %v", i, is.ID, is.Layers, r.ID, r.Layers)
		case r.URL == "" && r.Path == "": // the clone
			if is.URL != placeholder || is.Commit == "" && is.Branch != "main" {
				t.Errorf("repository %s comes from %q at %q %q; want %s, at a commit or main", is.ID, is.URL, is.Branch, is.Commit, placeholder)
			}
		case is.URL != r.URL || is.Commit != r.Commit || is.Branch != r.Branch || is.Path != r.Path:
			t.Errorf("repository %s is %+v; want %+v", is.ID, is, r)
		}
	}
}

// Every YAML file is a mapping without aliases and duplicate keys, and what it says is short.
func TestFilesAreStrict(t *testing.T) {
	for _, like := range []string{"virt", "raspberrypi5"} {
		for _, f := range planProject(t, like).Files {
			if n := strings.Count(f.Text, "\n"); n > 60 && filepath.Base(f.Path) != "kas.yml" && !isPipeline(f.Path) || n > 200 {
				t.Errorf("%s like %s has %d lines; want at most 60, 200 for a pipeline", f.Path, like, n)
			}
			if strings.Contains(f.Text, "[[") || !strings.HasSuffix(f.Text, "\n") {
				t.Errorf("%s like %s is not filled in, or does not end with a line:\n%s", f.Path, like, f.Text)
			}
			if filepath.Ext(f.Path) != ".yml" {
				continue
			}
			if _, err := yaml.ParseMapping(f.Path, []byte(f.Text), "a mapping"); err != nil {
				t.Errorf("like %s: %v", like, err)
			}
		}
	}
}

func isPipeline(path string) bool {
	for _, files := range Pipelines {
		if slices.ContainsFunc(files, func(f PipelineFile) bool { return f.Path == path }) {
			return true
		}
	}
	return false
}

// A board without a commit for its layers says so, and names the command that pins them.
func TestRevision(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, tt := range []struct {
		p    images.Program
		want string
	}{
		{images.Program{Commit: commit}, "commit: " + commit},
		{images.Program{Commit: commit, Modified: true}, "branch: main"},
		{images.Program{Commit: "unknown"}, "branch: main"},
	} {
		if got := revision(tt.p); got != tt.want {
			t.Errorf("revision(%+v) = %s; want %s", tt.p, got, tt.want)
		}
	}
	for pinned, want := range map[bool]bool{true: false, false: true} {
		c := choices{Name: "lab"}
		if got := slices.ContainsFunc(c.steps(pinned), func(s Step) bool { return s.Line == "layers lock lab" }); got != want {
			t.Errorf("steps(%v) has layers lock: %v; want %v", pinned, got, want)
		}
	}
}

func TestHostileNames(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{
		"../x", "a/b", "/etc", ".", "..", "-x", "--like", "", "a b", "a\nb", "a\x1b[2J", "a'b", "$(id)", "a:b", "lab.yml", "a.json", "é", strings.Repeat("a", 64), "virt",
	} {
		if name == "" {
			if err := images.CheckBoardName(name); err == nil {
				t.Error("CheckBoardName of nothing = nil; want an error")
			}
			continue
		}
		if _, err := PlanProject(t.Context(), Request{Like: "virt", Name: name}); err == nil || !strings.Contains(err.Error(), "\nnext: boards") || strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("PlanProject named %q: %v; want it refused", name, err)
		}
	}
	for like, want := range map[string]string{"vrt": `unknown board "vrt": did you mean virt?`, "bluefield-rig": "a rig is made in a clone", "../virt": `unknown board "../virt"`} {
		if _, err := PlanProject(t.Context(), Request{Like: like, Name: "x"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("PlanProject like %q: %v; want %s", like, err, want)
		}
	}
}

// A name that is allowed is one folder, one word of a shell, and a text in YAML.
func FuzzBoardName(f *testing.F) {
	for _, name := range []string{"lab", "1e3", "null", "0x1F", "12:30", "a/b", "a'b", "2026-01-01", "yes", "1_0", "a.yml"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if images.CheckBoardName(name) != nil {
			return
		}
		if !filepath.IsLocal(name) || filepath.Base(name) != name || strings.ContainsAny(name, " \t\n'\"$`\\;&|<>()*?[]{}!#~=%:,") {
			t.Fatalf("CheckBoardName(%q) = nil; want a plain word", name)
		}
		text, err := choices{Name: name, Like: name}.fill("board.yml.tmpl")
		if err != nil {
			t.Fatal(err)
		}
		var spec images.Spec
		if err := goyaml.Load([]byte(text), &spec, goyaml.WithKnownFields()); err != nil || spec.Extends != name {
			t.Errorf("extends is %q, %v; want %q", spec.Extends, err, name)
		}
	})
}

// list returns all paths below a folder.
func list(t *testing.T, folder string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFilesThatExist(t *testing.T) {
	files := planProject(t, "virt").Files
	for _, f := range files {
		folder := t.TempDir()
		at := filepath.Join(folder, f.Path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("mine"), 0o600)); err != nil {
			t.Fatal(err)
		}
		before := list(t, folder)
		for name, write := range map[string]func(context.Context, string, []File) error{"Write": Write, "Check": func(_ context.Context, folder string, files []File) error { return Check(folder, files) }} {
			if err := write(t.Context(), folder, files); err == nil || !strings.Contains(err.Error(), at) || strings.Count(err.Error(), folder) != 2 {
				t.Errorf("%s over %s: %v; want it named alone", name, f.Path, err)
			}
		}
		text, err := os.ReadFile(at)
		if after := list(t, folder); string(text) != "mine" || err != nil || !slices.Equal(after, before) {
			t.Errorf("%s holds %q, %v, beside %q; want it as it was", f.Path, text, err, after)
		}
	}
	folder := filepath.Join(t.TempDir(), "a/b")
	if err := Check(folder, files); err != nil {
		t.Errorf("Check of a new folder = %v", err)
	}
	if all := list(t, filepath.Dir(filepath.Dir(folder))); len(all) != 1 {
		t.Errorf("Check wrote %q; want nothing", all)
	}
}

// No link leads files out of the project's folder.
func TestLinksOutOfTheProject(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(folder, "suites")); err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), folder, planProject(t, "virt").Files); err == nil {
		t.Error("Write through a link = nil; want an error")
	}
	if after := list(t, outside); !slices.Equal(after, []string{outside}) {
		t.Errorf("outside of the folder: %q; want nothing new", after)
	}
}

// endsAfter is a context that ends when it was asked a number of times.
type endsAfter struct {
	context.Context
	left int
	end  context.CancelCauseFunc
}

func (c *endsAfter) Err() error { // context.Cause asks it first
	if c.left--; c.left < 0 {
		c.end(errors.New("interrupted"))
	}
	return c.Context.Err()
}

// Write that is stopped at any moment says so, and leaves whole files alone.
func TestInterrupted(t *testing.T) {
	files := planProject(t, "raspberrypi5").Files
	for left := range len(files) + 1 {
		folder := filepath.Join(t.TempDir(), "lab")
		ctx, end := context.WithCancelCause(t.Context())
		err := Write(&endsAfter{ctx, left, end}, folder, files)
		end(nil)
		if err == nil || err.Error() != "interrupted" {
			t.Fatalf("Write interrupted at %d: %v", left, err)
		}
		for i, f := range files {
			text, err := os.ReadFile(filepath.Join(folder, f.Path))
			if i < left && string(text) != f.Text || i >= left && err == nil {
				t.Errorf("Write interrupted at %d: %s = %.20q, %v; want the first files whole and no other", left, f.Path, text, err)
			}
		}
	}
}

// Of two writers at the same time at most one succeeds, and then all files are its own.
func TestTwoWriters(t *testing.T) {
	files, alone := planProject(t, "virt").Files, t.TempDir()
	if err := Write(t.Context(), alone, files); err != nil {
		t.Fatal(err)
	}
	paths := len(list(t, alone))
	for range 20 {
		folder := t.TempDir()
		results := make(chan error)
		for range 2 {
			go func() { results <- Write(context.Background(), folder, files) }()
		}
		one, two := <-results, <-results
		if one == nil && two == nil {
			t.Fatal("two writers succeeded; want one refused")
		}
		if one != nil && two != nil {
			continue
		}
		if n := len(list(t, folder)); n != paths {
			t.Fatalf("%d paths; want the %d of one project", n, paths)
		}
		for _, f := range files {
			if text, err := os.ReadFile(filepath.Join(folder, f.Path)); string(text) != f.Text || err != nil {
				t.Errorf("%s: %v; want it whole", f.Path, err)
			}
		}
	}
}

func TestPlanBoard(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	if err := Write(t.Context(), ".", planProject(t, "bluefield2").Files); err != nil {
		t.Fatal(err)
	}
	boards := filepath.Join(folder, "boards")
	for _, tt := range []struct {
		name, like string
		files      int
		lines      int // of board.yml, at most
	}{
		{"second", "bluefield2-lab", 1, 3},
		{"1e3", "second", 1, 3},
		{"third", "1e3", 1, 3},
		{"nano", "jetson-orin-nano-devkit", 2, 12},
		{"v", "virt", 1, 9},
	} {
		p, err := PlanBoard(t.Context(), boards, Request{Name: tt.name, Like: tt.like})
		if err != nil || len(p.Files) != tt.files || strings.Count(p.Files[0].Text, "\n") > tt.lines {
			t.Fatalf("PlanBoard(%s like %s) = %+v, %v; want %d files", tt.name, tt.like, p, err, tt.files)
		}
		if err := Write(t.Context(), boards, p.Files); err != nil {
			t.Fatal(err)
		}
		if spec, err := images.Load(tt.name); err != nil || spec.Extends != tt.like || !slices.Contains(spec.Suites, "product") || images.NeedsClone(spec) {
			t.Errorf("Load(%s) = %+v, %v; want a board like %s", tt.name, spec, err, tt.like)
		}
	}
	if _, err := PlanBoard(t.Context(), boards, Request{Name: "second", Like: "virt"}); err == nil || !strings.Contains(err.Error(), "another board has this name") {
		t.Errorf("PlanBoard of a name that is taken: %v", err)
	}
	for name, better := range map[string]string{"Isar_Rack": "isar_rack", "a+B": "a-b", "x-": "x", "A..b": "a-b"} {
		if _, err := PlanBoard(t.Context(), boards, Request{Name: name, Like: "virt"}); err == nil || !strings.HasSuffix(err.Error(), "\nnext: board new "+better+" --like=virt") {
			t.Errorf("PlanBoard(%q) = %v; want board new %s as the next line", name, err, better)
		}
		if _, err := PlanProject(t.Context(), Request{Folder: "my lab", Name: name, Like: "virt"}); err == nil || !strings.HasSuffix(err.Error(), "\nnext: init 'my lab' --like=virt --name="+better) {
			t.Errorf("PlanProject(%q) = %v; want init with --name=%s as the next line", name, err, better)
		}
	}
	files, err := ReadProject(boards)
	if err != nil {
		t.Fatal(err)
	}
	if found := FindEdits(files); len(found) < 10 || fmt.Sprint(found[0]) != boards+"/1e3/board.yml:3: what the hardware is, in one line" {
		t.Errorf("FindEdits = %q", found)
	}
}

// A project is begun in a repository that has a page and a list of ignored files.
func TestLeaveOut(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"README.md", ".gitignore"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("mine\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	plan := planProject(t, "virt")
	n := len(plan.Files)
	edits := plan.LeaveOut(folder, false)
	if len(edits) != 2 || len(plan.Files) != n-2 || !strings.Contains(edits[0].String()+edits[1].String(), folder+"/.gitignore:1: it is kept as it is: add the line /build/") {
		t.Errorf("LeaveOut = %v, %d of %d files", edits, len(plan.Files), n)
	}
	if err := Write(t.Context(), folder, plan.Files); err != nil {
		t.Errorf("Write = %v", err)
	}
	again := planProject(t, "virt")
	if edits := again.LeaveOut(folder, false); len(edits) != 2 || len(again.Files) != n-2 {
		t.Errorf("LeaveOut in a project = %v; want only the files that the user must complete", edits)
	}
	if edits := again.LeaveOut(folder, true); len(edits) != n-2 || len(again.Files) != 0 {
		t.Errorf("LeaveOut of all = %v, %d files; want all that Write wrote", edits, len(again.Files))
	}
	if text, err := os.ReadFile(filepath.Join(folder, "README.md")); string(text) != "mine\n" {
		t.Errorf("README.md holds %q, %v", text, err)
	}
	if edits := plan.LeaveOut(t.TempDir(), false); len(edits) > 0 {
		t.Errorf("LeaveOut of a new folder = %v", edits)
	}
}
