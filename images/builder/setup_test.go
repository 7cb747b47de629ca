package builder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/images"
	"slipway/layers"
)

// A board whose project file is bitbake-setup's is built as one with a kas.yml is.
func TestBuildSetupBoard(t *testing.T) {
	replayed(t)
	bitbake, clone := standIn(t), t.TempDir()
	layer := filepath.Join(clone, "images/boards/b/meta-tiny")
	if err := os.CopyFS(layer, os.DirFS(filepath.Join(testdata(), "bitbake/meta-tiny"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(clone, "images/boards/b/setup.conf.json")
	text := fmt.Sprintf(`{"version": "1.0", "description": "tiny", "sources": {
  "bitbake": {"git-remote": {"uri": %q, "branch": "main", "rev": "main"}},
  "meta-tiny": {"local": {"path": %q}}},
 "bitbake-setup": {"configurations": [{"name": "tiny", "description": "tiny", "bb-layers": ["meta-tiny"], "oe-fragments": ["machine/qemuarm64"]}]}}`, bitbake, layer)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(clone)
	spec := images.Spec{Board: "b", Arch: "arm64", Project: file}
	opt := images.Options{Dir: filepath.Join(clone, "build"), Request: images.BuildRequest{Targets: []string{"tiny-image"}}}
	if err := LockLayers(t.Context(), spec, opt, nil); err != nil {
		t.Fatal(err)
	}
	if lock, err := os.ReadFile(layers.LockFile(file)); err != nil || !strings.Contains(string(lock), runGit(t, bitbake, "rev-parse", "HEAD")) {
		t.Errorf("lock file: %s, %v; want bitbake's commit in it", lock, err)
	}
	project, _, err := images.Project(t.Context(), spec, opt)
	if err != nil {
		t.Fatal(err)
	}
	a, err := buildProject(t.Context(), spec, project, opt)
	if err != nil || len(builtFiles(a)) != 1 || a.Files[0].Name != "tiny-image-qemuarm64.wic.gz" {
		t.Errorf("build = %+v, %v; want the image", a.Files, err)
	}
}
