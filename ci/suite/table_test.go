package suite

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
)

func tableOf(t *testing.T, attributes string) (Suite, error) {
	t.Helper()
	return Load(suitetest.WriteSuite(t, map[string]string{"main.yml": "command:\n  rows:\n    exec: x\n    table: " + attributes + "\n"}))
}

// Lines become rows with the columns of the first one, labels first.
func TestTable(t *testing.T) {
	s, err := tableOf(t, "{lines: '^OK mode=', labels: [mode, batch]}")
	if err != nil {
		t.Fatal(err)
	}
	f := s.Checks[0].probe.(judge).judge(0, "start x=1\nOK mode=0 rate=60 batch=1 watts=6\nFAIL mode=1: no\n  OK mode=2 watts=3 extra=9 rate=40 rate=41 batch=\n")
	want := &report.Table{Labels: 2, Columns: []string{"mode", "batch", "rate", "watts"}, Rows: [][]string{{"0", "1", "60", "6"}, {"2", "", "40", "3"}}}
	if diff := cmp.Diff(want, f.table); diff != "" || !f.OK() {
		t.Errorf("%v (-want +got):\n%s", f.Want, diff)
	}
	if f := s.Checks[0].probe.(judge).judge(0, "nothing\n"); f.OK() || !strings.Contains(strings.Join(f.Want, ""), "a line that matches /^OK mode=/") {
		t.Errorf("without a row: %v", f.Want)
	}
	if f := s.Checks[0].probe.(judge).judge(0, strings.Repeat("OK mode=1 rate=2\n", report.MaxTableRows+5)); len(f.table.Rows) != report.MaxTableRows {
		t.Errorf("%d rows; want %d", len(f.table.Rows), report.MaxTableRows)
	}
	for attributes, want := range map[string]string{
		"[a]": "table must be a mapping", "{labels: [a]}": "table needs lines", "{lines: '('}": "missing closing", "{lines: a, row: b}": `"row"`,
		"{lines: a}\n    exit-status: [x]": "exit-status",
	} {
		if _, err := tableOf(t, attributes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("table: %s: %v; want %q", attributes, err, want)
		}
	}
}

// FuzzTable: each row of any output is as long as the columns.
func FuzzTable(f *testing.F) {
	reader := &table{lines: regexp.MustCompile("^OK"), labels: []string{"mode"}}
	f.Add("OK mode=1 a=2 =3 b= c==d\nOK\nOK a=1 mode=2\n")
	f.Fuzz(func(t *testing.T, output string) {
		got := reader.read(output)
		for _, row := range got.Rows {
			if len(row) != len(got.Columns) || got.Labels > len(got.Columns) {
				t.Errorf("row %q of columns %q, %d of them labels", row, got.Columns, got.Labels)
			}
		}
	})
}
