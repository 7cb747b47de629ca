package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	"slipway/images"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

func TestDeployFiles(t *testing.T) {
	c := boardtest.Connect(t)
	artifact := emptyArtifact(t)
	spec := images.Spec{Board: "bench", Deploy: images.Deploy{Dir: filepath.Join(t.TempDir(), "slipway")}}
	r := &progresstest.Recorder{}
	for range 2 {
		got, err := DeployArtifact(progress.With(t.Context(), progress.New(r)), c, spec, artifact)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(artifact.Dir(), images.ArtifactName))
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(spec.Deploy.Dir, images.ArtifactName)
		if len(got.Files) != 1 || got.Files[0].Path != name || got.Image != "" {
			t.Errorf("Deploy = %+v; want one file %s", got, name)
		}
		sshtest.CheckFile(t, name, want, 0o644)
	}
	if e := r.Last("put " + images.ArtifactName); e.State != progress.Done || e.Count != e.Total {
		t.Errorf("last event %+v", e)
	}
	if _, err := DeployArtifact(t.Context(), c, images.Spec{Board: "bench"}, artifact); err == nil || !strings.Contains(err.Error(), "images/boards/bench/board.yml") {
		t.Errorf("Deploy without a folder = %v; want it to name board.yml", err)
	}
}

func TestDeployRefusesAChangedArchive(t *testing.T) {
	c := boardtest.Connect(t)
	local := t.TempDir()
	if err := os.WriteFile(filepath.Join(local, "app.tar"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := images.File{Kind: images.Container, Name: "app.tar", SizeBytes: 7, SHA256: strings.Repeat("0", 64)}
	if err := (images.Artifact{Files: []images.File{file}}).Save(local); err != nil {
		t.Fatal(err)
	}
	artifact, err := images.OpenArtifact(local)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err = DeployArtifact(t.Context(), c, images.Spec{Deploy: images.Deploy{Dir: dir}}, artifact)
	sshtest.CheckError(t, err, "app.tar changed since the build")
	sshtest.CheckEntries(t, dir)
}

// What Deploy reports as done has its name on the board's disk.
func TestDeployedNamesAreSynced(t *testing.T) {
	remote, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	c := boardtest.Connect(t, sshtest.BeforeProgram(t, "sync", "[ $# -gt 0 ] || ls "+remote+" >>"+log))
	artifact := emptyArtifact(t)
	if _, err := DeployArtifact(t.Context(), c, images.Spec{Deploy: images.Deploy{Dir: remote}}, artifact); err != nil {
		t.Fatal(err)
	}
	if seen, err := os.ReadFile(log); err != nil || string(seen) != images.ArtifactName+"\n" {
		t.Errorf("the syncs had %q, %v; want one, with %s", seen, err, images.ArtifactName)
	}
}

// emptyArtifact is one without files.
func emptyArtifact(t *testing.T) images.Artifact {
	t.Helper()
	dir := t.TempDir()
	if err := (images.Artifact{Board: "bench"}).Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err := images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
