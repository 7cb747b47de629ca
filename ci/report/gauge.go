package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// gauge is the drawing of a metric on the page. X values are positions on its scale, in hundredths.
type gauge struct {
	Check, Name, Value, Limits, Last string
	Status                           Status
	X                                float64
	Band, Was                        bool // whether it has limits, and a last value
	BandX, BandW, LastX              float64
	Trend                            string // the points of a line through its earlier values
	Runs                             int
}

// metricGauges returns a gauge for each metric of a report, with a line through its values in past.
func (r Report) metricGauges(past []Report) []gauge {
	earlier := map[string][]float64{}
	for _, p := range past {
		for key, m := range p.metricsByKey() {
			earlier[key] = append(earlier[key], m.Value)
		}
	}
	var all []gauge
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			for _, m := range c.Metrics {
				g := m.newGauge(c.Name)
				g.setTrend(append(earlier[metricKey(s, c, m)], m.Value))
				all = append(all, g)
			}
		}
	}
	return all
}

func metricKey(s SuiteResult, c CheckResult, m Metric) string {
	return s.Name + "\n" + c.Name + "\n" + m.Name
}

func (r Report) metricsByKey() map[string]Metric {
	all := map[string]Metric{}
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			for _, m := range c.Metrics {
				all[metricKey(s, c, m)] = m
			}
		}
	}
	return all
}

// scale is the range of values of one drawing.
type scale struct{ least, most float64 }

func scaleOf(values ...*float64) scale {
	var s scale
	first := true
	for _, v := range values {
		if v == nil {
			continue
		}
		if first {
			s, first = scale{*v, *v}, false
		}
		s.least, s.most = min(s.least, *v), max(s.most, *v)
	}
	return s
}

// placeOf returns the position of a value on the scale, from 4 to 96. It halves the values first,
// because the difference of huge values would overflow.
func (s scale) placeOf(v float64) float64 {
	if s.least == s.most {
		return 50
	}
	return 4 + 92*((v/2-s.least/2)/(s.most/2-s.least/2))
}

// newGauge returns the drawing of a metric with its limits and its last value.
func (m Metric) newGauge(check string) gauge {
	g := gauge{Check: check, Name: m.Name, Value: FormatNumber(m.Value, m.Unit), Status: Passed}
	s := scaleOf(&m.Value, m.Min, m.Max, m.Last)
	g.X = s.placeOf(m.Value)
	if !m.withinLimits() {
		g.Status = Failed
	}
	if m.Last != nil {
		g.Was, g.LastX, g.Last = true, s.placeOf(*m.Last), FormatNumber(*m.Last, m.Unit)
	}
	from, to := 0.0, 100.0
	var limits []string
	if m.Min != nil {
		from, limits = s.placeOf(*m.Min), append(limits, "at least "+FormatNumber(*m.Min, m.Unit))
	}
	if m.Max != nil {
		to, limits = s.placeOf(*m.Max), append(limits, "at most "+FormatNumber(*m.Max, m.Unit))
	}
	g.Limits, g.Band = strings.Join(limits, ", "), len(limits) > 0
	g.BandX, g.BandW = from, max(to-from, 0)
	return g
}

// setTrend sets the line through the values of several runs. The last one is this run.
func (g *gauge) setTrend(values []float64) {
	if len(values) < 2 {
		return
	}
	all := make([]*float64, len(values))
	for i := range values {
		all[i] = &values[i]
	}
	s := scaleOf(all...)
	var points []string
	for i, v := range values {
		points = append(points, fmt.Sprintf("%.1f,%.1f", 100*float64(i)/float64(len(values)-1), 24-s.placeOf(v)*.24))
	}
	g.Trend, g.Runs = strings.Join(points, " "), len(values)
}

// String returns the metric's name and value.
func (m Metric) String() string { return m.Name + " " + FormatNumber(m.Value, m.Unit) }

// FormatNumber returns a number with at most four decimals, or in exponent form, and its unit.
func FormatNumber(v float64, unit string) string {
	text := strconv.FormatFloat(v, 'g', 6, 64)
	if math.Abs(v) >= 1e-3 && math.Abs(v) < 1e15 {
		text = strconv.FormatFloat(math.Round(v*1e4)/1e4, 'f', -1, 64)
	}
	if unit == "" {
		return text
	}
	return text + " " + unit
}
