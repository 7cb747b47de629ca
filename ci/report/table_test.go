package report

import (
	"encoding/csv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func withTable(t Table) Report {
	return Report{Version: 1, Board: "orin", Suites: []SuiteResult{{Name: "power", Checks: []CheckResult{{Name: "each mode", Status: Passed, Table: &t}}}}}
}

// The CSV has each table, and nothing in it is a formula. Numbers below zero stay numbers.
func TestCSV(t *testing.T) {
	a := Table{Labels: 1, Columns: []string{"mode", "rate"}, Rows: [][]string{{"=cmd|x", "-6.5"}, {"@x,y\nz", "60"}}}
	b := Table{Columns: []string{"+x"}, Rows: [][]string{{"1"}}}
	all := []Report{withTable(a), withTable(a), withTable(b), {Board: "none"}}
	var out strings.Builder
	form, err := FormOf("csv", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteAs(&out, form, all...); err != nil {
		t.Fatal(err)
	}
	want := `board,suite,check,mode,rate
orin,power,each mode,'=cmd|x,-6.5
orin,power,each mode,"'@x,y z",60
orin,power,each mode,'=cmd|x,-6.5
orin,power,each mode,"'@x,y z",60

board,suite,check,'+x
orin,power,each mode,1
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	r := csv.NewReader(strings.NewReader(out.String()))
	r.FieldsPerRecord = -1
	if rows, err := r.ReadAll(); err != nil || len(rows) != 7 {
		t.Errorf("%d rows, %v; want 7", len(rows), err)
	}
}

// A table from elsewhere keeps to the limits, and rows that are too short or too long do no
// harm.
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
	page, err := renderHTML([]Report{withTable(Table{Labels: -3, Columns: []string{"a", "b"}, Rows: [][]string{{"<script>", "4"}, {"x", "8"}}}).Tidy()})
	if err != nil || strings.Contains(string(page), "<script>") || !strings.Contains(string(page), `<rect width="50%"`) || !strings.Contains(string(page), `<rect width="100%"`) {
		t.Errorf("page: %v\n%s", err, page)
	}
}
