package rig

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"slipway/layers/lazy"
)

const frr = "../../recipes/dynamic-layers/networking-layer/frr/files"

// frrPatches are the folders of patches of each version, in their order: Debian's
// two and Yocto's two. DOCA's plugin is for newer ones than Debian 12's.
var frrPatches = map[string][]string{
	"8.4.4":  {"8.4"},
	"9.1.3":  {"9.1", "doca"},
	"10.3":   {"10", "10.3", "doca"},
	"10.6.1": {"10", "doca"},
}

var patched = lazy.Regexp(`(?m)^--- a/(\S+)\n\+\+\+ b/(\S+)$`)

// A patch says what was wrong, where it stands upstream, and changes nothing but
// zebra, the line of pbrd that zebra refuses, and the option that builds them.
func TestPatchesOfFRR(t *testing.T) {
	allowed := regexp.MustCompile(`^(zebra/.*|pbrd/pbr_zebra\.c|configure\.ac|doc/.*)$`)
	for version, folders := range frrPatches {
		patches := patchesOf(t, folders)
		if len(patches) < 8 {
			t.Errorf("FRR %s has %d patches; want 8 at least", version, len(patches))
		}
		for _, name := range patches {
			head, diff, found := strings.Cut(read(t, name), "\n---\n")
			if !found {
				t.Errorf("%s: no line --- between its message and its changes", name)
			}
			for _, line := range []string{"From: ", "Subject: [PATCH] ", "Upstream-Status: ", "Signed-off-by: "} {
				if !strings.Contains("\n"+head, "\n"+line) {
					t.Errorf("%s: no line %q", name, line)
				}
			}
			files := patched().FindAllStringSubmatch(diff, -1)
			if len(files) == 0 {
				t.Errorf("%s changes no file", name)
			}
			for _, file := range files {
				if file[1] != file[2] || !allowed.MatchString(file[1]) {
					t.Errorf("%s changes %s and %s; want one file of zebra, pbrd/pbr_zebra.c, configure.ac or doc", name, file[1], file[2])
				}
			}
		}
	}
}

// Patches that upstream has name its commits, which are all that is known to be there. The
// status of the others has another of the forms that Yocto takes.
func TestPatchesNameUpstreamsCommits(t *testing.T) {
	const commit = "https://github.com/FRRouting/frr/commit/"
	backports := map[string]string{
		"8.4/0000-build-with-dpdk-22.11.patch": commit + "6cd594ecfd39660a9df80a5a88d64e887dc0734d " + commit + "0e040960d76f4098ca829910c3a0c51a5cd9476c",
		"9.1/0000-build-with-dpdk-22.11.patch": commit + "0e040960d76f4098ca829910c3a0c51a5cd9476c",
		"9.1/0009-rule-family.patch":           commit + "9a6167852434a79cf60fb487d0aecf3c1218fecb",
		"10.3/0009-rule-family.patch":          commit + "9a6167852434a79cf60fb487d0aecf3c1218fecb",
	}
	status := regexp.MustCompile(`(?m)^Upstream-Status: (?:Pending|Inappropriate \[[^]]+\]|Backport \[([^]]+)\])$`)
	for _, folder := range []string{"8.4", "9.1", "10", "10.3", "doca"} {
		for _, name := range patchesOf(t, []string{folder}) {
			all := status.FindAllStringSubmatch(read(t, name), -1)
			if len(all) != 1 {
				t.Errorf("%s has %d lines Upstream-Status that Yocto takes; want 1", name, len(all))
				continue
			}
			if got, want := all[0][1], backports[folder+"/"+filepath.Base(name)]; got != want {
				t.Errorf("%s is a backport of %q; want %q", name, got, want)
			}
		}
	}
}

// What Yocto's recipe names is there, and what is there has a name in it.
func TestRecipeOfFRRNamesItsPatches(t *testing.T) {
	recipe := read(t, filepath.Join(frr, "..", "frr_%.bbappend"))
	for _, name := range patchesOf(t, []string{"9.1", "10"}) {
		if !strings.Contains(recipe, filepath.Base(name)) {
			t.Errorf("frr_%%.bbappend does not name %s", name)
		}
	}
	for _, name := range regexp.MustCompile(`\d{4}-\S+\.patch`).FindAllString(recipe, -1) {
		if _, err := os.Stat(filepath.Join(frr, "9.1", name)); err != nil {
			t.Error(err)
		}
	}
}

// Each source of FRR in SLIPWAY_FRR_SOURCES takes its version's patches as they
// are, with no line of their surroundings left out.
func TestPatchesApplyToFRR(t *testing.T) {
	sources := os.Getenv("SLIPWAY_FRR_SOURCES")
	if sources == "" {
		t.Skip("SLIPWAY_FRR_SOURCES names no folder of unpacked sources of FRR: 8.4.4, 9.1.3, 10.3 or 10.6.1")
	}
	configures, err := filepath.Glob(filepath.Join(sources, "*", "configure.ac"))
	if err != nil || len(configures) == 0 {
		t.Fatalf("no */configure.ac in %s: %v", sources, err)
	}
	for _, configure := range configures {
		version := versionOf(t, configure)
		t.Run(version, func(t *testing.T) {
			folders, known := frrPatches[version]
			if !known {
				t.Fatalf("%s is of FRR %s, for which there are no patches", configure, version)
			}
			dir := t.TempDir()
			for _, name := range patchesOf(t, folders) {
				apply(t, filepath.Dir(configure), dir, name)
			}
		})
	}
}

func versionOf(t *testing.T, configure string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^AC_INIT\(\[frr\], \[([\d.]+)`).FindStringSubmatch(read(t, configure))
	if found == nil {
		t.Fatalf("%s: no AC_INIT of FRR", configure)
	}
	return found[1]
}

// apply patches copies of the files that it names; the first patch brings a file there.
func apply(t *testing.T, source, dir, name string) {
	t.Helper()
	text := read(t, name)
	for _, file := range patched().FindAllStringSubmatch(text, -1) {
		copied := filepath.Join(dir, file[1])
		if _, err := os.Stat(copied); err == nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied, []byte(read(t, filepath.Join(source, file[1]))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "patch", "-p1", "-F0", "--batch", "-d", dir)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func patchesOf(t *testing.T, folders []string) []string {
	t.Helper()
	var patches []string
	for _, folder := range folders {
		names, err := filepath.Glob(filepath.Join(frr, folder, "*.patch"))
		if err != nil || len(names) == 0 {
			t.Fatalf("no patches in %s: %v", filepath.Join(frr, folder), err)
		}
		slices.Sort(names)
		patches = append(patches, names...)
	}
	return patches
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
