package report

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"strings"
	"sync"
	"time"

	"slipway/layers/htmlstyle"
)

//go:embed report*.tmpl
var pageTexts embed.FS

var pages = sync.OnceValue(func() *template.Template {
	style := template.FuncMap{"style": func() template.CSS { return htmlstyle.CSS }}
	return template.Must(template.New("").Funcs(style).ParseFS(pageTexts, "*.tmpl"))
})

// renderHTML renders one page without other files. Several reports become a table.
func renderHTML(all []Report) ([]byte, error) {
	if len(all) != 1 {
		return renderOverview(all, nil)
	}
	return renderPage(all[0], nil)
}

// renderPage renders the page of one report, with lines through its metrics in earlier
// ones.
func renderPage(r Report, past []Report) ([]byte, error) {
	var b bytes.Buffer
	err := pages().ExecuteTemplate(&b, "report.html.tmpl", newView(r, past))
	return b.Bytes(), err
}

// view is the report as the page shows it.
type view struct {
	Board, Headline, Began, Took string
	Program                      string // that asked
	Verdict                      Status
	Host                         Host
	Facts                        []fact
	Failures                     []failure
	Charts                       []chart
	Gauges                       []gauge
	Logs                         []Log
}

type fact struct{ Name, Value string }

// failure is a stage or a check that failed, as the page's top shows it.
type failure struct{ Where, Name, Saw, Want, Next string }

// chart is a table whose rows have bars on one scale of time.
type chart struct {
	Name, Tally, Took string
	Rows              []row
	Ticks             []tick
}

// row is a stage or a check. X is the start of its bar, W its length, in hundredths of
// the scale.
type row struct {
	Status          Status
	Name, Kind, Saw string
	Took, Proof     string
	X, W            float64
	start, took     int64
}

// tick is a round time on the scale.
type tick struct {
	X    float64
	Text string
}

// signs tell the statuses apart where there is no colour.
var signs = map[Status]string{Passed: "✓", Failed: "✗", Skipped: "–", Cached: "="}

// Sign returns the sign before the row.
func (r row) Sign() string { return signs[r.Status] }

func newView(r Report, past []Report) view {
	v := view{
		Board: r.Board, Began: r.Started.UTC().Format("2 January 2006, 15:04:05 MST"), Took: formatMS(r.ElapsedMS),
		Verdict: Passed, Host: r.Host, Facts: r.Identity.Facts(), Failures: r.listFailures(), Logs: r.Logs,
	}
	if r.Failed() {
		v.Verdict = Failed
	}
	if p := r.Slipway; p.Version != "" {
		p.Commit = p.Commit[:min(len(p.Commit), shownKey)]
		v.Program = "Slipway " + p.String()
	}
	v.Headline, v.Gauges = r.headline(), r.metricGauges(past)
	if len(r.Stages) > 0 {
		v.Charts = append(v.Charts, r.stageChart())
	}
	for _, s := range r.Suites {
		v.Charts = append(v.Charts, s.checkChart())
	}
	return v
}

// headline returns the reason for the verdict in one line.
func (r Report) headline() string {
	n := r.Counts()
	for _, s := range r.Stages {
		if s.Status == Failed && n.Checks[Failed] == 0 {
			return fmt.Sprintf("stage %s failed", s.Name)
		}
	}
	switch {
	case n.Total() == 0:
		return "no checks were run"
	case n.Checks[Failed] > 0:
		return fmt.Sprintf("%d of %d checks failed", n.Checks[Failed], n.Total())
	case n.Checks[Passed] == n.Total():
		return fmt.Sprintf("all %d checks passed", n.Total())
	}
	return fmt.Sprintf("%d of %d checks passed, %d skipped", n.Checks[Passed], n.Total(), n.Checks[Skipped])
}

// listFailures returns what failed, in the order of the run.
func (r Report) listFailures() []failure {
	var all []failure
	checksSay := r.Counts().Checks[Failed] > 0
	for _, s := range r.Stages {
		// A stage that failed for its checks has nothing to add to them.
		if s.Status == Failed && !(checksSay && strings.HasSuffix(s.Saw, ErrFailed.Error())) {
			all = append(all, failure{"stage", s.Name, s.Saw, "", s.Next})
		}
	}
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			if c.Status == Failed {
				all = append(all, failure{s.Name + " · " + c.Kind, c.Name, c.Saw, c.Want, c.Next})
			}
		}
	}
	return all
}

// shownKey is the number of digits that tell an image's key from all others that a
// person sees.
const shownKey = 12

// Facts returns what the board said about itself, without what it left out.
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
	var known []fact
	for _, f := range all {
		if f.Value != "" {
			known = append(known, f)
		}
	}
	return known
}

// stageChart draws the stages end to end: each waits for the one before.
func (r Report) stageChart() chart {
	c := chart{Name: "stages", Tally: CountWords(r.Counts().Stages), Took: formatMS(r.ElapsedMS)}
	var at int64
	for _, s := range r.Stages {
		c.Rows = append(c.Rows, row{Status: s.Status, Name: s.Name, Saw: s.Saw, start: at, took: s.ElapsedMS})
		at += s.ElapsedMS
	}
	return c.withBars()
}

func (s SuiteResult) checkChart() chart {
	tally, _ := s.Tally()
	c := chart{Name: s.Name, Tally: tally, Took: formatMS(s.ElapsedMS)}
	for _, r := range s.Checks {
		c.Rows = append(c.Rows, row{Status: r.Status, Name: r.Name, Kind: r.Kind, Saw: r.Saw, Proof: proofs[r.Proves], start: r.StartMS, took: r.ElapsedMS})
	}
	return c.withBars()
}

// withBars sets the bars, then the ticks.
func (c chart) withBars() chart {
	end := int64(1)
	for _, r := range c.Rows {
		end = max(end, r.start+r.took)
	}
	scale := 100 / float64(end)
	for i := range c.Rows {
		r := &c.Rows[i]
		if r.Took = formatMS(r.took); r.Status == Skipped && r.took == 0 {
			r.Took = "–"
			continue
		}
		// What took no time is still seen, and what ends last does not stick out.
		r.W = max(float64(r.took)*scale, 0.6)
		r.X = min(float64(r.start)*scale, 100-r.W)
	}
	step := roundStep(end)
	for at := int64(0); at <= end; at += step {
		c.Ticks = append(c.Ticks, tick{float64(at) * scale, tickText(at, end)})
	}
	return c
}

// roundStep returns 1, 2 or 5 times a power of ten, so that there are few ticks.
func roundStep(end int64) int64 {
	for step := int64(1); ; step *= 10 {
		for _, factor := range []int64{1, 2, 5} {
			if end/(step*factor) <= 4 {
				return step * factor
			}
		}
	}
}

func tickText(ms, end int64) string {
	switch {
	case ms == 0:
		return "0"
	case end < 1000:
		return fmt.Sprintf("%d ms", ms)
	}
	return fmt.Sprintf("%g s", float64(ms)/1000)
}
