package source

import (
	"cmp"
	"time"

	"github.com/google/renameio/v2"

	"slipway/ci/report/junit"
)

func writeJUnit(path string, r *testResults) error {
	data, err := junitOf(r)
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, data, 0o644)
}

func junitOf(r *testResults) ([]byte, error) {
	all := junit.Suites{Name: "slipway", Time: junit.Seconds(time.Since(r.began).Milliseconds())}
	for cases := r.cases(); len(cases) > 0; {
		p := cases[0].pkg
		suite := junit.Suite{Name: p.path, Time: junit.Seconds(p.elapsed.Milliseconds())}
		for ; len(cases) > 0 && cases[0].pkg == p; cases = cases[1:] {
			suite.Add(cases[0].junitCase())
		}
		all.Add(suite)
	}
	return all.Encode()
}

func (c caseResult) junitCase() junit.Case {
	one := junit.Case{ClassName: c.pkg.path, Name: cmp.Or(c.name, "(package)"), Time: junit.Seconds(c.elapsed.Milliseconds())}
	switch c.state {
	case failed:
		one.Failure = &junit.Message{Message: "failed", Text: c.output.String()}
	case skipped:
		one.Skipped = &junit.Message{Message: c.skipReason()}
	}
	return one
}
