package report

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"slipway/layers/htmlstyle/pagetest"
)

func TestGauge(t *testing.T) {
	for _, tt := range []struct {
		name string
		give Metric
		want string // status, limits, last, attributes of the meter
	}{
		{"alone", Metric{Value: 3}, "passed"},
		{"between limits", Metric{Value: 5, Min: new(2.0), Max: new(10.0)}, `passed at least 2, at most 10 min="0" max="10" low="2" high="10" optimum="6" value="5"`},
		{"at most", Metric{Value: 4, Max: new(10.0), Last: new(5.0)}, `passed at most 10 last 5 min="0" max="10" low="0" high="10" optimum="5" value="4"`},
		{"too much", Metric{Value: 20, Max: new(10.0)}, `failed at most 10 min="0" max="20" low="0" high="10" optimum="5" value="20"`},
		{"too little", Metric{Value: -5, Min: new(10.0)}, `failed at least 10 min="-5" max="10" low="10" high="10" optimum="10" value="-5"`},
		{"the greatest numbers", Metric{Value: 0, Min: new(-math.MaxFloat64), Max: new(math.MaxFloat64)}, fmt.Sprintf(`passed at least -1.79769e+308, at most 1.79769e+308 min="-%[1]v" max="%[1]v" low="-%[1]v" high="%[1]v" optimum="0" value="0"`, math.MaxFloat64)},
	} {
		g := tt.give.newGauge("check")
		got := strings.TrimSpace(fmt.Sprintf("%s %s", g.Status, g.Limits))
		if g.Last != "" {
			got += " last " + g.Last
		}
		r := passing()
		r.Suites = []SuiteResult{{Name: "s", Checks: []CheckResult{{Name: "c", Status: Passed, Metrics: []Metric{tt.give}}}}}
		page, err := HTML([]Report{r})
		if err != nil {
			t.Fatal(err)
		}
		pagetest.Check(t, string(page))
		if _, rest, ok := bytes.Cut(page, []byte(`<meter aria-label="" `)); ok {
			attributes, _, _ := bytes.Cut(rest, []byte(">"))
			got += " " + strings.ReplaceAll(string(attributes), "&#43;", "+")
		}
		if got != tt.want {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
	}
}
