package suite

import (
	"fmt"
	"math"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// compare holds metrics against those of the last good run.
func (s *Session) compare(c Check, f *Finding) {
	for i := range f.metrics {
		m := &f.metrics[i]
		last, ok := s.last[report.HistoryKey(c.suite, plaintext.Clean(c.Name, 200), m.Name)]
		if ok {
			m.Last = &last
		}
		switch {
		case m.within == 0:
		case !ok:
			f.Fact(m.Name + ": nothing to compare with yet")
		case math.Abs(m.Value-last) > m.within*math.Abs(last):
			f.Expect(false, fmt.Sprintf("%s: within %s %% of %s, as in the last run that passed", m.Name, report.FormatNumber(m.within*100, ""), report.FormatNumber(last, m.Unit)), m.String())
		}
	}
}
