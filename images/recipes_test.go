package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Yocto compiles the hook from modules that its recipe lists; a list that is
// behind the hook's go.mod would stop that build long after it began.
func TestHookRecipeListsTheHooksModules(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not in PATH")
	}
	vendor := filepath.Join(t.TempDir(), "vendor")
	cmd := exec.Command("go", "mod", "vendor", "-o", vendor)
	cmd.Dir = "../runtime-hook"
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go mod vendor: %v\n%s", err, out)
	}
	want, err := os.ReadFile(filepath.Join(vendor, "modules.txt"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../recipes/slipway-hook/files/modules.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("recipes/slipway-hook/files/modules.txt is not what go mod vendor writes; mend it and the SRCREVs of slipway-hook.bb: (-want +got)\n%s", diff)
	}
}
