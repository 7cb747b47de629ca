package report

import (
	"bytes"
	"fmt"
	"strings"

	"slipway/layers/plaintext"
)

// renderLAVA returns the lines from which LAVA's test shell reads results. A suite is a test set; a
// check, and each of several metrics of a check, is a test case.
func renderLAVA(all []Report) ([]byte, error) {
	var b bytes.Buffer
	sets, labels := usedIDs{}, boardLabels(all)
	for i, r := range all {
		for _, line := range r.aboutLines() {
			fmt.Fprintln(&b, lavaText(line))
		}
		prefix := ""
		if len(all) > 1 {
			prefix = labels[i] + "."
		}
		if len(r.Stages) > 0 {
			stages := Report{Stages: r.Stages}
			writeLAVA(&b, sets.newID(prefix+"stages"), stages.listPoints())
		}
		for _, s := range r.Suites {
			suite := Report{Suites: []SuiteResult{s}}
			writeLAVA(&b, sets.newID(prefix+s.Name), suite.listPoints())
		}
	}
	return b.Bytes(), nil
}

// writeLAVA writes the test set of one suite: a line for each test case, after the text of failed
// ones.
func writeLAVA(b *bytes.Buffer, set string, points []point) {
	fmt.Fprintf(b, "<LAVA_SIGNAL_TESTSET START %s>\n", set)
	cases := usedIDs{}
	for _, p := range points {
		if p.Status == Failed {
			fmt.Fprintf(b, "%s: %s\n%s\n", lavaText(oneLine(p.suite)), lavaText(oneLine(p.name)), lavaText(explainResult(p.CheckResult)))
		}
		measured := ""
		if len(p.Metrics) == 1 {
			measured = lavaMeasurement(p.Metrics[0])
		}
		id := cases.newID(p.name)
		fmt.Fprintf(b, "<LAVA_SIGNAL_TESTCASE TEST_CASE_ID=%s RESULT=%s%s>\n", id, lavaResults[p.Status], measured)
		if len(p.Metrics) < 2 {
			continue
		}
		for _, m := range p.Metrics {
			fmt.Fprintf(b, "<LAVA_SIGNAL_TESTCASE TEST_CASE_ID=%s RESULT=%s%s>\n",
				cases.newID(id+"."+m.Name), plaintext.Either(m.withinLimits(), "pass", "fail"), lavaMeasurement(m))
		}
	}
	fmt.Fprintln(b, "<LAVA_SIGNAL_TESTSET STOP>")
}

var lavaResults = map[Status]string{Passed: "pass", Cached: "pass", Failed: "fail", Skipped: "skip"}

func lavaMeasurement(m Metric) string {
	text := " MEASUREMENT=" + formatDecimal(m.Value)
	if m.Unit != "" {
		text += " UNITS=" + safeName(strings.NewReplacer("%", "percent", "/", "_per_").Replace(m.Unit))
	}
	return text
}

// withinLimits reports whether a metric is within its limits.
func (m Metric) withinLimits() bool {
	return (m.Min == nil || m.Value >= *m.Min) && (m.Max == nil || m.Value <= *m.Max)
}

// lavaText escapes what LAVA would read as a signal in a text.
func lavaText(text string) string { return strings.ReplaceAll(text, "<LAVA", "< LAVA") }
