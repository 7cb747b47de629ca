package report

import "slipway/layers/plaintext"

// Table is the output of a check's program as a table, such as a row for each power mode.
type Table struct {
	Labels  int        `json:"labels"` // how many of the columns name the row
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"` // each as long as Columns
}

// Limits of a table. What is more is cut off.
const (
	MaxTableRows    = 200
	MaxTableColumns = 20
	maxTableCell    = 100
)

// tidy returns the table within the limits, or nil if it is empty.
func (t *Table) tidy() *Table {
	if t == nil || len(t.Columns) == 0 || len(t.Rows) == 0 {
		return nil
	}
	clean := Table{Columns: tidyCells(t.Columns, len(t.Columns))}
	clean.Labels = max(0, min(t.Labels, len(clean.Columns)))
	for _, row := range t.Rows[:min(len(t.Rows), MaxTableRows)] {
		clean.Rows = append(clean.Rows, tidyCells(row, len(t.Columns)))
	}
	return &clean
}

// tidyCells returns n cleaned cells, at most MaxTableColumns. Missing cells are empty.
func tidyCells(cells []string, n int) []string {
	clean := make([]string, min(n, MaxTableColumns))
	for i := range min(len(clean), len(cells)) {
		clean[i] = oneLine(plaintext.Clean(cells[i], maxTableCell))
	}
	return clean
}

// shownTable is a table with the name of its check.
type shownTable struct {
	Check string
	Table
}
