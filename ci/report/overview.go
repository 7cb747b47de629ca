package report

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"slipway/layers/plaintext"
)

// maxPageName limits the name of a board's own page. File systems allow 255 bytes.
const maxPageName = 200

// WriteAll writes the reports of several boards into dir: a page with a table of boards and checks,
// report.json, junit.xml, and a page for each board in boards/. One report is written as by Write.
func WriteAll(dir string, all []Report) error {
	if len(all) == 1 {
		return all[0].Write(dir)
	}
	all = tidyAll(all)
	const below = "boards"
	if err := os.MkdirAll(filepath.Join(dir, below), 0o755); err != nil {
		return err
	}
	p := page{files: []file{{"all boards", "../" + ReportHTML}, {ReportJSON, "../" + ReportJSON}, {ReportJUnit, "../" + ReportJUnit}}}
	names, labels, links := usedIDs{}, boardLabels(all), make([]string, len(all))
	for i, r := range all {
		id := safeName(labels[i])
		links[i] = below + "/" + names.newID(id[max(0, len(id)-maxPageName):]) + ".html"
		data, err := p.render(r)
		if err == nil {
			err = renameio.WriteFile(filepath.Join(dir, links[i]), data, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return writeForms(dir, all, newOverview(all, links).Render)
}

// newOverview returns the page of several reports. links are their own pages in this order, or nil.
func newOverview(all []Report, links []string) BoardsPage {
	p := BoardsPage{Verdict: Passed}
	if links != nil {
		p.Files = []string{ReportJSON, ReportJUnit}
	}
	passed, failed, unreached := Count{0, "passed"}, Count{0, "failed"}, Count{0, "not reached"}
	columns, rows := CheckTable(all)
	labels, times := boardLabels(all), make([]string, len(all))
	oneKind := !slices.ContainsFunc(all, func(r Report) bool { return r.Board != all[0].Board })
	var failures []BoardFailure
	for i, r := range all {
		row := &rows[i]
		row.Board, row.Result, row.Note, row.Took, row.Status = r.boardName(), r.headline(), formatTime(r.Started), formatMS(r.ElapsedMS), Passed
		if times[i] = row.Note; !oneKind && r.Target != "" {
			row.Note = r.Board + ", " + row.Note
		}
		if links != nil {
			row.Link = links[i]
		}
		count := &passed
		if r.Failed() {
			row.Status, p.Verdict, count = Failed, Failed, &failed
		}
		if r.Reason == ReasonFor(ErrUnreachable) {
			count = &unreached
		}
		count.Boards++
		for _, f := range r.Failures() {
			failures = append(failures, BoardFailure{labels[i], row.Link, f})
		}
	}
	if len(all) > 0 {
		first, last := slices.Min(times), slices.Max(times)
		p.About = plaintext.Either(oneKind, all[0].Board+", ", "") + first + plaintext.Either(first == last, "", " to "+last)
	}
	p.Title = BoardsTitle(passed.Boards, len(all))
	p.Counts, p.Causes, p.Columns, p.Rows = []Count{passed, failed, unreached}, GroupCauses(failures), columns, rows
	return p
}
