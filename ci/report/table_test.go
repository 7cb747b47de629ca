package report

import (
	"strings"
	"testing"
)

func withTable(t Table) Report {
	return Report{Version: 1, Board: "orin", Suites: []SuiteResult{{Name: "power", Checks: []CheckResult{{Name: "each mode", Status: Passed, Table: &t}}}}}
}

// A table from elsewhere keeps to the limits. Rows that are too short or too long do no harm.
func TestTablesFromElsewhere(t *testing.T) {
	wide := Table{Labels: 99, Columns: strings.Split(strings.Repeat("c,", 50), ","), Rows: [][]string{{"x"}}}
	for range MaxTableRows + 10 {
		wide.Rows = append(wide.Rows, []string{strings.Repeat("y", 5000), "\x1b[2J", "<script>"})
	}
	got := withTable(wide).Tidy().Suites[0].Checks[0].Table
	if len(got.Columns) != MaxTableColumns || got.Labels != MaxTableColumns || len(got.Rows) != MaxTableRows || len(got.Rows[0]) != MaxTableColumns || len(got.Rows[1][0]) > maxTableCell+50 {
		t.Errorf("%d columns, %d labels, %d rows, first %d", len(got.Columns), got.Labels, len(got.Rows), len(got.Rows[0]))
	}
	if empty := withTable(Table{Columns: []string{"a"}}).Tidy().Suites[0].Checks[0].Table; empty != nil {
		t.Errorf("a table without rows is %+v", empty)
	}
	page, err := HTML([]Report{withTable(Table{Labels: -3, Columns: []string{"a", "b"}, Rows: [][]string{{"<script>", "4"}, {"x", "8"}}}).Tidy()})
	if err != nil || strings.Contains(string(page), "<script>") || !strings.Contains(string(page), "<tr><td>x</td><td>8</td></tr>") {
		t.Errorf("page: %v\n%s", err, page)
	}
}
