package report

import (
	"bytes"
	"fmt"
	"strings"

	"slipway/layers/plaintext"
)

// lavaOf renders the lines by which LAVA's test shell takes results from what a job
// prints: one test set a suite, one test case a check and each of its metrics.
func lavaOf(all []Report) ([]byte, error) {
	var b bytes.Buffer
	sets := ids{}
	for _, r := range all {
		for _, line := range r.about() {
			fmt.Fprintln(&b, lavaText(line))
		}
		prefix := ""
		if len(all) > 1 {
			prefix = r.label() + "."
		}
		if len(r.Stages) > 0 {
			stages := Report{Stages: r.Stages}
			writeLAVA(&b, sets.of(prefix+"stages"), stages.points())
		}
		for _, s := range r.Suites {
			suite := Report{Suites: []SuiteResult{s}}
			writeLAVA(&b, sets.of(prefix+s.Name), suite.points())
		}
	}
	return b.Bytes(), nil
}

func writeLAVA(b *bytes.Buffer, set string, points []point) {
	fmt.Fprintf(b, "<LAVA_SIGNAL_TESTSET START %s>\n", set)
	cases := ids{}
	for _, p := range points {
		if p.Status == Failed {
			fmt.Fprintf(b, "%s: %s\n%s\n", lavaText(oneLine(p.suite)), lavaText(oneLine(p.name)), lavaText(explanation(p.CheckResult)))
		}
		measured := ""
		if len(p.Metrics) == 1 {
			measured = lavaMeasurement(p.Metrics[0])
		}
		id := cases.of(p.name)
		fmt.Fprintf(b, "<LAVA_SIGNAL_TESTCASE TEST_CASE_ID=%s RESULT=%s%s>\n", id, lavaResults[p.Status], measured)
		if len(p.Metrics) < 2 {
			continue
		}
		for _, m := range p.Metrics {
			fmt.Fprintf(b, "<LAVA_SIGNAL_TESTCASE TEST_CASE_ID=%s RESULT=%s%s>\n",
				cases.of(id+"."+m.Name), plaintext.Either(m.within(), "pass", "fail"), lavaMeasurement(m))
		}
	}
	fmt.Fprintln(b, "<LAVA_SIGNAL_TESTSET STOP>")
}

var lavaResults = map[Status]string{Passed: "pass", Cached: "pass", Failed: "fail", Skipped: "skip"}

func lavaMeasurement(m Metric) string {
	text := " MEASUREMENT=" + decimal(m.Value)
	if m.Unit != "" {
		text += " UNITS=" + plain(strings.NewReplacer("%", "percent", "/", "_per_").Replace(m.Unit))
	}
	return text
}

// within says whether a metric keeps its limits.
func (m Metric) within() bool {
	return (m.Min == nil || m.Value >= *m.Min) && (m.Max == nil || m.Value <= *m.Max)
}

// lavaText keeps the board's words from being taken for signals.
func lavaText(text string) string { return strings.ReplaceAll(text, "<LAVA", "< LAVA") }
