package builder

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateFiles = flag.Bool("update", false, "write the files that tests compare with")

// The boot loader of Isar's images is configured as that of the boards made of packages.
func TestIsarGrub(t *testing.T) {
	const file = "../../layers/meta-slipway-isar/recipes-core/images/files/grub.cfg.in"
	want := "# Made by images/builder/grub.go: go test ./images/builder -run IsarGrub -update\n" + debianGrubWith(t, "@CMDLINE@")
	if *updateFiles {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s is not what grub.go makes (-want +got):\n%s", file, diff)
	}
}
