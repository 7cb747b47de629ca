package doctor

import (
	"context"
	"strings"

	_ "slipway/ci/offload" // registers sections of suites
	"slipway/ci/suite"
)

// checkSuites reads the board's suites, so that a mistake is found before the board is built.
func checkSuites(_ context.Context, p boardBuild) []Finding {
	f := Finding{What: "suites", Why: "smoke proves the board by them", Fix: suite.SuitesNext}
	if len(p.spec.Suites) == 0 && p.spec.TypedName() != p.spec.Board {
		return []Finding{okFinding("suites", "none: smoke --suite names them")}
	}
	if _, err := suite.LoadAll(p.spec); err != nil {
		f.State, f.Saw = Warning, err.Error()
		return []Finding{f}
	}
	return []Finding{okFinding("suites", "%s", strings.Join(p.spec.Suites, ", "))}
}
