package builder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images"
)

// An artifact says what it was made of. A statement of another build is refused.
func TestProvenance(t *testing.T) {
	replayed(t)
	for name, value := range map[string]string{
		"GITHUB_SERVER_URL": "https://git.example.com", "GITHUB_REPOSITORY": "team/boards", "GITHUB_RUN_ID": "17",
	} {
		t.Setenv(name, value)
	}
	p, dir := tinyProject(t, standIn(t), "tiny-image")
	gitInit(t, p.Root)
	runGit(t, p.Root, "remote", "add", "origin", "https://me:secret@git.example.com/team/boards.git")
	spec, err := images.Load(p.File)
	if err != nil {
		t.Fatal(err)
	}
	opt := images.Options{Dir: filepath.Dir(dir)}
	a, err := buildProject(t.Context(), spec, p, opt)
	if err != nil {
		t.Fatal(err)
	}
	commit := runGit(t, p.Root, "rev-parse", "HEAD")
	if a.Source == nil || a.Source.Commit != commit || a.Source.URL != "https://git.example.com/team/boards.git" {
		t.Errorf("source: %+v", a.Source)
	}
	if a.Tools["git"] == "" {
		t.Errorf("tools: %v; want git's version", a.Tools)
	}
	got, err := a.ReadStatement()
	want := images.Statement{
		Subjects: map[string]string{a.Files[0].Name: a.Files[0].SHA256},
		Builder:  "https://git.example.com/team/boards", Run: "https://git.example.com/team/boards/actions/runs/17", Board: a.Board, Key: a.Key,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ReadStatement: %v\n%s", err, diff)
	}
	text, err := os.ReadFile(filepath.Join(a.Dir(), "provenance.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{
		`"_type": "https://in-toto.io/Statement/v1"`, `"predicateType": "https://slsa.dev/provenance/v1"`,
		`"uri": "git+https://git.example.com/team/boards.git@` + commit + `"`, `"gitCommit": "` + commit + `"`, `"git": "` + a.Tools["git"] + `"`,
	} {
		if !strings.Contains(string(text), says) {
			t.Errorf("it does not say %s", says)
		}
	}
	if strings.Contains(string(text), "secret") {
		t.Error("it has the password")
	}
	for name, change := range map[string]func(*images.Artifact){
		"another board":    func(a *images.Artifact) { a.Board = "other" },
		"another key":      func(a *images.Artifact) { a.Key = strings.Repeat("0", 64) },
		"another digest":   func(a *images.Artifact) { a.Files[0].SHA256 = strings.Repeat("0", 64) },
		"another name":     func(a *images.Artifact) { a.Files[0].Name = "other" },
		"one file more":    func(a *images.Artifact) { a.Files = append(a.Files, images.File{Kind: images.Bundle, Name: "x"}) },
		"one file less":    func(a *images.Artifact) { a.Files = a.Files[1:] },
		"another artifact": func(a *images.Artifact) { a.Board, a.Key = "", "" },
	} {
		other := a
		other.Files = append([]images.File(nil), a.Files...)
		change(&other)
		if _, err := other.ReadStatement(); err == nil || !strings.Contains(err.Error(), "provenance.json: it is of another build") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A build that changes nothing keeps the signature. One that changes something removes it.
func TestSignatureOfRebuild(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "tiny-image")
	gitInit(t, p.Root)
	opt := images.Options{Dir: filepath.Dir(dir)}
	build := func() string {
		t.Helper()
		if _, err := buildProject(t.Context(), tiny, p, opt); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(images.ArtifactPath(dir))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first := build()
	must(os.WriteFile(images.ArtifactPath(dir)+".sig", nil, 0o644))
	if again := build(); again != first {
		t.Errorf("another description (-first +again)\n%s", cmp.Diff(first, again))
	}
	if _, err := os.Stat(images.ArtifactPath(dir) + ".sig"); err != nil {
		t.Errorf("after a build that changed nothing: %v", err)
	}
	p.LocalConf = map[string]string{"more": `MORE = "1"`}
	if again := build(); again == first {
		t.Error("another configuration, and the same description")
	}
	if _, err := os.Stat(images.ArtifactPath(dir) + ".sig"); err == nil {
		t.Error("another build, and the old signature is still there")
	}
}
