package report

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"slipway/layers/plaintext"

	"github.com/google/renameio/v2"
)

// WriteAll writes the reports of several boards into dir as one: a page with a table of
// boards and checks, report.json, junit.xml, and below boards/ a page for each.
func WriteAll(dir string, all []Report) error {
	if len(all) == 1 {
		return all[0].Write(dir)
	}
	all = tidyAll(all)
	const below = "boards"
	if err := os.MkdirAll(filepath.Join(dir, below), 0o755); err != nil {
		return err
	}
	names, links := usedIDs{}, make([]string, len(all))
	for i, r := range all {
		links[i] = below + "/" + names.newID(r.boardLabel()) + ".html"
		data, err := renderHTML([]Report{r})
		if err == nil {
			err = renameio.WriteFile(filepath.Join(dir, links[i]), data, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return writeForms(dir, all, withPage(func(all []Report) ([]byte, error) { return renderOverview(all, links) }))
}

// renderOverview renders the table. Its rows link to links, if there are any.
func renderOverview(all []Report, links []string) ([]byte, error) {
	var b bytes.Buffer
	err := pages().ExecuteTemplate(&b, "report_overview.html.tmpl", newOverview(all, links))
	return b.Bytes(), err
}

// table is the reports of several boards as the page shows them.
type table struct {
	Verdict  Status
	Headline string
	Reasons  string
	Failures []commonFailure
	Columns  []string
	Rows     []boardRow
}

// commonFailure is one stage or check that failed, with the boards on which it did.
type commonFailure struct {
	Where, Name string
	Boards      []boardFailure
	More        int
}

type boardFailure struct{ Label, Link, Saw, Next string }

// boardRow is a board's row of the table.
type boardRow struct {
	Label, Board, Link, Headline, Took string
	Status                             Status
	Cells                              []cell
}

type cell struct {
	Status Status // "" where the board was not asked
	Text   string
}

// Sign returns the text of the cell.
func (c cell) Sign() string { return cmp.Or(signs[c.Status], c.Text) }

// Limits of a page that a browser still shows.
const (
	maxColumns       = 60
	maxBoardsAFailed = 100
)

func newOverview(all []Report, links []string) table {
	t := table{Verdict: Passed, Failures: groupFailures(all, links)}
	columns, cells := byCheck(all)
	if len(columns) > maxColumns {
		columns, cells = bySuite(all)
	}
	t.Columns = columns
	failed, reasons := 0, map[string]int{}
	for i, r := range all {
		row := boardRow{Label: r.boardLabel(), Board: r.Board, Headline: r.headline(), Took: formatMS(r.ElapsedMS), Status: Passed, Cells: cells[i]}
		if links != nil {
			row.Link = links[i]
		}
		if r.Failed() {
			row.Status, t.Verdict = Failed, Failed
			failed++
			reasons[cmp.Or(r.Reason, "other")]++
		}
		t.Rows = append(t.Rows, row)
	}
	// Failed ones first; the others as they came.
	slices.SortStableFunc(t.Rows, func(a, b boardRow) int {
		return cmp.Compare(plaintext.Either(a.Status == Failed, "0", "1"), plaintext.Either(b.Status == Failed, "0", "1"))
	})
	t.Headline = fmt.Sprintf("all %d boards passed", len(all))
	if failed > 0 {
		t.Headline = fmt.Sprintf("%d of %d boards failed", failed, len(all))
	}
	for _, why := range []string{"unreachable", "check", "suite", "other"} {
		if reasons[why] > 0 {
			t.Reasons += fmt.Sprintf("%s%s: %d", plaintext.Either(t.Reasons == "", "", ", "), why, reasons[why])
		}
	}
	return t
}

// byCheck has a column for each stage and check, and a row of cells for each report.
func byCheck(all []Report) (columns []string, cells [][]cell) {
	at := map[string]int{}
	for _, r := range all {
		for _, p := range r.listPoints() {
			key := p.suite + ": " + p.name
			if _, known := at[key]; !known {
				at[key] = len(columns)
				columns = append(columns, key)
			}
		}
	}
	if len(columns) > maxColumns {
		return columns, nil
	}
	for _, r := range all {
		row := make([]cell, len(columns))
		for _, p := range r.listPoints() {
			row[at[p.suite+": "+p.name]] = cell{p.Status, plaintext.FirstLine(p.Saw)}
		}
		cells = append(cells, row)
	}
	return columns, cells
}

// bySuite has a column for each suite alone.
func bySuite(all []Report) (columns []string, cells [][]cell) {
	at := map[string]int{}
	for _, r := range all {
		for _, s := range r.Suites {
			if _, known := at[s.Name]; !known {
				at[s.Name] = len(columns)
				columns = append(columns, s.Name)
			}
		}
	}
	for _, r := range all {
		row := make([]cell, len(columns))
		for _, s := range r.Suites {
			text, err := s.Tally()
			status := Passed
			if n := (Report{Suites: []SuiteResult{s}}).Counts().Checks; err != nil {
				status = Failed
			} else if n[Passed] == 0 {
				status = Skipped
			}
			row[at[s.Name]] = cell{status, text}
		}
		cells = append(cells, row)
	}
	return columns, cells
}

// groupFailures groups what failed by stage and check. Those that failed on most boards
// come first.
func groupFailures(all []Report, links []string) []commonFailure {
	at := map[string]int{}
	var found []commonFailure
	for i, r := range all {
		for _, f := range r.listFailures() {
			key := f.Where + "\n" + f.Name
			if _, known := at[key]; !known {
				at[key] = len(found)
				found = append(found, commonFailure{Where: f.Where, Name: f.Name})
			}
			m := &found[at[key]]
			if len(m.Boards) == maxBoardsAFailed {
				m.More++
				continue
			}
			b := boardFailure{Label: r.boardLabel(), Saw: f.Saw, Next: f.Next}
			if links != nil {
				b.Link = links[i]
			}
			m.Boards = append(m.Boards, b)
		}
	}
	slices.SortStableFunc(found, func(a, b commonFailure) int {
		return cmp.Compare(len(b.Boards)+b.More, len(a.Boards)+a.More)
	})
	return found
}

// Count returns on how many boards it failed.
func (m commonFailure) Count() int { return len(m.Boards) + m.More }
