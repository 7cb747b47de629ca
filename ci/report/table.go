package report

import (
	"slices"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

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

// tidyCells returns n cleaned cells, at most MaxTableColumns.
func tidyCells(cells []string, n int) []string {
	clean := make([]string, min(n, MaxTableColumns))
	for i := range min(len(clean), len(cells)) {
		clean[i] = oneLine(plaintext.Clean(cells[i], maxTableCell))
	}
	return clean
}

// shownTable is a table as the page draws it.
type shownTable struct {
	Check   string
	Columns []string
	Rows    []shownRow
}

// shownRow is a row of the table: its label, and a cell with a bar for each other column.
type shownRow struct {
	Label string
	Cells []shownCell
}

// shownCell is a cell with the length of its bar, in hundredths of the column's largest number.
type shownCell struct {
	Text string
	W    float64
}

// listTables returns the tables of all checks, as the page draws them.
func (r Report) listTables() (all []shownTable) {
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			if c.Table != nil {
				all = append(all, c.Table.shown(c.Name))
			}
		}
	}
	return all
}

func (t Table) shown(check string) shownTable {
	most := make([]float64, len(t.Columns))
	for _, row := range t.Rows {
		for i, cell := range row {
			most[i] = max(most[i], positive(cell))
		}
	}
	s := shownTable{Check: check, Columns: slices.Concat([]string{strings.Join(t.Columns[:t.Labels], ", ")}, t.Columns[t.Labels:])}
	for _, row := range t.Rows {
		shown := shownRow{Label: strings.Join(row[:t.Labels], ", ")}
		for i := t.Labels; i < len(row); i++ {
			cell := shownCell{Text: row[i]}
			if most[i] > 0 {
				cell.W = 100 * (positive(row[i]) / most[i])
			}
			shown.Cells = append(shown.Cells, cell)
		}
		s.Rows = append(s.Rows, shown)
	}
	return s
}

// positive returns a cell's number, or 0 if the cell is no positive number and gets no bar.
func positive(cell string) float64 {
	if v, err := strconv.ParseFloat(cell, 64); err == nil && isNumber(v) && v > 0 {
		return v
	}
	return 0
}
