package suite_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"slipway/ci/suite"
)

// A suite has a section for each kind of check. Load also finds the suites of a project and
// Slipway's own, by their names.
func ExampleLoad() {
	folder, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)

	const text = `
file:
  /etc/os-release: {exists: true}
command:
  uname -m:
    stdout: [aarch64]
    meta: {next: "flash the image of the right board"}
`
	path := filepath.Join(folder, "lab.yml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
	lab, err := suite.Load(path)
	if err != nil {
		log.Fatal(err)
	}
	for _, check := range lab.Checks {
		fmt.Printf("%s: %s, within %s\n", check.Kind, check.Name, check.Timeout)
	}
	fmt.Println(lab.Checks[1].Next)
	// Output:
	// file: /etc/os-release, within 30s
	// command: uname -m, within 30s
	// flash the image of the right board
}
