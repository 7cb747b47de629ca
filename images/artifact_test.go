package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenArtifact(t *testing.T) {
	tests := []struct {
		name, json, wantErr string
	}{
		{"whole", `{"board":"b","files":[{"kind":"disk","name":"disk.img","sizeBytes":4}]}`, ""},
		{"cut off", `{"board":"b","files":[{"kind":"disk","name":"disk.img","sizeBytes":5}]}`, "4 bytes, want 5"},
		{"missing file", `{"board":"b","files":[{"kind":"disk","name":"other.img","sizeBytes":4}]}`, "not whole; build again"},
		{"leaves the folder", `{"board":"b","files":[{"kind":"disk","name":"../disk.img","sizeBytes":4}]}`, "no name for a file"},
		{"not JSON", `{`, "artifact.json"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, data := range map[string]string{ArtifactName: test.json, "disk.img": "disk"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, err := OpenArtifact(dir)
			if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("OpenArtifact = %v; want %q", err, test.wantErr)
			}
		})
	}
	dir := t.TempDir()
	for _, read := range []func(string) (Artifact, error){OpenArtifact, ReadArtifact} {
		if _, err := read(dir); err == nil || !strings.HasSuffix(err.Error(), "no such file or directory\nnext: build "+filepath.Base(dir)) {
			t.Errorf("an empty folder: %v; want the command that makes an artifact", err)
		}
	}
}

// What describes an artifact is enough for whoever does not read its files.
func TestReadArtifact(t *testing.T) {
	dir := t.TempDir()
	text := `{"board":"b","files":[{"kind":"disk","name":"disk.img","sizeBytes":5},{"kind":"container","name":"c.tar","sizeBytes":1}]}`
	for name, data := range map[string]string{ArtifactName: text, "c.tar": "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a, err := ReadArtifact(dir)
	if err != nil || a.Board != "b" || a.Check(Container) != nil || a.Check(BlockMap) != nil {
		t.Errorf("ReadArtifact = %+v, %v, its container %v", a, err, a.Check(Container))
	}
	for _, kinds := range [][]string{nil, {DiskImage}, {Container, DiskImage}} {
		if err := a.Check(kinds...); err == nil || !strings.Contains(err.Error(), "disk.img") {
			t.Errorf("Check(%q) = %v; want what is missing", kinds, err)
		}
	}
	text = strings.Replace(text, "c.tar", "../c.tar", 1)
	if err := os.WriteFile(filepath.Join(dir, ArtifactName), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadArtifact(dir); err == nil || !strings.Contains(err.Error(), "no name for a file") {
		t.Errorf("ReadArtifact = %v; want a name that leaves the folder refused", err)
	}
}

func TestArtifactSaves(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), []byte("disk"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := DescribeFile(t.Context(), dir, DiskImage, "disk.img")
	if err != nil {
		t.Fatal(err)
	}
	if err := (Artifact{Board: "b", Files: []File{f}}).Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err := OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := a.File(DiskImage)
	if err != nil || a.Path(disk) != filepath.Join(dir, "disk.img") {
		t.Errorf("File = %+v, %v", disk, err)
	}
	if _, err := a.File(Container); err == nil {
		t.Error("File found a container in an artifact that has none")
	}
}
