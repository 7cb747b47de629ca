package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func board(files map[string]string) fstest.MapFS {
	fs := fstest.MapFS{}
	for name, data := range files {
		fs[name] = &fstest.MapFile{Data: []byte(data)}
	}
	return fs
}

const small = `arch: amd64
flash: {kinds: [file]}
`

// jetsonBoard is one with settings of its flash.
func jetsonBoard(flash string) string {
	return "arch: arm64\nflash: {kinds: [tegra], " + flash[1:] + "\n"
}

func TestLoadFrom(t *testing.T) {
	tests := []struct {
		name    string
		files   map[string]string
		wantErr string
	}{
		{"smallest", map[string]string{"b/board.yml": small, "b/kas.yml": ""}, ""},
		{"no file", map[string]string{"c/board.yml": small}, "images/boards/b/board.yml: no such board"},
		{"unknown key", map[string]string{"b/board.yml": small + "colour: red\n"}, "colour"},
		{"wrong type", map[string]string{"b/board.yml": "arch: [1]\n"}, "board.yml:1:7: "},
		{"unknown arch", map[string]string{"b/board.yml": "arch: vax\n"}, `unknown value "vax" (have amd64, arm64)`},
		{"unknown kind", map[string]string{"b/board.yml": "arch: amd64\nflash: {kinds: [fax]}\n", "b/kas.yml": ""}, `unknown value "fax"`},
		{"what a Jetson's flash needs", map[string]string{"b/board.yml": jetsonBoard("{chip: t234, recovery: {command: [relay, \"{port}\"], ssh: pi@rack}, module: {BOARDID: \"3767\"}}"), "b/kas.yml": ""}, ""},
		{"unknown chip", map[string]string{"b/board.yml": jetsonBoard("{chip: t300}"), "b/kas.yml": ""}, `flash.chip: unknown value "t300"`},
		{"recovery elsewhere without a command", map[string]string{"b/board.yml": jetsonBoard("{recovery: {ssh: pi@rack}}"), "b/kas.yml": ""}, "flash.recovery: ssh needs a command"},
		{"a module's word that a shell would run", map[string]string{"b/board.yml": jetsonBoard("{module: {FAB: $(reboot)}}"), "b/kas.yml": ""}, `flash.module.FAB: "$(reboot)" is no plain word`},
		{"nothing builds it", map[string]string{"b/board.yml": small}, "kas.yml"},
		{"extends a board that does not exist", map[string]string{"b/board.yml": "description: x\nextends: vrit\n", "virt/board.yml": small}, `images/boards/b/board.yml:2:1: extends: unknown value "vrit": did you mean virt? (have b, virt)`},
		{"extends itself", map[string]string{"b/board.yml": "extends: c\n", "c/board.yml": "extends: b\n"}, "extends itself"},
		{"two roots", map[string]string{"b/board.yml": small + `debian: {suite: s}
disk: {firmware: bios, partitions: [{name: l, sizeMiB: 1, use: loader}, {name: b, sizeMiB: 1, use: boot}, {name: r, sizeMiB: 1, use: root}, {name: s, sizeMiB: 1, use: root}]}
`}, `2 partitions with use "root"`},
		{"spare slot first", map[string]string{"b/board.yml": small + `debian: {suite: s}
disk: {firmware: bios, partitions: [{name: l, sizeMiB: 1, use: loader}, {name: b, sizeMiB: 1, use: boot}, {name: s, sizeMiB: 1, use: spare}, {name: r, sizeMiB: 1, use: root}]}
`}, `"r" (root) comes after`},
		{"firmware of another processor", map[string]string{"b/board.yml": strings.Replace(small, "amd64", "arm64", 1) + `debian: {suite: s}
disk: {firmware: bios, partitions: [{name: l, sizeMiB: 1, use: loader}, {name: b, sizeMiB: 1, use: boot}, {name: r, sizeMiB: 1, use: root}]}
`}, "bios is not for arm64"},
		{"less than no disk", map[string]string{"b/board.yml": small + "build: {disk: {tmpGiB: -1}}\n", "b/kas.yml": ""}, "-1 GiB is not between"},
		{"a largest disk of nothing", map[string]string{"b/board.yml": "arch: amd64\nflash: {kinds: [file], largestGiB: 0}\n", "b/kas.yml": ""}, "board.yml:2:24: flash.largestGiB: 0"},
		{"needs of a board without bitbake", map[string]string{"b/board.yml": "arch: amd64\nflash: {kinds: [file]}\ndebian: {suite: bookworm, packages: [x]}\nbuild: {memoryGiB: 1}\n"}, "board.yml:4:1: build is what bitbake needs"},
		{"no memory", map[string]string{"b/board.yml": "arch: amd64\nflash: {kinds: [file]}\nbuild: {memoryGiB: 0}\n", "b/kas.yml": ""}, "board.yml:3:1: build: 0 GiB is not between 1 and 16384"},
		{"no port", map[string]string{"b/board.yml": "arch: amd64\nflash: {kinds: [file]}\nssh: {port: 99999}\n", "b/kas.yml": ""}, "board.yml:3:7: ssh.port: 99999 is not between 1 and 65535"},
		{"a largest disk of less than nothing", map[string]string{"b/board.yml": "arch: amd64\nflash: {kinds: [file], largestGiB: -1}\n", "b/kas.yml": ""}, "flash.largestGiB: -1"},
		{"a large file", map[string]string{"b/board.yml": small + strings.Repeat("#", maxBoardFileBytes), "b/kas.yml": ""}, "b/board.yml: larger than 1024 KiB"},
		{"a task larger than a machine", map[string]string{"b/board.yml": small + "build: {taskMiB: 10000000}\n", "b/kas.yml": ""}, "build.taskMiB: 10000000"},
		{"an authority for host keys", map[string]string{"b/board.yml": small + "ssh: {hostCA: lab.pub}\n", "b/kas.yml": "", "b/lab.pub": ""}, ""},
		{"an authority as it is", map[string]string{"b/board.yml": small + "ssh: {hostCA: ssh-ed25519 AAAA lab}\n", "b/kas.yml": ""}, ""},
		{"an authority that is not there", map[string]string{"b/board.yml": small + "ssh: {hostCA: lab.pub}\n", "b/kas.yml": ""}, "ssh.hostCA: images/boards/b/lab.pub"},
		{"a keyring without a manifest", map[string]string{"b/board.yml": small + "debian: {suite: s, keyring: /etc/k}\n" + smallDisk}, "images/boards/b/bundle/manifest.raucm"},
		{"a keyring nowhere", map[string]string{"b/board.yml": small + "debian: {suite: s, keyring: etc/k}\n" + smallDisk, "b/bundle/manifest.raucm": ""}, `"etc/k" does not begin with /`},
		{"machine without a place for keys", map[string]string{"b/board.yml": small + `debian: {suite: s}
disk: {firmware: bios, partitions: [{name: l, sizeMiB: 1, use: loader}, {name: b, sizeMiB: 1, use: boot}, {name: r, sizeMiB: 1, use: root}]}
machine: {program: qemu}
`}, `0 partitions with use "data"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := LoadFrom(board(test.files), "b")
			if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("LoadFrom = %v; want %q", err, test.wantErr)
			}
		})
	}
}

// What is wrong in a board.yml is named with its place, and what was probably meant.
func TestErrorsOfYAML(t *testing.T) {
	for text, want := range map[string]string{
		"arch: amd64\nflsh: {kinds: [file]}\n":       `images/boards/b/board.yml:2:1: unknown key "flsh": did you mean flash?`,
		"flash:\n  kindz: [file]\n":                  `images/boards/b/board.yml:2:3: unknown key "kindz": did you mean kinds?`,
		"machine: {firmware: {pth: x}}\n":            `images/boards/b/board.yml:1:22: unknown key "pth": did you mean path?`,
		"disk: {partitions: [{name: l, size: 1}]}\n": `b/board.yml:1:31: unknown key "size": did you mean sizeMiB?`,
		"build: {disk: {tempGiB: 9}}\n":              `b/board.yml:1:16: unknown key "tempGiB": did you mean tmpGiB?`,
		"flash: {recovery: {qqqqqqqq: 1}}\n":         `b/board.yml:1:20: unknown key "qqqqqqqq" (have command, ssh)`,
		"description: x\nArch: amd64\n":              `b/board.yml:2:1: unknown key "Arch": did you mean arch?`,
		"arch: [1]\n":                                `b/board.yml:1:7: want a text, not a list`,
		"flash: {kinds: file}\n":                     `b/board.yml:1:16: want a list of texts, not "file"`,
		"flash: {largestGiB: many}\n":                `b/board.yml:1:21: want a number, not "many"`,
		"flash: x\n":                                 `b/board.yml:1:8: want a mapping, not "x"`,
		"- a\n":                                      `b/board.yml:1:1: want a mapping, not a list`,
		"arch: amd64\narch: arm64\n":                 `b/board.yml:2:1: mapping key "arch" already defined at line 1`,
		"a: b: c\n":                                  `b/board.yml:1:5: mapping values are not allowed`,
		"flsh: 1\nsuits: 2\n":                        "b/board.yml:1:1: unknown key \"flsh\": did you mean flash?\nimages/boards/b/board.yml:2:1: unknown key \"suits\": did you mean suites?",
		"":                                           "b/board.yml: the file has no values",
		"arch: amd64\nflash:\n\tkinds: [file]\n":     "b/board.yml:3:1: no value or key can begin with this character: quote the text, and indent with blanks, not tabs",
		"arch: amd64\ndescription: \xff\n":           "b/board.yml:2:1: the line has bytes that are not UTF-8",
	} {
		_, err := LoadFrom(board(map[string]string{"b/board.yml": text}), "b")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "images.") && !strings.Contains(err.Error(), "next: ") {
			t.Errorf("LoadFrom(%q) = %v; want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"arch: amd64\n\nflash: {kinds: [file, blok]}\n":                                                              `images/boards/b/board.yml:3:9: flash.kinds: unknown value "blok": did you mean block? (have file, block, tegra, rshim)`,
		"arch: amd46\nflash: {kinds: [file]}\n":                                                                      `images/boards/b/board.yml:1:1: arch: unknown value "amd46": did you mean amd64?`,
		"arch: amd64\n\nflash: {kinds: [file], largestGiB: -1}\n":                                                    `images/boards/b/board.yml:3:24: flash.largestGiB: -1 is not between`,
		"arch: amd64\nflash:\n  kinds: [file]\n  module: {FAB: 'a b'}\n":                                             `images/boards/b/board.yml:4:12: flash.module.FAB: "a b"`,
		small + "debian: {suite: s}\n" + strings.Replace(smallDisk, "use: root", "use: rooot", 1):                    `: disk.partitions.r.use: unknown value "rooot": did you mean root?`,
		small + "debian: {suite: s}\n" + strings.Replace(smallDisk, "name: b, sizeMiB: 1", "name: b, sizeMiB: 0", 1): `board.yml:4:73: partition "b": sizeMiB 0 is not between`,
	} {
		_, err := LoadFrom(board(map[string]string{"b/board.yml": text, "b/kas.yml": ""}), "b")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadFrom(%q) = %v; want %q", text, err, want)
		}
	}
	_, err := LoadFrom(board(map[string]string{"old/board.yml": "flsh: {}\n", "b/board.yml": "extends: old\n"}), "b")
	if err == nil || !strings.Contains(err.Error(), "images/boards/old/board.yml:1:1: ") {
		t.Errorf("an error in the board that is extended = %v; want its place", err)
	}
}

const smallDisk = "disk: {firmware: bios, partitions: [{name: l, sizeMiB: 1, use: loader}, {name: b, sizeMiB: 1, use: boot}, {name: r, sizeMiB: 1, use: root}]}\n"

func TestExtends(t *testing.T) {
	spec, err := LoadFrom(board(map[string]string{
		"old/board.yml":     small + "description: old\ndefault: true\nssh: {user: root, port: 22}\n",
		"old/kas.yml":       "old",
		"old/overlay/etc/a": "old a",
		"new/board.yml":     "extends: old\narch: arm64\nssh: {port: 2222}\n",
		"new/overlay/etc/a": "new a",
	}), "new")
	if err != nil {
		t.Fatal(err)
	}
	if spec.Board != "new" || spec.Arch != "arm64" || spec.Description != "old" || spec.SSH != (SSH{User: "root", Port: 2222}) || spec.Default {
		t.Errorf("spec = %+v; want new's own settings over old's, and not its default", spec)
	}
	if got := string(spec.files["overlay/etc/a"]); got != "new a" {
		t.Errorf("overlay/etc/a = %q; want new's", got)
	}
}

// Every board that is embedded must load, and one must be the default.
func TestEmbeddedBoards(t *testing.T) {
	names, err := Boards()
	if err != nil || len(names) == 0 {
		t.Fatalf("Boards = %v, %v", names, err)
	}
	for _, name := range names {
		if _, err := Load(name); err != nil {
			t.Errorf("Load(%q) = %v", name, err)
		}
	}
	if spec, err := Load(""); err != nil || !spec.Default {
		t.Errorf("Load of the default = %q, %v", spec.Board, err)
	}
	if _, err := Load("no-such"); err == nil || !strings.HasSuffix(err.Error(), "\nnext: boards") {
		t.Errorf("Load of an unknown board = %v; want the command that lists them", err)
	}
}

// A board has the figures of the one that it extends, and the default ones else.
func TestLoadFromBuild(t *testing.T) {
	spec, err := LoadFrom(board(map[string]string{
		"a/board.yml": small + "build: {disk: {tmpGiB: 200, sstateGiB: 30}}\n", "a/kas.yml": "",
		"b/board.yml": "extends: a\nbuild: {disk: {sstateGiB: 40}}\n",
	}), "b")
	if err != nil {
		t.Fatal(err)
	}
	want := defaultNeeds
	want.Disk.TmpGiB, want.Disk.SstateGiB = 200, 40
	if diff := cmp.Diff(want, spec.Build); diff != "" {
		t.Errorf("Build: (-want +got)\n%s", diff)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("extends: b\n"))
	f.Add([]byte(small + smallDPU))
	f.Add([]byte("arch: amd64\ndisk: {firmware: bios, partitions: [{name: r, sizeMiB: -1, use: root}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		files := board(map[string]string{"b/board.yml": string(data), "b/kas.yml": ""})
		if spec, err := LoadFrom(files, "b"); err == nil && (spec.Arch == "" || len(spec.Flash.Kinds) == 0) {
			t.Errorf("accepted a spec that lacks what every stage needs: %+v", spec)
		}
	})
}

// A board has the project file of the nearest board that it extends.
func TestProjectFile(t *testing.T) {
	boards := board(map[string]string{
		"old/board.yml": small, "old/kas.yml": "",
		"mid/board.yml":   "extends: old\n",
		"new/board.yml":   "extends: mid\n",
		"setup/board.yml": "extends: old\n", "setup/setup.conf.json": "",
		"alone/board.yml": small, "alone/setup.conf.json": "",
	})
	clone := t.TempDir()
	if err := os.CopyFS(filepath.Join(clone, "images/boards"), boards); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(clone, "images"))
	for name, file := range map[string]string{"new": "old/kas.yml", "setup": "setup/setup.conf.json", "alone": "alone/setup.conf.json"} {
		spec, err := LoadFrom(boards, name)
		if err != nil {
			t.Fatal(err)
		}
		want := filepath.Join(clone, "images/boards", file)
		if spec.Project != want {
			t.Errorf("the project file of %s is %q; want %q", name, spec.Project, want)
		}
	}
	t.Chdir(t.TempDir())
	spec, err := LoadFrom(boards, "alone")
	if err != nil || spec.Project != "" {
		t.Errorf("the project file outside of a clone is %q, %v; want none", spec.Project, err)
	}
	if _, _, err := Project(t.Context(), spec, Options{}); err == nil || !strings.Contains(err.Error(), "this folder is in none") {
		t.Errorf("Project outside of a clone = %v; want where to build", err)
	}
}

func TestBoardsCache(t *testing.T) {
	load := func(text string) (Spec, error) {
		return LoadFrom(board(map[string]string{"b/board.yml": small + text, "b/kas.yml": ""}), "b")
	}
	spec, err := load("cache: http://builder:8600\n")
	if err != nil || spec.Cache.Server != "http://builder:8600" || spec.Cache.From != "board.yml:3:8" {
		t.Errorf("cache = %+v, %v; want the server, and where it is named", spec.Cache, err)
	}
	_, err = load("cache:\n  sstate: http://builder\n")
	if want := "images/boards/b/board.yml:4:3: cache is no address"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("a cache's parts: %v; want %q", err, want)
	}
}
