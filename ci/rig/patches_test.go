package rig

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"slipway/layers/plaintext"
)

const frr = "../../recipes/dynamic-layers/networking-layer/frr/files"

// frrPatches are the folders of patches of each version: Debian's two and Yocto's two.
var frrPatches = map[string][]string{
	"8.4.4":  {"all", "8.4", "8.4-9.1"},
	"9.1.3":  {"all", "8.4-9.1", "9.1-10.3", "9.1-10.6"},
	"10.3":   {"all", "9.1-10.3", "9.1-10.6"},
	"10.6.1": {"all", "9.1-10.6"},
}

// seriesOf returns the patches of a version in their order. DOCA's plugin comes last, and is
// for newer ones than Debian 12's.
func seriesOf(t *testing.T, version string) []string {
	t.Helper()
	series := patchesOf(t, frrPatches[version])
	if version != "8.4.4" {
		series = append(series, patchesOf(t, []string{"doca"})...)
	}
	return series
}

var patched = plaintext.Regexp(`(?m)^--- a/(\S+)\n\+\+\+ b/(\S+)$`)

// A patch says what was wrong, where it stands upstream, and changes nothing but
// zebra, the line of pbrd that zebra refuses, and the option that builds them.
func TestPatchesOfFRR(t *testing.T) {
	allowed := regexp.MustCompile(`^(zebra/.*|pbrd/pbr_zebra\.c|configure\.ac|doc/.*)$`)
	used := map[string]bool{}
	for version := range frrPatches {
		patches := seriesOf(t, version)
		if len(patches) < 8 {
			t.Errorf("FRR %s has %d patches; want 8 at least", version, len(patches))
		}
		for _, name := range patches {
			used[name] = true
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
	for _, name := range patchesOf(t, []string{"*"}) {
		if !used[name] {
			t.Errorf("no version has %s", name)
		}
	}
}

// Patches that upstream has name its commits, which are all that is known to be there. The
// status of the others has another of the forms that Yocto takes.
func TestPatchesNameUpstreamsCommits(t *testing.T) {
	const commit = "https://github.com/FRRouting/frr/commit/"
	backports := map[string]string{
		"8.4/0000a-as-in-9.1.patch":                 commit + "6cd594ecfd39660a9df80a5a88d64e887dc0734d " + commit + "c323b930eaeb779a973e95b1202223164a5e2b02",
		"8.4-9.1/0000b-as-in-10.patch":              commit + "46a8c4e9be3502a309474adfce61df1f4eff6fd7 " + commit + "eced678d34344070684f3e95925dfaff65597487",
		"8.4-9.1/0000c-build-with-dpdk-22.11.patch": commit + "0e040960d76f4098ca829910c3a0c51a5cd9476c",
		"9.1-10.3/0009-rule-family.patch":           commit + "9a6167852434a79cf60fb487d0aecf3c1218fecb",
	}
	status := regexp.MustCompile(`(?m)^Upstream-Status: (?:Pending|Inappropriate \[[^]]+\]|Backport \[([^]]+)\])$`)
	for _, name := range patchesOf(t, []string{"*"}) {
		all := status.FindAllStringSubmatch(read(t, name), -1)
		if len(all) != 1 {
			t.Errorf("%s has %d lines Upstream-Status that Yocto takes; want 1", name, len(all))
			continue
		}
		folder, file := filepath.Split(name)
		if got, want := all[0][1], backports[filepath.Base(folder)+"/"+file]; got != want {
			t.Errorf("%s is a backport of %q; want %q", name, got, want)
		}
	}
}

// Yocto's recipe names the patches of its two versions, and no others.
func TestRecipeOfFRRNamesItsPatches(t *testing.T) {
	recipe := read(t, filepath.Join(frr, "..", "frr_%.bbappend"))
	for version, variable := range map[string]string{"9.1.3": "SLIPWAY_FRR_PATCHES_9", "10.6.1": "SLIPWAY_FRR_PATCHES_10"} {
		got := append(namedBy(t, recipe, "SLIPWAY_FRR_PATCHES"), namedBy(t, recipe, variable)...)
		slices.SortFunc(got, byName)
		if want := patchesOf(t, frrPatches[version]); !slices.Equal(got, want) {
			t.Errorf("frr_%%.bbappend names for %s %q; want %q", version, got, want)
		}
	}
}

func namedBy(t *testing.T, recipe, variable string) []string {
	t.Helper()
	value := regexp.MustCompile(`(?m)^` + variable + ` = "([^"]*)"`).FindStringSubmatch(recipe)
	if value == nil {
		t.Fatalf("frr_%%.bbappend sets no %s", variable)
	}
	var names []string
	for _, name := range strings.Fields(strings.ReplaceAll(value[1], `\`, " ")) {
		names = append(names, filepath.Join(frr, name))
	}
	return names
}

// Debian's two have the folders in debian.txt that their patches are in, and a rig has them all.
func TestDebianNamesItsPatches(t *testing.T) {
	releases := regexp.MustCompile(`(?m)^release \S+ (\S+) \S+ (.+)$`).FindAllStringSubmatch(read(t, filepath.Join(frr, "debian.txt")), -1)
	boards := map[string]string{"8.4.4": "bluefield-rig", "10.3": "bluefield-rig-trixie"}
	if len(releases) != len(boards) {
		t.Errorf("debian.txt has %d releases; want %d", len(releases), len(boards))
	}
	for _, release := range releases {
		folders := strings.Fields(release[2])
		if want := frrPatches[release[1]]; !slices.Equal(folders, want) {
			t.Errorf("debian.txt names for %s %q; want %q", release[1], folders, want)
		}
		board := read(t, filepath.Join("../../images/boards", boards[release[1]], "board.yml"))
		for _, folder := range folders {
			if !strings.Contains(board, strings.TrimPrefix(filepath.Join(frr, folder), "../../")+"\n") {
				t.Errorf("%s: no folder %s", boards[release[1]], folder)
			}
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
			if _, known := frrPatches[version]; !known {
				t.Fatalf("%s is of FRR %s, for which there are no patches", configure, version)
			}
			dir := t.TempDir()
			for _, name := range seriesOf(t, version) {
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

// patchesOf returns the patches of folders in the order of their names, which differ.
func patchesOf(t *testing.T, folders []string) []string {
	t.Helper()
	var patches []string
	for _, folder := range folders {
		names, err := filepath.Glob(filepath.Join(frr, folder, "*.patch"))
		if err != nil || len(names) == 0 {
			t.Fatalf("no patches in %s: %v", filepath.Join(frr, folder), err)
		}
		patches = append(patches, names...)
	}
	slices.SortFunc(patches, byName)
	for i, name := range patches[1:] {
		if byName(patches[i], name) == 0 {
			t.Errorf("%s and %s have one name, so they have no order", patches[i], name)
		}
	}
	return patches
}

func byName(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) }

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
