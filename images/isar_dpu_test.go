package images

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const isarDPU = "../layers/meta-slipway-isar/recipes-dpu/"

// Isar's recipes compile the same commits as OpenEmbedded's.
func TestIsarsRecipesHaveTheSameSource(t *testing.T) {
	for isar, yocto := range map[string]string{
		isarDPU + "rshim/rshim_*.bb":                 "../recipes/dynamic-layers/filesystems-layer/rshim/rshim_*.bb",
		isarDPU + "mlxbf-bootctl/mlxbf-bootctl_*.bb": "../recipes/mlxbf-bootctl/mlxbf-bootctl_*.bb",
	} {
		if got, want := revisionOf(t, isar), revisionOf(t, yocto); got != want {
			t.Errorf("SRCREV of %s = %s; want %s, as %s has it", isar, got, want, yocto)
		}
	}
}

// revisionOf returns the commit that the one recipe of a pattern compiles.
func revisionOf(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("recipes of %s are %v, %v; want one", pattern, found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	m := gitRevision().FindStringSubmatch(string(text))
	if m == nil {
		t.Fatalf("%s has no SRCREV", found[0])
	}
	return m[1]
}

// The emulated DPU has the ports and places of the rig.
func TestIsarsPortsAreThoseOfTheRig(t *testing.T) {
	rig := boardOf(t, "bluefield-rig-trixie").Rig
	var want []string
	for _, p := range rig.Ports {
		want = append(want, strings.Join([]string{"port", p.Name, p.Address}, " "))
	}
	for _, p := range rig.Places {
		want = append(want, strings.Join([]string{"place", p.Name, p.Port, p.Address}, " "))
	}
	text, err := os.ReadFile(isarDPU + "dpu-ports/files/ports.conf")
	if err != nil {
		t.Fatal(err)
	}
	got := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(text)), "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports.conf differs from the rig's board.yml (-want +got):\n%s", diff)
	}
}

// The emulated DPU's drivers have the rig's arguments. Only their folder is another one.
func TestIsarsDriversHaveTheRigsArguments(t *testing.T) {
	want, got := *boardOf(t, "bluefield-rig-trixie").DPU, *boardOf(t, "isar-dpu").DPU
	want.EAL = moveDrivers(want.EAL)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dpu of isar-dpu differs from the rig's (-want +got):\n%s", diff)
	}
}

// moveDrivers returns arguments with the folder of the layer's drivers in place of the rig's.
func moveDrivers(args []string) (all []string) {
	for _, arg := range args {
		all = append(all, strings.Replace(arg, "/usr/lib/slipway/", "/usr/lib/dpdk-slipway/", 1))
	}
	return all
}

func boardOf(t *testing.T, name string) Spec {
	t.Helper()
	spec, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}
