package report

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

// tapOf renders the Test Anything Protocol: one flat list, as many readers skip what is
// nested. It is of version 14 with its escapes and says 13, which is the same without
// nesting: prove of Perl 5.36 takes a 14 for an error.
func tapOf(all []Report) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintln(&b, "TAP version 13")
	total := 0
	for _, r := range all {
		total += len(r.points())
	}
	if total == 0 {
		b.WriteString("1..1\nnot ok 1 - nothing was run\n") // a bail-out has no plan, which readers mind
		return b.Bytes(), nil
	}
	fmt.Fprintf(&b, "1..%d\n", total)
	n := 0
	for _, r := range all {
		for _, line := range r.about() {
			fmt.Fprintln(&b, "# "+line)
		}
		prefix := ""
		if len(all) > 1 {
			prefix = r.label() + ": "
		}
		for _, p := range r.points() {
			n++
			writeTAP(&b, n, prefix, p)
		}
	}
	return b.Bytes(), nil
}

func writeTAP(b *bytes.Buffer, n int, prefix string, p point) {
	fmt.Fprintf(b, "%s %d - %s", plaintext.Either(p.Status == Failed, "not ok", "ok"), n, tapText(prefix+p.suite+": "+p.name))
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

func writeTAPMetric(b *bytes.Buffer, m Metric) {
	fmt.Fprintf(b, "    - name: %s\n      value: %s\n", yamlText(m.Name), decimal(m.Value))
	if m.Unit != "" {
		fmt.Fprintf(b, "      unit: %s\n", yamlText(m.Unit))
	}
	for _, bound := range []struct {
		name  string
		value *float64
	}{{"min", m.Min}, {"max", m.Max}, {"last", m.Last}} {
		if bound.value != nil {
			fmt.Fprintf(b, "      %s: %s\n", bound.name, decimal(*bound.value))
		}
	}
}

// tapText takes a name's meaning as a line or as a directive from it.
func tapText(text string) string {
	return strings.NewReplacer(`\`, `\\`, `#`, `\#`).Replace(oneLine(text))
}

// yamlText quotes what has no control characters but line ends and tabs. Perl's reader
// of YAML knows few escapes, which these are among.
func yamlText(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(text) + `"`
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
