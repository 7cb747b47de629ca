package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStateHome(t *testing.T) {
	for _, tt := range []struct{ state, home, want, err string }{
		{"/s", "/h", "/s/slipway", ""},
		{"", "/h", "/h/.local/state/slipway", ""},
		{"relative", "/h", "/h/.local/state/slipway", ""},
		{"/s", "", "/s/slipway", ""},
		{"", "", "", "next: export XDG_STATE_HOME="},
		{"", "relative", "", "next: export XDG_STATE_HOME="},
	} {
		t.Setenv("XDG_STATE_HOME", tt.state)
		t.Setenv("HOME", tt.home)
		got, err := StateHome()
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("StateHome with %q, %q = %q, %v; want %q, %q", tt.state, tt.home, got, err, tt.want, tt.err)
		}
	}
}

func TestCheckFileName(t *testing.T) {
	for _, name := range []string{
		"known_hosts", "KNOWN_HOSTS", "id_ed25519", "id_ed25519.pub", "Id_Ed25519", "flash.json", "report.html", "report.json", "REPORT.JSON", "junit.xml",
		"artifact.json", "Artifact.json", "artifact.json.sig", "ARTIFACT.JSON.ASC", "inputs.json", "build.lock", "build.json", "build.html",
		"machine", "Machine", "logs", "metrics", "replaced", "fleet", "layers", "bitbake", "reports", "ssh", "rig.json", "rig.lock", "transcript.txt",
		"apt.log", "bitbake.LOG", ".log", ".slipway-pull", ".", "..", "", "../x", "a/b", "machine/machine.json", "/etc/passwd", "a\x00b", "a\x1b[2Jb", "a\nb", "a\xffb", strings.Repeat("a", 256),
	} {
		if err := CheckFileName(name); err == nil || strings.ContainsAny(err.Error(), "\x00\x1b\n") {
			t.Errorf("CheckFileName(%q) = %v; want it refused, in printable words", name, err)
		}
		if _, err := ParseArtifact(fmt.Appendf(nil, `{"board":"b","files":[{"name":%q}]}`, strings.ToValidUTF8(name, "?"))); err == nil && utf8.ValidString(name) {
			t.Errorf("ParseArtifact with the file %q = nil", name)
		}
	}
	for _, name := range []string{"disk.img", "core-image.wic.zst", "provenance.json", "update.raucb", "logs.tar", "machine.bin", "known_hosts.txt", "sbom.spdx.json", "a+b~1.img", "é.img"} {
		if err := CheckFileName(name); err != nil {
			t.Errorf("CheckFileName(%q) = %v", name, err)
		}
	}
}

// A person sees all characters of what artifact.json calls a board and its files.
func TestArtifactNamesHaveNoControls(t *testing.T) {
	for field, text := range map[string]string{
		"board": `{"board":%q}`, "arch": `{"board":"b","arch":%q}`, "kind": `{"board":"b","files":[{"kind":%q,"name":"a.img"}]}`, "name": `{"board":"b","files":[{"name":%q}]}`,
	} {
		for _, name := range []string{"x\ny", "x\ty", "x\u202ey", "x\u009by"} {
			if _, err := ParseArtifact(fmt.Appendf(nil, text, name)); err == nil || !strings.Contains(err.Error(), "that a person cannot see") {
				t.Errorf("ParseArtifact with the %s %q = %v", field, name, err)
			}
		}
		if _, err := ParseArtifact(fmt.Appendf(nil, text, "plain")); err != nil {
			t.Errorf("ParseArtifact with a plain %s = %v", field, err)
		}
	}
}

// No board's folder is one of ours, whoever names the board.
func TestReservedBoards(t *testing.T) {
	for _, name := range append([]string{"..", ".", "../up", "a/b", "Reports", "CACHE", "a\x1bb"}, reserved...) {
		if err := CheckBoardName(name); err == nil {
			t.Errorf("CheckBoardName(%q) = nil", name)
		}
		if _, err := ParseArtifact(fmt.Appendf(nil, `{"board":%q}`, strings.ReplaceAll(name, "\x1b", "\\"))); err == nil {
			t.Errorf("ParseArtifact of the board %q = nil", name)
		}
	}
	if _, err := ParseArtifact([]byte(`{"project":"a.yml"}`)); err == nil {
		t.Error("ParseArtifact of project files without a board = nil")
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("reports.yml", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load("reports.yml"); err == nil || !strings.Contains(err.Error(), "no board can have the name reports") {
		t.Errorf("Load(reports.yml) = %v; want it refused", err)
	}
}

// Nothing in a folder from elsewhere is believed or written but the artifact: the machine's pid
// and port, journals and logs lie in the state folder.
func TestWorkDirOfFolder(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Chdir(t.TempDir())
	for _, dir := range []string{"dl", "build/virt"} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), Artifact{Board: "virt", Arch: "amd64"}.Save(dir)); err != nil {
			t.Fatal(err)
		}
	}
	opt := Options{Dir: "build"}
	for word, own := range map[string]bool{"./dl": false, "virt": true, "build/virt": true} {
		spec, err := LoadBuilt(word)
		if err != nil {
			t.Fatal(err)
		}
		state, err := opt.StateDir(spec)
		if err != nil {
			t.Fatal(err)
		}
		want := state
		if own {
			want = "build/virt"
		}
		if got := opt.WorkDir(spec); got != want || opt.MachineDir(spec) != want+"/machine" || opt.FleetDir(spec, "smoke") != want+"/fleet/smoke" || opt.ReportDir(spec) != "build/reports/virt" {
			t.Errorf("%s: WorkDir %s, MachineDir %s, FleetDir %s, ReportDir %s; want %s", word, got, opt.MachineDir(spec), opt.FleetDir(spec, "smoke"), opt.ReportDir(spec), want)
		}
	}
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "")
	if _, err := LoadBuilt("./dl"); err == nil || !strings.Contains(err.Error(), "export XDG_STATE_HOME") {
		t.Errorf("LoadBuilt without a state folder = %v", err)
	}
}

// A board's keys lie in one folder however its folder is named, and in no other board's.
func TestStateDir(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Chdir(t.TempDir())
	at := func(opt Options, spec Spec) string {
		dir, err := opt.StateDir(spec)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	virt := at(Options{Dir: "build"}, Spec{Board: "virt"}) // before it is there
	if !regexp.MustCompile("^" + state + "/slipway/boards/virt-[0-9a-f]{12}$").MatchString(virt) {
		t.Errorf("StateDir = %s", virt)
	}
	for _, dir := range []string{"build/virt", "dl", "build/reports"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("build", "link"); err != nil {
		t.Fatal(err)
	}
	whole, _ := filepath.Abs("build/virt")
	for name, got := range map[string]string{
		"by a link": at(Options{Dir: "link"}, Spec{Board: "virt"}), "as a folder": at(Options{Dir: "build"}, Spec{Board: "virt", folder: whole}),
		"once it is there": at(Options{Dir: "build"}, Spec{Board: "virt"}),
	} {
		if got != virt {
			t.Errorf("%s: StateDir = %s; want %s", name, got, virt)
		}
	}
	dl, _ := filepath.Abs("dl")
	others := map[string]bool{virt: true}
	for _, dir := range []string{at(Options{Dir: "other"}, Spec{Board: "virt"}), at(Options{Dir: "build"}, Spec{Board: "virt", folder: dl}), at(Options{Dir: "build"}, Spec{Board: "orin"})} {
		if others[dir] {
			t.Errorf("two boards have the folder %s", dir)
		}
		others[dir] = true
	}
}

// A file that is added to a spec leaves the others, and the spec that it was made of, as they are.
func TestWithFile(t *testing.T) {
	before := Spec{}.WithFile("a", "1").WithFile("b", "2")
	after := before.WithFile("a", "3")
	for name, want := range map[string]string{"a": "3", "b": "2"} {
		if data, err := after.File(name); err != nil || string(data) != want {
			t.Errorf("File(%s) = %q, %v; want %q", name, data, err, want)
		}
	}
	if data, _ := before.File("a"); string(data) != "1" {
		t.Errorf("the first spec has %q; want it unchanged", data)
	}
}
