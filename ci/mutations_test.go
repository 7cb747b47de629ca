package ci

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/images"
)

// changedSource is the source of a part, with a fault that patch adds. The script builds it.
type changedSource struct{ board, part, suite, line, changed string }

const driverLine = "for driver in /source/dpdk-*; do"

// By the folder of the patches. FRR 8.4.4 does not show all faults, as its pbrd refuses some rules.
var changedSources = map[string]changedSource{
	"swflow":   {"bluefield-rig", "drivers", "dpu-flow", driverLine, changedDriver("dpdk-swflow")},
	"ml_sw":    {"bluefield-rig-trixie", "drivers", "dpu-mldev", driverLine, changedDriver("dpdk-ml-sw")},
	"frr":      {"bluefield-rig", "frr", "dpu-pbr", "say run |", "patch -p1 -F0 <<'END OF FAULT'\nFAULT\nEND OF FAULT\nsay run |"},
	"frr-10.3": {"bluefield-rig-trixie", "frr", "dpu-pbr", "say run |", "patch -p1 -F0 <<'END OF FAULT'\nFAULT\nEND OF FAULT\nsay run |"},
}

func changedDriver(recipe string) string {
	return "mkdir changed\ncp -r /source/dpdk-* changed\npatch -d changed/" + recipe + "/files -p1 -F0 <<'END OF FAULT'\nFAULT\nEND OF FAULT\nfor driver in /build/changed/dpdk-*; do"
}

// A suite finds each fault of a driver or of FRR that rig/testdata/mutations has, and passes
// without one. "fails:" above a patch means that it must not build. "says:" is a pattern of
// what the check must say.
func TestMutations(t *testing.T) {
	if os.Getenv("SLIPWAY_MUTATIONS") == "" || os.Getuid() != 0 {
		t.Skip("takes minutes for each fault, and root: SLIPWAY_MUTATIONS=1 go test ./ci -run Mutations/swflow/ttl -timeout=24h -v")
	}
	t.Chdir("..") // rigs are built from the clone
	cache, err := filepath.Abs("build/cache")
	if err != nil {
		t.Fatal(err)
	}
	opt := images.Options{Dir: t.TempDir(), Cache: cache}
	for kind, source := range changedSources {
		patches, err := filepath.Glob(filepath.Join("ci/rig/testdata/mutations", kind, "*.patch"))
		if err != nil || len(patches) == 0 {
			t.Fatalf("patches of %s: %q, %v", kind, patches, err)
		}
		t.Run(kind+"/none", func(t *testing.T) {
			if failed, said := source.runSuite(t, opt, ""); failed != "" {
				t.Errorf("%s without a fault: %s: %s", source.suite, failed, said)
			}
		})
		for _, patch := range patches {
			t.Run(kind+"/"+strings.TrimSuffix(filepath.Base(patch), ".patch"), func(t *testing.T) {
				text, err := os.ReadFile(patch)
				if err != nil {
					t.Fatal(err)
				}
				failed, said := source.runSuite(t, opt, string(text))
				want := regexp.MustCompile(`(?m)^says: (.*)$`).FindStringSubmatch(string(text))
				if failed == "" || want != nil && !regexp.MustCompile(want[1]).MatchString(said) {
					t.Errorf("found by %q, which said %q; want a failed check, and %q", failed, said, want)
				}
				t.Logf("found by %s: %.300s", failed, strings.Join(strings.Fields(said), " "))
			})
		}
	}
}

// runSuite builds the part with a patch and returns the first check that failed, with what it
// said. A patch that must not build is found by the build.
func (c changedSource) runSuite(t *testing.T, opt images.Options, patch string) (failed, said string) {
	t.Helper()
	spec, err := images.Load(c.board)
	if err != nil {
		t.Fatal(err)
	}
	spec.Suites = []string{c.suite}
	last := slices.IndexFunc(spec.Rig.Source, func(s images.RigSource) bool { return s.Name == c.part })
	if c.part == "drivers" { // its suites need no FRR, which takes minutes
		rig := *spec.Rig
		rig.Source, last = rig.Source[last:], 0
		spec.Rig = &rig
	}
	if patch != "" {
		name := spec.Rig.Source[last].Script
		script, err := spec.File(name)
		if err != nil || strings.Count(string(script), c.line) != 1 {
			t.Fatalf("%s has not the line %q once; %v", name, c.line, err)
		}
		spec = spec.WithFile(name, strings.Replace(string(script), c.line, strings.Replace(c.changed, "FAULT\n", patch+"\n", 1), 1))
	}
	r, err := UpRig(t.Context(), spec, RigOptions{Build: opt, Out: io.Discard})
	for _, s := range r.Suites {
		for _, check := range s.Checks {
			if check.Status == report.Failed {
				return check.Name, check.Saw
			}
		}
	}
	if err != nil && strings.Contains("\n"+patch, "\nfails:") {
		return "the build", err.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	return "", ""
}
