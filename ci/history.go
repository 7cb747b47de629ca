package ci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// metricsJSON holds the numbers of the last run that passed, beside the artifact.
// Boards of one kind share it, as they share the artifact.
const metricsJSON = "metrics.json"

// history is the metrics of the last good run, by suite, check and name.
type history map[string]float64

func historyKey(suite, check, metric string) string { return suite + "/" + check + "/" + metric }

// readHistory reads what an earlier run left in a folder; "" is none.
func readHistory(dir string) (history, error) {
	if dir == "" {
		return nil, nil
	}
	file := filepath.Join(dir, metricsJSON)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var h history
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return h, nil
}

// save keeps the metrics of a report that passed; those that it lacks stay.
func (h history) save(dir string, r Report) error {
	all := maps.Clone(h)
	if all == nil {
		all = history{}
	}
	n := 0
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			for _, m := range c.Metrics {
				all[historyKey(s.Name, c.Name, m.Name)] = m.Value
				n++
			}
		}
	}
	if dir == "" || n == 0 {
		return nil
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, metricsJSON), append(data, '\n'), 0o644)
}

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
