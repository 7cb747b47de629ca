package images

import (
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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

// Yocto 5.0 has Go 1.22.12, and the recipe for Yocto 4.0 brings the same one.
func TestHookIsForYoctosGo(t *testing.T) {
	brought, err := filepath.Glob("../recipes/slipway-go/slipway-go-native_*.bb")
	if err != nil || len(brought) != 1 {
		t.Fatalf("recipes of slipway-go-native are %v, %v; want one", brought, err)
	}
	has, _ := strings.CutPrefix(strings.TrimSuffix(filepath.Base(brought[0]), ".bb"), "slipway-go-native_")
	for _, file := range []string{"../runtime-hook/go.mod", "../recipes/slipway-hook/files/modules.txt"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		wants := goVersion.FindAllStringSubmatch(string(text), -1)
		if len(wants) == 0 {
			t.Errorf("%s names no version of Go", file)
		}
		for _, want := range wants {
			if version.Compare("go"+want[1], "go"+has) > 0 {
				t.Errorf("%s wants Go %s; Yocto 5.0 has 1.22.12 and slipway-go-native %s", file, want[1], has)
			}
		}
	}
}

var goVersion = regexp.MustCompile(`(?m)^(?:## explicit; )?go (\d+(?:\.\d+)+)$`)
