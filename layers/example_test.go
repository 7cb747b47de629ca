package layers_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"slipway/layers"
)

// A project file has the format of kas. Load merges several files from left to right, and
// fetches nothing here, because no file includes one of another repository.
func ExampleLoad() {
	folder, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)

	kas, debug := filepath.Join(folder, "kas.yml"), filepath.Join(folder, "debug.yml")
	for path, text := range map[string]string{
		kas: `
header: {version: 14}
machine: qemuarm64
repos:
  meta-lab:
    url: https://git.example.com/meta-lab
    commit: 0123456789012345678901234567890123456789
    layers: {meta-lab: }
`,
		debug: `
header: {version: 14}
target: core-image-minimal-dev
`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	project, err := layers.Load(context.Background(), kas+":"+debug, layers.Workspace{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(project.Machine, project.Distro, project.Targets)
	for _, repo := range project.Repos {
		fmt.Println(repo.Name, repo.Commit[:12])
	}
	// Output:
	// qemuarm64 nodistro [core-image-minimal-dev]
	// meta-lab 012345678901
}
