package report

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/htmlstyle"
	"slipway/layers/plaintext"
)

//go:embed report*.tmpl
var pageTexts embed.FS

var pages = sync.OnceValue(func() *template.Template {
	own := template.FuncMap{
		"style": func() template.CSS { return htmlstyle.CSS }, "script": func() template.JS { return htmlstyle.TableScript }, "policy": htmlstyle.TablePolicy,
	}
	return template.Must(template.New("").Funcs(own).ParseFS(pageTexts, "*.tmpl"))
})

// HTML returns one HTML page without other files. Several reports become a table.
func HTML(all []Report) ([]byte, error) {
	if len(all) != 1 {
		return newOverview(all, nil).Render()
	}
	return page{}.render(all[0])
}

// page is what the page of one report shows besides the report itself.
type page struct {
	dir   string // its folder; "" for a page without files beside it
	files []file // that the page's writer writes too
}

// render returns the HTML page of a report.
func (p page) render(r Report) ([]byte, error) {
	var b bytes.Buffer
	err := pages().ExecuteTemplate(&b, "report.html.tmpl", p.newView(r))
	return b.Bytes(), err
}

// view is the data of the page's template.
type view struct {
	Board, Headline, Began, Took string
	Program                      string // that asked
	Verdict                      Status
	Host                         Host
	Facts                        []fact
	Failures                     []Failure
	Charts                       []chart
	Gauges                       []gauge
	Tables                       []shownTable
	Logs                         []shownLog
	Source                       file   // the commit of the image, with its page
	Files                        []file // with the same content, beside the page
}

// shownLog is a log with the link to its file.
type shownLog struct {
	Log
	Link string
}

type file struct{ Name, Link string }

type fact struct{ Name, Value string }

// Failure is a stage or a check that failed, as the top of the page shows it.
type Failure struct{ Where, Name, Saw, Want, Next string }

// chart is a table of the stages, or of the checks of a suite.
type chart struct {
	Name, Tally, Took string
	Rows              []row
}

// row is a stage or a check. Start is the time from the start of the run or the suite to its own.
type row struct {
	Status           Status
	Name, Saw, Proof string
	Start, Took      string
}

// signs show a status without colour.
var signs = map[Status]string{Passed: "✓", Failed: "✗", Skipped: "–", Cached: "="}

// Sign returns the sign of the row's status.
func (r row) Sign() string { return signs[r.Status] }

// newView returns the data for the page of a report.
func (p page) newView(r Report) view {
	v := view{
		Board: r.Board, Began: r.Started.UTC().Format("2 January 2006, 15:04:05 MST"), Took: formatMS(r.ElapsedMS),
		Verdict: Passed, Host: r.Host, Facts: r.Identity.Facts(),
	}
	if r.Failed() {
		v.Verdict = Failed
	}
	if s := r.Source; s != nil && s.Commit != "" {
		v.Source = file{s.Commit[:min(len(s.Commit), shownKey)] + plaintext.Either(s.Edited, " (built with edits)", ""), s.Page()}
	}
	if p := r.Slipway; p.Version != "" {
		p.Commit = p.Commit[:min(len(p.Commit), shownKey)]
		v.Program = "Slipway " + p.String()
	}
	v.Headline, v.Files, v.Logs, v.Failures = r.headline(), p.files, p.listLogs(r), r.Failures()
	for _, s := range r.sections() {
		v.Charts = append(v.Charts, s.newChart())
		for _, c := range s.Checks {
			for _, m := range c.Metrics {
				v.Gauges = append(v.Gauges, m.newGauge(c.Name))
			}
			if c.Table != nil {
				v.Tables = append(v.Tables, shownTable{c.Name, *c.Table})
			}
		}
	}
	return v
}

// listLogs returns the logs of a report with links to their files, if those are beside the page.
func (p page) listLogs(r Report) (all []shownLog) {
	for _, l := range r.Logs {
		shown := shownLog{Log: l}
		if p.dir != "" && l.File != "" {
			shown.Link = linkBeside(p.dir, l.File)
		}
		all = append(all, shown)
	}
	return all
}

// headline returns one line that explains the verdict.
func (r Report) headline() string {
	n := r.Counts()
	for _, s := range r.Stages {
		if s.Status == Failed && n.Checks[Failed] == 0 {
			return fmt.Sprintf("stage %s failed", s.Name)
		}
	}
	switch {
	case n.TotalChecks() == 0:
		return "no checks were run"
	case n.Checks[Failed] > 0:
		return fmt.Sprintf("%d of %d checks failed", n.Checks[Failed], n.TotalChecks())
	case n.Checks[Passed] == n.TotalChecks():
		return fmt.Sprintf("all %d checks passed", n.TotalChecks())
	}
	return fmt.Sprintf("%d of %d checks passed, %d skipped", n.Checks[Passed], n.TotalChecks(), n.Checks[Skipped])
}

// Failures returns the failed stages and checks, without stages that failed only by their checks.
func (r Report) Failures() []Failure {
	var all []Failure
	checksSay := r.Counts().Checks[Failed] > 0
	for _, p := range r.listPoints() {
		// A stage that failed for its checks has nothing to add to them.
		if p.Status == Failed && !(p.isStage() && checksSay && strings.HasSuffix(p.Saw, ErrFailed.Error())) {
			all = append(all, p.failure())
		}
	}
	return all
}

// shownKey is the number of digits of an image key or commit that the page shows.
const shownKey = 12

// Facts returns the known fields of a board's identity, with their names.
func (id Identity) Facts() []fact {
	all := []fact{
		{"Hostname", id.Hostname},
		{"Slot", id.Slot},
		{"System", id.OS},
		{"Kernel", id.Kernel},
		{"L4T", id.L4T},
		{"BlueField", id.BlueField},
		{"Firmware", id.Firmware},
		{"Model", id.Model},
		{"Serial", id.Serial},
		{"Image", strings.TrimSpace(id.Image + " " + id.ImageKey[:min(len(id.ImageKey), shownKey)])},
		{"Machine id", id.MachineID},
		{"Boot id", id.BootID},
	}
	if id.UptimeSec > 0 {
		all = append(all, fact{"Uptime", (time.Duration(id.UptimeSec) * time.Second).String()})
	}
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

// newChart returns the table of a suite's checks, with the start and the time of each.
func (s SuiteResult) newChart() chart {
	tally, _ := s.Tally()
	c := chart{Name: s.Name, Tally: tally, Took: formatMS(s.ElapsedMS)}
	for _, r := range s.Checks {
		shown := row{Status: r.Status, Name: r.Name, Saw: r.Saw, Proof: proofs[r.Proves], Start: "–", Took: "–"}
		if r.Status != Skipped || r.ElapsedMS != 0 {
			shown.Start, shown.Took = formatMS(r.StartMS), formatMS(r.ElapsedMS)
		}
		c.Rows = append(c.Rows, shown)
	}
	return c
}
