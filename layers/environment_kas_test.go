package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/kastest"
)

// kas's variables hold over the files in both, and here each says so.
func TestEnvironmentAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	tests := []struct {
		env      map[string]string
		warnings int
	}{
		{map[string]string{"KAS_MACHINE": "other", "KAS_DISTRO": "another", "KAS_TARGET": "mc:a:one  mc:b:two", "KAS_TASK": "fetch"}, 4},
		{map[string]string{"KAS_MACHINE": "m", "KAS_TARGET": " ", "KAS_DISTRO": ""}, 1},
		{map[string]string{}, 0},
	}
	dir := realPath(t, t.TempDir())
	write(t, dir, map[string]string{"p/kas.yml": "header: {version: 14}\nmachine: m\ndistro: d\ntarget: [mc:x:t]\nrepos: {here: }\n"})
	file := filepath.Join(dir, "p/kas.yml")
	var runs []kasRun
	for i, tt := range tests {
		r := kasRun{Dir: filepath.Join(dir, fmt.Sprint(i)), Args: append(append([]string{"checkout"}, quick...), file), Env: tt.env}
		if err := os.Mkdir(r.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
	}
	done := runKas(t, kas, runs)
	for i, tt := range tests {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			ws := Workspace{Dir: filepath.Join(runs[i].Dir, "ours")}
			p, err := Load(t.Context(), file, ws)
			if err != nil || done[i].err != nil {
				t.Fatalf("Load = %v, kas: %v", err, done[i].err)
			}
			if len(p.Warnings) != tt.warnings || tt.warnings > 0 && (!strings.Contains(p.Warnings[0], " is followed, as kas does: ") || !strings.Contains(p.Warnings[0], ", except in layers dump; ")) {
				t.Errorf("warnings %q; want %d", p.Warnings, tt.warnings)
			}
			if dump, err := Dump(p); err != nil || !strings.Contains(string(dump), "\nmachine: m\n") {
				t.Errorf("Dump = %v; want the file's machine, as in kas's\n%s", err, dump)
			}
			if err := Configure(p, ws, filepath.Join(ws.Dir, "build")); err != nil {
				t.Fatal(err)
			}
			theirs, ours := sortedConfigs(conf(t, filepath.Join(runs[i].Dir, "build"), "local.conf")), sortedConfigs(conf(t, filepath.Join(ws.Dir, "build"), "local.conf"))
			if theirs != ours {
				t.Errorf("local.conf is\n%s\nand kas's\n%s", ours, theirs)
			}
			if want := tt.env["KAS_TASK"]; want != "" && p.Task != want {
				t.Errorf("task %q; want %q", p.Task, want)
			}
		})
	}
}

func TestEnvironmentIsNoOption(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"p.yml": "header: {version: 14}\n"})
	for name, value := range map[string]string{"KAS_MACHINE": "", "KAS_TASK": "a b", "KAS_DISTRO": "a\"b", "KAS_TARGET": "ok --server-only"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			_, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{})
			if err == nil || !strings.Contains(err.Error(), "\nnext: unset "+name) {
				t.Errorf("Load with %s=%q = %v; want it refused", name, value, err)
			}
		})
	}
}
