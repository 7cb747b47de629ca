package images

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// placeBoards writes boards into a folder.
func placeBoards(t *testing.T, folder string, boards map[string]string) {
	t.Helper()
	for name, text := range boards {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

const labBoard = "extends: virt\ndescription: ours\nsuites: [base]\n"

// Boards in a folder of the user's are found from any folder below, and may extend Slipway's.
func TestOwnBoards(t *testing.T) {
	project := t.TempDir()
	placeBoards(t, filepath.Join(project, "boards"), map[string]string{"virt-lab/board.yml": labBoard, "virt-lab/overlay/etc/motd": "lab\n", "README.md": "", "notes/x": ""})
	below := filepath.Join(project, "a/b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	for name, tt := range map[string]struct{ at, variable string }{
		"in the project":  {project, ""},
		"below it":        {below, ""},
		"by the variable": {elsewhere, filepath.Join(project, "boards")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(tt.at)
			t.Setenv(BoardsVariable, tt.variable)
			names, err := Boards()
			if err != nil || !slices.Contains(names, "virt-lab") || !slices.Contains(names, "virt") || slices.Contains(names, "notes") || !slices.IsSorted(names) {
				t.Errorf("Boards = %q, %v; want virt-lab among Slipway's", names, err)
			}
			spec, err := Load("virt-lab")
			if err != nil || spec.Description != "ours" || spec.Machine == nil || !slices.Equal(spec.Suites, []string{"base"}) {
				t.Errorf("Load = %+v, %v; want virt with our keys", spec, err)
			}
			if text, err := spec.File("overlay/etc/motd"); string(text) != "lab\n" {
				t.Errorf("its file holds %q, %v", text, err)
			}
			if spec, err := Default(); spec.Board != "virt" {
				t.Errorf("the default board is %q, %v; want Slipway's", spec.Board, err)
			}
		})
	}
	placeBoards(t, project, map[string]string{"slipway/go.mod": "module slipway\n", "slipway/ci/x": ""})
	t.Chdir(filepath.Join(project, "slipway/ci"))
	if _, err := Load("virt-lab"); err == nil {
		t.Error("a clone of Slipway knows the boards of the project around it")
	}
	t.Chdir(elsewhere)
	if _, err := Load("virt-lab"); err == nil || !strings.Contains(err.Error(), `unknown board "virt-lab"`) {
		t.Errorf("outside of the project: %v; want the board unknown", err)
	}
}

func TestOwnDefault(t *testing.T) {
	folder := t.TempDir()
	placeBoards(t, folder, map[string]string{"zz/board.yml": "extends: virt\ndefault: true\n"})
	t.Setenv(BoardsVariable, folder)
	if spec, err := Default(); spec.Board != "zz" {
		t.Errorf("the default board is %q, %v; want the user's", spec.Board, err)
	}
}

// Errors name the user's own files.
func TestWrongOwnBoards(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  string // F is the folder
	}{
		"Slipway's name":   {map[string]string{"virt/board.yml": labBoard}, "F/virt/board.yml: Slipway has a board of this name\nnext: rename the folder; to change a few keys of virt, write \"extends: virt\" in it"},
		"a wrong key":      {map[string]string{"lab/board.yml": "extends: virt\ndescripton: x\n"}, "F/lab/board.yml:2"},
		"an unknown board": {map[string]string{"lab/board.yml": "extends: virtt\n"}, "F/lab/board.yml:1"},
		"no board":         {map[string]string{"lab/bord.yml": ""}, "SLIPWAY_BOARDS=F: no board there: want BOARD/board.yml in it\nnext: ls F"},
		"no project file":  {map[string]string{"lab/board.yml": "arch: arm64\nflash: {kinds: [file]}\n"}, "F/lab/board.yml: neither debian nor a project file beside it"},
	} {
		folder := t.TempDir()
		placeBoards(t, folder, tt.files)
		t.Setenv(BoardsVariable, folder)
		_, err := Load("lab")
		if want := strings.ReplaceAll(tt.want, "F", folder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
	folder := t.TempDir()
	placeBoards(t, folder, map[string]string{"lab/board.yml": labBoard})
	if err := os.Symlink("/dev/zero", filepath.Join(folder, "lab/zero")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(BoardsVariable, folder)
	if _, err := Load("lab"); err == nil || !strings.Contains(err.Error(), "zero in a board's folder is no file") {
		t.Errorf("a device in the folder: %v", err)
	}
}

// Suites lie beside the folder of boards, or in the folder of a board.
func TestOwnSuites(t *testing.T) {
	project := t.TempDir()
	placeBoards(t, project, map[string]string{
		"boards/old/board.yml":  "extends: virt\nsuites: [base, mine.yml]\n",
		"boards/old/mine.yml":   "",
		"boards/new/board.yml":  "extends: old\ndescription: x\n",
		"boards/lost/board.yml": "extends: virt\n\nsuites: [other.yml]\n",
		"boards/out/board.yml":  "extends: virt\nsuites: [../old/mine.yml]\n",
		"suites/lab.yml":        "", "suites/rack.yaml": "", "suites/README.md": "",
	})
	t.Chdir(filepath.Join(project, "suites"))
	own, err := OwnSuites()
	if want := map[string]string{"lab": project + "/suites/lab.yml", "rack": project + "/suites/rack.yaml"}; err != nil || !maps.Equal(own, want) {
		t.Errorf("OwnSuites = %v, %v; want %v", own, err, want)
	}
	for _, board := range []string{"old", "new"} {
		spec, err := Load(board)
		if want := []string{"base", project + "/boards/old/mine.yml"}; err != nil || !slices.Equal(spec.Suites, want) {
			t.Errorf("Load(%s): suites %q, %v; want %q", board, spec.Suites, err, want)
		}
	}
	for board, want := range map[string]string{
		"lost": project + `/boards/lost/board.yml:3:1: suites: no file "other.yml" in the board's folder` + "\nnext: ls " + project + "/boards/lost",
		"out":  `no file "../old/mine.yml" in the board's folder`,
	} {
		if _, err := Load(board); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%s): %v; want %s", board, err, want)
		}
	}
	t.Chdir(t.TempDir())
	if own, err := OwnSuites(); len(own) > 0 || err != nil {
		t.Errorf("outside of the project: %v, %v", own, err)
	}
}

// The project file of a user's board is the one beside its board.yml.
func TestProjectFileOfUser(t *testing.T) {
	folder := t.TempDir()
	placeBoards(t, folder, map[string]string{"lab/board.yml": "extends: qemuarm64\n", "lab/kas.yml": "header: {version: 14}\n"})
	t.Setenv(BoardsVariable, folder)
	t.Chdir(t.TempDir())
	spec, err := Load("lab")
	if err != nil {
		t.Fatal(err)
	}
	if spec.Project != filepath.Join(folder, "lab/kas.yml") || NeedsClone(spec) {
		t.Errorf("Project = %q, NeedsClone = %v", spec.Project, NeedsClone(spec))
	}
}

// A board of another folder is described there, whatever is in the current folder.
func TestLoadInNamesItsOwnFolder(t *testing.T) {
	elsewhere, here := t.TempDir(), t.TempDir()
	for folder, text := range map[string]string{filepath.Join(elsewhere, "b"): "extends: raspberrypi5\n", filepath.Join(here, "boards/b"): "extends: virt\n"} {
		must(os.MkdirAll(folder, 0o755))
		must(os.WriteFile(filepath.Join(folder, "board.yml"), []byte(text), 0o644))
	}
	must(os.WriteFile(filepath.Join(elsewhere, "b/kas.yml"), []byte("header: {version: 14}\n"), 0o644))
	t.Chdir(here)
	spec, err := LoadIn(elsewhere, "b")
	if err != nil || spec.BoardFile() != filepath.Join(elsewhere, "b/board.yml") || spec.Project != filepath.Join(elsewhere, "b/kas.yml") {
		t.Errorf("LoadIn = %s, %s, %v; want the files of its folder", spec.BoardFile(), spec.Project, err)
	}
	must(os.WriteFile(filepath.Join(elsewhere, "b/board.yml"), []byte("extends: raspberrypi5\nflsh: {}\n"), 0o644))
	if _, err := LoadIn(elsewhere, "b"); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(elsewhere, "b/board.yml")+":2:1: ") {
		t.Errorf("LoadIn of a wrong board.yml = %v; want its place", err)
	}
}

// A board that came from another machine names no program and no file of this one.
func TestSentBoards(t *testing.T) {
	for name, tt := range map[string]struct{ text, wrong string }{
		"as it is":           {labBoard, ""},
		"its recovery":       {"flash: {recovery: {command: [rm, -rf, /]}}\n", ""},
		"another qemu":       {"machine: {program: qemu-system-aarch64}\n", ""},
		"a program":          {"machine: {program: /bin/sh}\n", "machine.program"},
		"a program by name":  {"machine: {program: sh}\n", "machine.program"},
		"a program near it":  {"machine: {program: qemu-system-../../tmp/x}\n", "machine.program"},
		"a kernel as type":   {"machine: {type: \"pc,kernel=/srv/x\"}\n", "machine.type"},
		"a cpu with a path":  {"machine: {cpu: \"max,x=/srv/x\"}\n", "machine.cpu"},
		"an option of apt":   {"machine: {package: -o=x}\n", "machine.package"},
		"its firmware":       {"machine: {firmware: {path: /srv/x}}\n", "machine.firmware"},
		"firmware elsewhere": {"machine: {firmware: {path: /usr/share/../../srv/x}}\n", "machine.firmware"},
		"a local layer":      {"local: {meta: /root}\n", "local"},
		"a suite":            {"suites: [/etc/shadow.yml]\n", "suites"},
		"signers":            {"flash: {signers: /etc/shadow}\n", "flash.signers"},
		"a host's authority": {"ssh: {hostCA: /etc/shadow}\n", "ssh.hostCA"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			placeBoards(t, folder, map[string]string{"virt-lab/board.yml": "extends: virt\n" + strings.TrimPrefix(tt.text, "extends: virt\n")})
			t.Setenv(BoardsVariable, folder)
			t.Setenv(SentVariable, "1")
			spec, err := Load("virt-lab")
			if tt.wrong == "" && (err != nil || len(spec.Flash.Recovery.Command) > 0) {
				t.Errorf("Load = %+v, %v; want it, without its recovery", spec.Flash.Recovery, err)
			}
			if tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong+" names a program or a file") || !strings.Contains(err.Error(), "board.yml:")) {
				t.Errorf("Load = %v; want a word about %s", err, tt.wrong)
			}
			t.Setenv(SentVariable, "")
			if _, err := Load("virt-lab"); err != nil && strings.Contains(err.Error(), "came from") {
				t.Errorf("Load of a user's own = %v", err)
			}
		})
	}
}
