package report

import (
	"math"
	"strconv"
	"strings"
)

// gauge is a metric on the page. If it has limits, a meter shows its value from Least to Most: these
// are the least and the most of zero, the value and the limits.
type gauge struct {
	Check, Name, Value, Limits, Last string
	Status                           Status
	Now, Least, Most                 float64
	Low, High, Middle                float64 // of what the limits allow
}

// newGauge returns the gauge of a metric with its limits and its last value.
func (m Metric) newGauge(check string) gauge {
	g := gauge{Check: check, Name: m.Name, Value: FormatNumber(m.Value, m.Unit), Status: Passed, Now: m.Value}
	if !m.withinLimits() {
		g.Status = Failed
	}
	if m.Last != nil {
		g.Last = FormatNumber(*m.Last, m.Unit)
	}
	g.Least, g.Most = min(0, m.Value), max(0, m.Value)
	var limits []string
	for _, limit := range []struct {
		words string
		value *float64
	}{{"at least ", m.Min}, {"at most ", m.Max}} {
		if limit.value != nil {
			limits = append(limits, limit.words+FormatNumber(*limit.value, m.Unit))
			g.Least, g.Most = min(g.Least, *limit.value), max(g.Most, *limit.value)
		}
	}
	g.Limits = strings.Join(limits, ", ")
	g.Low, g.High = g.Least, g.Most
	if m.Min != nil {
		g.Low = *m.Min
	}
	if m.Max != nil {
		g.High = *m.Max
	}
	g.Middle = g.Low/2 + g.High/2
	return g
}

// withinLimits reports whether a metric is within its limits.
func (m Metric) withinLimits() bool {
	return (m.Min == nil || m.Value >= *m.Min) && (m.Max == nil || m.Value <= *m.Max)
}

// String returns the metric's name and value.
func (m Metric) String() string { return m.Name + " " + FormatNumber(m.Value, m.Unit) }

// FormatNumber returns v with unit, with up to 4 decimals, or 6 digits below 0.001 or from 1e15.
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
