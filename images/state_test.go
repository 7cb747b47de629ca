package images

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
