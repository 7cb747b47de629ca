package ci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/ci/doctor"
	"slipway/ci/report"
	"slipway/images"
	"slipway/images/starter"
	"slipway/layers/localfile"
)

// inNewProject makes a project in a new folder, and that the current one.
func inNewProject(t *testing.T, like string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := InitProject(t.Context(), io.Discard, ".", starter.Request{Like: like, Name: "lab", Pipelines: []string{"github", "gitlab"}}, ProjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

// What init writes passes the check of a project, and doctor has nothing to say of its files.
func TestNewProjectIsComplete(t *testing.T) {
	for _, like := range []string{"jetson-orin-nano-devkit", "bluefield3", "raspberrypi5", "qemux86-64", "virt"} {
		t.Run(like, func(t *testing.T) {
			inNewProject(t, like)
			var out strings.Builder
			if err := CheckProject(t.Context(), &out, images.Options{Dir: "build"}, CheckOptions{}); err != nil || !strings.Contains(out.String(), "boards that can be read: 1,") {
				t.Errorf("CheckProject = %v\n%s", err, out.String())
			}
			spec, err := images.Load("lab")
			if err != nil {
				t.Fatal(err)
			}
			out.Reset()
			_ = doctor.Look(t.Context(), &out, spec, doctor.Options{Build: images.Options{Dir: "build", Offline: true}, JSON: true}) // of this machine
			var findings []doctor.Finding
			if err := json.Unmarshal([]byte(out.String()), &findings); err != nil {
				t.Fatal(err)
			}
			for _, f := range findings {
				if slices.Contains([]string{"clone", "project", "suites", "configuration"}, f.What) && f.State != doctor.OK {
					t.Errorf("doctor says %+v; want ok", f)
				}
			}
		})
	}
}

func TestCheckProject(t *testing.T) {
	for name, tt := range map[string]struct {
		file, text string
		want       string // in the error
	}{
		"an unknown key":      {"boards/lab/board.yml", "extends: raspberrypi5\nsuits: [base]\n", `boards/lab/board.yml:2:1: unknown key "suits": did you mean suites?`},
		"an unknown value":    {"boards/lab/board.yml", "extends: raspberrypi5\nflash: {kinds: [blok]}\n", `boards/lab/board.yml:2:9: flash.kinds: unknown value "blok": did you mean block?`},
		"an unknown board":    {"boards/lab/board.yml", "extends: raspberrypi6\n", `boards/lab/board.yml:1:1: extends: unknown value "raspberrypi6": did you mean raspberrypi`},
		"a wrong kind":        {"boards/lab/board.yml", "extends: raspberrypi5\ndescription: [a]\n", `boards/lab/board.yml:2:14: want a text`},
		"an unknown suite":    {"boards/lab/board.yml", "extends: raspberrypi5\nsuites: [produkt]\n", `boards/lab/board.yml:2:1: suites: no suite "produkt": did you mean product?`},
		"a wrong section":     {"suites/product.yml", "fiel: {/etc: {exists: true}}\n", `suites/product.yml:1:1: unknown section "fiel": did you mean file?`},
		"an unknown kas key":  {"boards/lab/kas.yml", "header: {version: 14}\nmachin: x\n", "boards/lab/kas.yml:2"},
		"a kas key's place":   {"boards/lab/kas.yml", "header: {version: 14}\nmachin: x\n", "did you mean machine?"},
		"no YAML":             {"boards/lab/kas.yml", "header: [\n", "boards/lab/kas.yml"},
		"a second board":      {"boards/rack/board.yml", "extends: lab\nsuites: [produkt]\n", "boards/rack/board.yml:2:1: suites:"},
		"a name of its own":   {"boards/my board/board.yml", "extends: lab\n", `my board/board.yml: board name "my board": want letters`},
		"a project file name": {"boards/x.yml/board.yml", "extends: lab\n", `x.yml/board.yml: board name "x.yml"`},
	} {
		t.Run(name, func(t *testing.T) {
			inNewProject(t, "raspberrypi5")
			if err := os.MkdirAll(filepath.Dir(tt.file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(tt.file, []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := CheckProject(t.Context(), io.Discard, images.Options{Dir: "build"}, CheckOptions{}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("CheckProject = %v; want %s", err, tt.want)
			}
		})
	}
}

// A mistake in a suite that boards share is one finding, at its own line. A finding without a line
// is not lost beside it.
func TestSharedMistakeIsSaidOnce(t *testing.T) {
	inNewProject(t, "virt")
	for _, name := range []string{"rack", "shelf"} {
		if err := AddBoard(t.Context(), io.Discard, name, "lab", ProjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ suite, want string }{
		{"file:\n  /etc/os-release: {exist: true}\n", `suites/product.yml:2:21: unknown attribute "exist"`},
		{"file: {}\n", "suites/product.yml:1: no checks"},
	} {
		err := os.WriteFile("suites/product.yml", []byte(tt.suite), 0o644)
		if err := errors.Join(err, os.MkdirAll("boards/bad", 0o755), os.WriteFile("boards/bad/board.yml", []byte("extends: raspberrypi5\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		err = CheckProject(t.Context(), io.Discard, images.Options{Dir: "build"}, CheckOptions{Quality: "q.json"})
		if err == nil || strings.Count(err.Error(), tt.want) != 1 || strings.Count(err.Error(), "product.yml") != 1 {
			t.Errorf("CheckProject = %v; want %s once", err, tt.want)
		}
		quality, err := os.ReadFile("q.json")
		if text := string(quality); err != nil || strings.Count(text, `"major"`) != 2 || !strings.Contains(text, `"path": "suites/product.yml"`) || !strings.Contains(text, "no project file beside it") {
			t.Errorf("code quality is %s, %v; want one finding of the suite and one of the board", quality, err)
		}
	}
}

// From a folder inside boards/ the project is the same.
func TestProjectFromInside(t *testing.T) {
	inNewProject(t, "virt")
	for _, folder := range []string{"boards", "lab"} {
		t.Chdir(folder)
		var out strings.Builder
		if err := AddBoard(t.Context(), &out, "rack", "lab", ProjectOptions{DryRun: true}); err != nil {
			t.Errorf("AddBoard in %s = %v\n%s", folder, err, out.String())
		}
		out.Reset()
		if err := CheckProject(t.Context(), &out, images.Options{Dir: "build"}, CheckOptions{}); err != nil || !strings.Contains(out.String(), "suites/product.yml:1: ") {
			t.Errorf("CheckProject in %s = %v\n%s", folder, err, out.String())
		}
	}
}

// Without its project file a board of a project names the folder that lacks it, no clone.
func TestCheckWithoutKas(t *testing.T) {
	inNewProject(t, "raspberrypi5")
	if err := os.Remove("boards/lab/kas.yml"); err != nil {
		t.Fatal(err)
	}
	if err := CheckProject(t.Context(), io.Discard, images.Options{Dir: "build"}, CheckOptions{}); err == nil || !strings.Contains(err.Error(), "boards/lab/board.yml: no project file beside it (kas.yml or setup.conf.json)") || !strings.Contains(err.Error(), "\nnext: init /tmp/lab --like=raspberrypi5  # then copy its kas.yml to /") {
		t.Errorf("CheckProject = %v", err)
	}
}

// up reads the suites before it builds.
func TestUpReadsSuitesFirst(t *testing.T) {
	inNewProject(t, "virt")
	if err := os.WriteFile("suites/product.yml", []byte("fil: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec, err := images.Load("lab")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Up(t.Context(), spec, UpOptions{Build: images.Options{Dir: "build"}, Out: io.Discard})
	if !errors.Is(err, report.ErrWrong) || len(r.Stages) != 1 || !strings.Contains(r.Stages[0].Saw, `suites/product.yml:1:1: unknown section "fil"`) {
		t.Errorf("Up = %+v, %v", r.Stages, err)
	}
	if _, err := os.Stat("build"); err == nil {
		t.Error("Up wrote into the build folder")
	}
	spec.Machine = nil
	if _, err := Up(t.Context(), spec, UpOptions{}); err == nil || !strings.Contains(err.Error(), "\nnext: build lab") {
		t.Errorf("Up of a board that is not virtual = %v", err)
	}
}

// Only one board of a project can be the one that commands take without a name.
func TestCheckProjectOfTwoDefaults(t *testing.T) {
	inNewProject(t, "virt")
	if err := AddBoard(t.Context(), io.Discard, "rack", "lab", ProjectOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, board := range []string{"lab", "rack"} {
		f, err := os.OpenFile("boards/"+board+"/board.yml", os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, "default: true")
		f.Close()
		err = CheckProject(t.Context(), io.Discard, images.Options{Dir: "build"}, CheckOptions{})
		if refused := err != nil && strings.Contains(err.Error(), "default: ") && strings.Contains(err.Error(), "boards/lab/board.yml has it too"); refused != (i == 1) {
			t.Errorf("CheckProject with %d defaults = %v", i+1, err)
		}
	}
}

// An error of a file that cannot be written names that file.
func TestCheckProjectNamesTheQualityFile(t *testing.T) {
	inNewProject(t, "virt")
	err := CheckProject(t.Context(), io.Discard, images.Options{Dir: "build"}, CheckOptions{Quality: "none/cq.json"})
	if err == nil || !strings.Contains(err.Error(), "open none/cq.json: no such file") {
		t.Errorf("CheckProject = %v; want the file's name", err)
	}
}

func TestInitAndAddBoard(t *testing.T) {
	t.Chdir(t.TempDir())
	outside := AddBoard(t.Context(), io.Discard, "x", "virt", ProjectOptions{})
	if outside == nil || !strings.Contains(outside.Error(), "no project: ") || !strings.HasSuffix(outside.Error(), "\nnext: init lab --like=virt") {
		t.Errorf("AddBoard outside of a project: %v", outside)
	}
	inNewProject(t, "virt")
	var out strings.Builder
	if err := InitProject(t.Context(), &out, ".", starter.Request{Like: "virt"}, ProjectOptions{}); err == nil || !strings.HasSuffix(err.Error(), "\nnext: board new lab --like=virt") {
		t.Errorf("InitProject in a project: %v", err)
	}
	whole, _ := filepath.Abs(".")
	t.Chdir(t.TempDir())
	err := InitProject(t.Context(), &out, whole, starter.Request{Like: "virt", Name: "rack"}, ProjectOptions{})
	if want := "\nnext: board new rack --like=virt --boards=" + localfile.Shorten(whole+"/boards"); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("InitProject of a project elsewhere: %v; want %q", err, want)
	}
	t.Chdir(whole)
	if err := InitProject(t.Context(), &out, "../new", starter.Request{Like: "lab"}, ProjectOptions{}); err == nil || !strings.HasSuffix(err.Error(), "\nnext: repeat the line with --like=virt") {
		t.Errorf("InitProject like a board of this project: %v", err)
	}
	for _, opt := range []ProjectOptions{{DryRun: true}, {}} {
		out.Reset()
		if err := AddBoard(t.Context(), &out, "rack", "lab", opt); err != nil || !strings.Contains(out.String(), "boards/rack/board.yml\n") {
			t.Errorf("AddBoard(%+v) = %v\n%s", opt, err, out.String())
		}
		if _, err := os.Stat("boards/rack"); (err == nil) == opt.DryRun {
			t.Errorf("after AddBoard(%+v) the board's folder: %v", opt, err)
		}
	}
	if err := InitProject(t.Context(), &out, "/dev/null/x", starter.Request{Like: "virt"}, ProjectOptions{}); err == nil || !strings.HasSuffix(err.Error(), "\nnext: ls -ld /dev/null") {
		t.Errorf("InitProject below a file: %v", err)
	}
	if err := os.WriteFile("go.mod", []byte("module slipway\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := InitProject(t.Context(), &out, "new", starter.Request{Like: "virt"}, ProjectOptions{}); err == nil || !strings.Contains(err.Error(), "is in a clone of Slipway") {
		t.Errorf("InitProject in a clone: %v", err)
	}
}

// An existing project gets the files of a pipeline that it lacks, and keeps its own.
func TestAddPipelines(t *testing.T) {
	inNewProject(t, "virt")
	if err := errors.Join(os.RemoveAll("ci"), os.RemoveAll(".gitlab-ci.yml")); err != nil {
		t.Fatal(err)
	}
	mine := map[string]string{"Jenkinsfile": "mine\n", "ci/install.sh": "mine\n"}
	for name, text := range mine {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	req := starter.Request{Pipelines: []string{"gitlab", "jenkins"}}
	if err := InitProject(t.Context(), &out, ".", req, ProjectOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"wrote .gitlab-ci.yml\n", "wrote ci/gitlab-jobs.yml\n", "wrote ci/allowed_signers\n", "Jenkinsfile:1: it is kept as it is\n", "ci/install.sh:1: it is kept as it is\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("init printed\n%s\nwant %q", out.String(), want)
		}
	}
	for name, want := range mine {
		if text, err := os.ReadFile(name); string(text) != want || err != nil {
			t.Errorf("%s = %q, %v; want it kept", name, text, err)
		}
	}
	if err := InitProject(t.Context(), &out, ".", req, ProjectOptions{}); err == nil || !strings.Contains(err.Error(), "all files of the pipeline exist already\nnext: ") {
		t.Errorf("init again: %v", err)
	}
	if err := InitProject(t.Context(), &out, t.TempDir(), req, ProjectOptions{}); err == nil || !strings.Contains(err.Error(), " is no project") {
		t.Errorf("init of a pipeline without a project: %v", err)
	}
}

// What init prints for programs has the same files and steps.
func TestInitAsJSON(t *testing.T) {
	t.Chdir(t.TempDir())
	var out strings.Builder
	if err := InitProject(t.Context(), &out, "new", starter.Request{Like: "raspberrypi5"}, ProjectOptions{JSON: true, DryRun: true}); err != nil {
		t.Fatal(err)
	}
	var r projectRecord
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil || r.Board != "raspberrypi5-lab" || !r.DryRun || len(r.Files) != 5 || len(r.Edit) < 4 || r.Next[0].Line != "board check" {
		t.Errorf("init printed %+v, %v\n%s", r, err, out.String())
	}
	if _, err := os.Stat("new"); err == nil {
		t.Error("a dry run made the folder")
	}
}

// GitHub reads annotations from the log. JSON stays JSON there.
func TestCheckProjectOnGitHub(t *testing.T) {
	t.Setenv("GITHUB_ACTIONS", "true")
	inNewProject(t, "virt")
	for _, asJSON := range []bool{false, true} {
		var out strings.Builder
		if err := CheckProject(t.Context(), &out, images.Options{Dir: "build"}, CheckOptions{JSON: asJSON}); err != nil {
			t.Fatal(err)
		}
		if notices := strings.Count(out.String(), "::notice file="); asJSON != json.Valid([]byte(out.String())) || asJSON != (notices == 0) {
			t.Errorf("JSON %t: %d annotations in\n%s", asJSON, notices, out.String())
		}
	}
}
