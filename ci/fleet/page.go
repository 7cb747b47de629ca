package fleet

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"slipway/ci/report"
	"slipway/images"
)

// writePages writes the HTML page for people and the JUnit file for CI systems.
func (o Outcome) writePages(dir string, reports []report.Report) error {
	html, err := o.Page(reports).Render()
	if err != nil {
		return err
	}
	junit, err := o.renderJUnit()
	return errors.Join(err, writeFile(dir, pageName, html), writeFile(dir, junitName, junit))
}

// readReports returns the report of each board, without logs, or an empty one if it cannot be read.
func (o Outcome) readReports(dir string) []report.Report {
	all := make([]report.Report, len(o.Results))
	for i, r := range o.Results {
		if r.Report == "" || !filepath.IsLocal(r.Report) {
			continue
		}
		found, err := report.ReadReports(filepath.Join(dir, filepath.Dir(r.Report), report.ReportJSON))
		if err == nil && len(found) == 1 {
			all[i] = found[0]
			all[i].Logs = nil
		}
	}
	return all
}

// Page returns the data of the HTML page: a row for each board, with the checks of its report. There
// is a report for each of o.Results, in their order: an empty one for a board without.
func (o Outcome) Page(reports []report.Report) report.BoardsPage {
	p := report.BoardsPage{
		Title: o.title() + ", " + report.BoardsTitle(o.countKinds().doneCount(), len(o.Results)), Verdict: report.Passed,
		About: o.describeRun(), Counts: o.classCounts(), Causes: o.findCauses(reports), Files: []string{outcomeName, junitName},
	}
	if o.countKinds().doneCount() < len(o.Results) {
		p.Verdict = report.Failed
	}
	p.Columns, p.Rows = report.CheckTable(reports)
	for i, r := range o.Results {
		row := &p.Rows[i]
		row.Board, row.Link, row.Result, row.Note = r.Host, report.RelativeLink(r.Report), string(r.Kind), r.describeBoard()
		row.Took, row.Status = r.took(), r.Kind.status()
	}
	return p
}

// status returns what the page and the JUnit file show for a kind: skipped only for NotBegun.
func (k Kind) status() report.Status {
	switch {
	case k.Done():
		return report.Passed
	case k == NotBegun:
		return report.Skipped
	}
	return report.Failed
}

// classCounts counts the boards that passed, failed, could not be reached, and were not begun.
func (o Outcome) classCounts() []report.Count {
	all := []report.Count{{Words: "passed"}, {Words: "failed"}, {Words: "not reached"}, {Words: "not begun"}}
	for kind, n := range o.countKinds() {
		i := 1
		switch {
		case kind.Done():
			i = 0
		case kind == NotBegun:
			i = 3
		case errors.Is(kinds[kind.rank()].err, report.ErrUnreachable):
			i = 2
		}
		all[i].Boards += n
	}
	return all
}

// describeRun returns a line with the work, the time, the inventory and this Slipway's version.
func (o Outcome) describeRun() string {
	program := images.ThisProgram()
	program.Commit = program.Commit[:min(len(program.Commit), 12)]
	return fmt.Sprintf("%s. Begun %s, took %s, of %s, by Slipway %s", oneLine(o.Work), o.Started.UTC().Format("2 January 2006, 15:04:05 MST"), seconds(o.ElapsedMS), oneLine(o.Inventory), program)
}

// findCauses groups the failures of all boards by cause, the most urgent kind first.
func (o Outcome) findCauses(reports []report.Report) []report.Cause {
	byKind := map[Kind][]report.BoardFailure{}
	for i, r := range o.Results {
		for _, f := range o.failuresOf(r, reports[i]) {
			byKind[r.Kind] = append(byKind[r.Kind], report.BoardFailure{Board: r.Host, Link: report.RelativeLink(r.Report), Failure: f})
		}
	}
	var all []report.Cause
	for _, k := range kinds {
		causes := report.GroupCauses(byKind[k.kind])
		for i := range causes {
			causes[i].Status = k.kind.status()
		}
		all = append(all, causes...)
	}
	return all
}

// markdown returns the run's summary for CI: the counts, and the causes of all failures.
func (o Outcome) markdown(dir string) string {
	title := fmt.Sprintf("%s on %s: %s", o.title(), report.Boards(len(o.Results)), o.countKinds())
	return report.CausesMarkdown(title, o.findCauses(o.readReports(dir)))
}

// failuresOf returns nil for a board on which the run did its work, or that had all of it before.
// For the kind Checks it returns the failed checks of the board's report, if there are any. In
// all other cases it returns one failure named after r.Kind, for NotBegun with o.Stopped as text.
func (o Outcome) failuresOf(r Result, boardReport report.Report) []report.Failure {
	switch {
	case r.Kind.Done():
		return nil
	case r.Kind == Checks && len(boardReport.Failures()) > 0:
		all := boardReport.Failures()
		for i := range all {
			all[i].Where = string(Checks) + " · " + all[i].Where
		}
		return all
	case r.Kind == NotBegun:
		r.Saw = o.Stopped
	}
	return []report.Failure{{Name: string(r.Kind), Saw: r.Saw, Next: o.nextOf(r.Kind)}}
}

// describeBoard returns one line with the address, and if known: canary, tries, system and version.
// That of a board that passed also has what it said.
func (r Result) describeBoard() string {
	words := []string{r.Address}
	if r.Canary {
		words = append(words, "canary")
	}
	if r.Tries > 1 {
		words = append(words, fmt.Sprintf("%d tries", r.Tries))
	}
	if r.System != "" {
		words = append(words, string(r.System)+" system")
	}
	if r.Version != "" {
		words = append(words, "version "+oneLine(r.Version))
	}
	if r.Kind.Done() && r.Saw != "" {
		words = append(words, r.Saw)
	}
	return strings.Join(words, ", ")
}

// took returns the time of the last attempt, or "" without an attempt.
func (r Result) took() string {
	if r.Tries == 0 {
		return ""
	}
	return seconds(r.ElapsedMS)
}

func seconds(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) }
