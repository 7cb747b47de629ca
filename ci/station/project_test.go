package station

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/fleet"
	"slipway/images"
)

// A station does a job on a board that only the user has, with the user's suites.
func TestProjectTravels(t *testing.T) {
	w := newWorld(t, 10*longLease)
	b := w.newBench("bench-1", 1, 1)
	b.start()
	project := t.TempDir()
	for _, dir := range []string{"boards/orin", "suites"} {
		if err := os.MkdirAll(filepath.Join(project, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(images.BoardsVariable, filepath.Join(project, "boards"))
	digests := map[string]bool{}
	for _, text := range []string{"one", "two", "one"} {
		for name, text := range map[string]string{"boards/orin/board.yml": "extends: virt\n", "suites/lab.yml": text} {
			if err := os.WriteFile(filepath.Join(project, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		digest, err := w.admin.SendProject(t.Context(), "orin")
		if err != nil {
			t.Fatal(err)
		}
		digests[digest] = true
		if r := w.ended(b.addWith("b1", digest).ID).Result; r.Kind != fleet.Passed {
			t.Fatalf("result = %+v", r)
		}
		if saw, err := os.ReadFile(filepath.Join(b.boards, "b1", "saw")); err != nil || string(saw) != "extends: virt\n"+text+"1" {
			t.Errorf("the child saw %q, %v; want the suite %q, distrusted", saw, err, text)
		}
	}
	if unpacked, err := os.ReadDir(filepath.Join(b.state, "projects")); err != nil || len(unpacked) != 2 || len(digests) != 2 {
		t.Errorf("two projects have the digests %v, and the folders %v, %v", digests, unpacked, err)
	}
	if digest, err := w.admin.SendProject(t.Context(), "virt"); digest != "" || err != nil {
		t.Errorf("SendProject of Slipway's own board = %q, %v", digest, err)
	}
	missing := "sha256:" + strings.Repeat("0", 64)
	if r := w.ended(b.addWith("b1", missing).ID).Result; r.Kind != fleet.Other || r.Attempts != 1 {
		t.Errorf("result = %+v; want an error about a project that the hub does not have", r)
	}
}
