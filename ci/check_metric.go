package ci

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"slipway/images/strict"

	"slipway/ci/report"
)

// reading is a metric, and how far it may be from that of the last good run.
type reading struct {
	report.Metric
	within float64 // of the last value, as a part of it; 0: as far as it likes
}

// limits are what a number is held against.
type limits struct {
	min, max *float64
	within   float64
}

func (e *entry) limits() limits {
	return limits{min: e.Decimal("min"), max: e.Decimal("max"), within: e.Percent("within")}
}

// read notes a number, and what is wrong with it.
func (l limits) read(f *finding, m report.Metric) {
	m.Min, m.Max = l.min, l.max
	f.metrics = append(f.metrics, reading{m, l.within})
	saw := m.String()
	switch {
	case l.min != nil && m.Value < *l.min:
		f.expect(false, fmt.Sprintf("%s: at least %s", m.Name, report.FormatNumber(*l.min, m.Unit)), saw)
	case l.max != nil && m.Value > *l.max:
		f.expect(false, fmt.Sprintf("%s: at most %s", m.Name, report.FormatNumber(*l.max, m.Unit)), saw)
	default:
		f.fact(saw)
	}
}

// metric is a number that a command prints.
type metric struct {
	command command
	name    string
	unit    string
	path    string         // in JSON; "": the output is the number
	pattern *regexp.Regexp // or what finds it in the output
	scale   float64
	limits  limits
}

func readMetric(e *entry) probe {
	m := metric{unit: e.Text("unit", ""), path: e.Text("json", ""), scale: 1, limits: e.limits()}
	m.name, _ = e.meta()
	if c, ok := readCommand(e).(command); ok {
		m.command = c
	}
	if e.Fields["exec"] == nil && e.Fields["argv"] == nil {
		e.Fail(e.Key, "a metric needs exec or argv: a command that prints a number")
	}
	if scale := e.Decimal("scale"); scale != nil {
		m.scale = *scale
	}
	if len(m.path) > maxJSONPathBytes {
		e.Fail(e.Fields["json"], "json: a path of more than %d bytes", maxJSONPathBytes)
	}
	m.readPattern(e)
	return m
}

func (m *metric) readPattern(e *entry) {
	n := e.Scalar("match", "a regular expression")
	if n == nil {
		return
	}
	re, err := regexp.Compile(n.Value)
	switch {
	case err != nil:
		e.Fail(n, "match: %v", err)
	case re.NumSubexp() != 1:
		e.Fail(n, "match must have one group, around the number")
	case m.path != "":
		e.Fail(n, "match and json are two ways to say where the number is; keep one")
	}
	m.pattern = re
}

func (m metric) Inspect(ctx context.Context, s *session) (finding, error) {
	var f finding
	out, err := s.output(ctx, m.command.argv...)
	if err != nil {
		return f, err
	}
	v, err := m.find(out)
	if err != nil {
		f.expect(false, "a number", err.Error())
		return f, nil
	}
	m.limits.read(&f, report.Metric{Name: m.name, Unit: m.unit, Value: v})
	return f, nil
}

// find returns the number in a command's output.
func (m metric) find(out string) (float64, error) {
	text := out
	switch {
	case m.path != "":
		value, err := jsonAt(out, m.path)
		if err != nil {
			return 0, err
		}
		text = textOf(value)
	case m.pattern != nil:
		found := m.pattern.FindStringSubmatch(out)
		if found == nil {
			return 0, fmt.Errorf("nothing in the output matches /%s/:\n%s", m.pattern, quoteOutput([]byte(out)))
		}
		text = found[1]
	}
	v, err := strict.Finite(text)
	if err == nil && math.IsInf(v*m.scale, 0) {
		err = strconv.ErrRange
	}
	if err != nil {
		return 0, fmt.Errorf("no number: %s", quoteOutput([]byte(text)))
	}
	return v * m.scale, nil
}

func (m metric) Next() string { return m.command.Next() }
