package suite

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The example of ci/add-a-check.md compiles, and its own test passes. The go command takes the
// files of the page as if they were in this folder.
func TestAddACheck(t *testing.T) {
	page, err := os.ReadFile("../add-a-check.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 3 {
		t.Fatalf("the page has %d blocks of Go; want the check, its line of kinds, and its test", len(blocks))
	}
	table, err := os.ReadFile("check.go")
	if err != nil {
		t.Fatal(err)
	}
	const last = "\t{\"container\","
	if !strings.Contains(string(table), last) {
		t.Fatalf("check.go has no line that begins with %q", last)
	}
	folder, replace := t.TempDir(), map[string]string{}
	for name, text := range map[string]string{
		"check_load.go":      blocks[0][1],
		"check.go":           strings.Replace(string(table), last, blocks[1][1]+last, 1),
		"check_load_test.go": blocks[2][1],
	} {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		replace[path] = filepath.Join(folder, name)
		if err := os.WriteFile(replace[path], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "test", "-overlay", list, "-run", "^TestLoadAverage$", "-v", ".").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestLoadAverage") {
		t.Errorf("go test of the page's files: %v\n%s", err, out)
	}
}
