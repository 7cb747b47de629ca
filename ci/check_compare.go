package ci

import (
	"fmt"
	"math"
)

// compare holds metrics against those of the last good run.
func (s *session) compare(c Check, f *finding) {
	for i := range f.metrics {
		m := &f.metrics[i]
		last, ok := s.last[historyKey(c.suite, clean(c.Name, 200), m.Name)]
		if ok {
			m.Last = &last
		}
		switch {
		case m.within == 0:
		case !ok:
			f.fact(m.Name + ": nothing to compare with yet")
		case math.Abs(m.Value-last) > m.within*math.Abs(last):
			f.expect(false, fmt.Sprintf("%s: within %s %% of %s, as in the last run that passed", m.Name, number(m.within*100, ""), number(last, m.Unit)), m.String())
		}
	}
}
