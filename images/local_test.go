package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images/bitbake"
	"slipway/layers"
)

func TestLocalFolders(t *testing.T) {
	board := map[string]string{"oe": "/board/oe", "b": "/board/b"}
	for _, tt := range []struct {
		env, wantErr string
		want         map[string]string
	}{
		{"", "", board},
		{"off", "", nil},
		{"oe=/mine/oe,c=/mine/c", "", map[string]string{"oe": "/mine/oe", "b": "/board/b", "c": "/mine/c"}},
		{"oe", "SLIPWAY_LOCAL: ", nil},
	} {
		t.Setenv(localEnvironment, tt.env)
		got, err := localFolders(Spec{Local: board})
		if tt.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("localFolders with %q = %v; want an error with %q", tt.env, err, tt.wantErr)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("localFolders with %q: %v (-want +got)\n%s", tt.env, err, diff)
		}
	}
	if err := (Spec{Board: "b", Local: map[string]string{"oe": "oe"}}).validateBuild(); err == nil || !strings.Contains(err.Error(), "local.oe") {
		t.Errorf("validateBuild of a relative folder = %v; want it refused", err)
	}
}

// What is built from a user's folder is not taken for the project's commit later.
func TestBuildRecordsALocalFolder(t *testing.T) {
	replayed(t)
	bitbakeDir := standIn(t)
	_, dir := tinyProject(t, bitbakeDir, "tiny-image")
	mine := standIn(t)
	file := filepath.Join(filepath.Dir(filepath.Dir(dir)), "meta-tiny/kas.yml")
	p, err := layers.Load(t.Context(), file, layers.Workspace{Dir: dir, Local: map[string]string{"bitbake": mine}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mine, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := buildProject(t.Context(), tiny, p, Options{Dir: filepath.Dir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	want := bitbake.Commit{Repo: "bitbake", Commit: runGit(t, mine, "rev-parse", "HEAD"), Edited: true, Local: mine}
	if diff := cmp.Diff(want, a.Layers[1]); diff != "" {
		t.Errorf("layers of the artifact (-want +got):\n%s", diff)
	}
	record, err := os.ReadFile(filepath.Join(dir, "build.json"))
	if err != nil || !strings.Contains(string(record), `"local": "`+mine+`"`) {
		t.Errorf("the build's record, %v, does not name the folder:\n%s", err, record)
	}
}
