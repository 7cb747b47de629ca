package suite_test

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	_ "slipway/ci/offload" // its checks are sections of suites
	"slipway/ci/suite"
)

var updatePage = flag.Bool("update", false, "write ci/workloads.md")

// The page is what the files of the workloads say.
func TestWorkloadsPage(t *testing.T) {
	all, err := suite.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	suite.WriteWorkloadsPage(&page, all)
	if *updatePage {
		if err := os.WriteFile("../workloads.md", page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("../workloads.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(got)); diff != "" {
		t.Errorf("workloads.md is not what the workloads say; go test ./ci/suite -run TestWorkloadsPage -update writes it\n%s", diff)
	}
	for _, row := range strings.Split(page.String(), "\n") {
		if cells := strings.Split(row, " | "); strings.HasPrefix(row, "| **") && (len(cells) != 7 || slices.ContainsFunc(cells, func(c string) bool { return strings.Trim(c, " |") == "" })) {
			t.Errorf("a row has an empty cell: %s", row)
		}
	}
}

// The checks judge what the real programs printed. Each has an output that passes and one
// that fails, for the reason that stands in the name.
func TestRecordedWorkloads(t *testing.T) {
	all, err := suite.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	judged := 0
	for _, w := range all {
		verdicts, err := w.JudgeOutputs()
		if err != nil {
			t.Errorf("%s: %v", w.Name, err)
		}
		for _, v := range verdicts {
			if judged++; v.Wrong != "" {
				t.Errorf("%s: %q: %s", v.File, v.Output, v.Wrong)
			}
		}
	}
	if judged < 40 {
		t.Errorf("%d outputs were judged; want at least 40", judged)
	}
}
