package soak

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"slipway/ci"
	"slipway/images"
)

// rulesSuite is the check of the suite dpu-pbr, with more rules at a time than is practical
// in a suite.
const rulesSuite = `pbr:
  a thousand rules come and go:
    rules: 1000
    rounds: %d
    max-growth: 32768
    timeout: 3600000
`

// Rules has FRR add and remove rules on each rig. It builds and reports in the folders of
// rig up.
func Rules(ctx context.Context, w io.Writer, dir string, opt Options) error {
	suite := filepath.Join(dir, "soak-rules.yml")
	if err := os.WriteFile(suite, fmt.Appendf(nil, rulesSuite, max(cmp.Or(opt.Rounds, 5), 2)), 0o644); err != nil {
		return err
	}
	names, err := images.Boards()
	for _, name := range names {
		spec, err := images.Load(name)
		if err != nil {
			return err
		}
		if spec.Rig == nil || !slices.Contains(spec.Suites, "dpu-pbr") {
			continue
		}
		spec.Suites = []string{suite}
		fmt.Fprintf(w, "%s:\n", spec.Board)
		report, err := ci.UpRig(ctx, spec, ci.RigOptions{Build: images.Options{Dir: "build"}, Out: w})
		for _, s := range report.Suites {
			for _, c := range s.Checks {
				fmt.Fprintf(w, "%s %s: %s\n", c.Status, c.Name, c.Saw)
			}
		}
		if err != nil {
			return err
		}
	}
	return err
}
