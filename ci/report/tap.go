package report

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

// renderTAP returns all stages and checks in the Test Anything Protocol, as one flat list: many
// readers skip nested tests. Without any it returns one failed test. It declares version 13,
// because prove of Perl 5.36 refuses 14.
func renderTAP(all []Report) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintln(&b, "TAP version 13")
	total := 0
	for _, r := range all {
		total += len(r.listPoints())
	}
	if total == 0 {
		b.WriteString("1..1\nnot ok 1 - nothing was run\n") // a bail-out has no plan, which readers mind
		return b.Bytes(), nil
	}
	fmt.Fprintf(&b, "1..%d\n", total)
	n, labels := 0, boardLabels(all)
	for i, r := range all {
		for _, f := range r.about() {
			fmt.Fprintf(&b, "# %s: %s\n", f.Name, oneLine(f.Value))
		}
		prefix := plaintext.Either(len(all) > 1, labels[i]+": ", "")
		for _, p := range r.listPoints() {
			n++
			writeTAP(&b, n, prefix, p)
		}
	}
	return b.Bytes(), nil
}

// writeTAP writes the line of result n, with prefix before its name, and details as a YAML block.
func writeTAP(b *bytes.Buffer, n int, prefix string, p point) {
	fmt.Fprintf(b, "%s %d - %s", plaintext.Either(p.Status == Failed, "not ok", "ok"), n, tapText(prefix+p.suite+": "+p.Name))
	if p.Status == Skipped {
		fmt.Fprint(b, " # SKIP "+tapText(p.Saw))
	}
	fmt.Fprint(b, "\n  ---\n")
	for _, f := range []fact{{"kind", p.Kind}, {"status", string(p.Status)}, {"saw", p.Saw}, {"want", p.Want}, {"next", p.Next}, {"proves", string(p.Proves)}} {
		if f.Value != "" {
			fmt.Fprintf(b, "  %s: %s\n", f.Name, yamlText(f.Value))
		}
	}
	fmt.Fprintf(b, "  duration_ms: %d\n", p.ElapsedMS)
	for i, m := range p.Metrics {
		if i == 0 {
			fmt.Fprint(b, "  metrics:\n")
		}
		writeTAPMetric(b, m)
	}
	fmt.Fprint(b, "  ...\n")
}

// writeTAPMetric writes a metric, its limits and its last value as an element of a YAML list.
func writeTAPMetric(b *bytes.Buffer, m Metric) {
	fmt.Fprintf(b, "    - name: %s\n      value: %s\n", yamlText(m.Name), formatDecimal(m.Value))
	if m.Unit != "" {
		fmt.Fprintf(b, "      unit: %s\n", yamlText(m.Unit))
	}
	for _, bound := range []struct {
		name  string
		value *float64
	}{{"min", m.Min}, {"max", m.Max}, {"last", m.Last}} {
		if bound.value != nil {
			fmt.Fprintf(b, "      %s: %s\n", bound.name, formatDecimal(*bound.value))
		}
	}
}

// tapText returns a text in one line, with escapes for what TAP would read as a directive.
func tapText(text string) string {
	return strings.NewReplacer(`\`, `\\`, `#`, `\#`).Replace(oneLine(text))
}

// yamlText quotes a text for YAML, with the few escapes that Perl's YAML reader knows.
func yamlText(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(text) + `"`
}

func formatDecimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
