package bitbake

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/layers/htmlstyle"

	"slipway/layers/plaintext"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("build").Funcs(template.FuncMap{
	"style": func() template.CSS { return htmlstyle.CSS },
}).Parse(pageText))

// The most rows of a table.
const (
	maxRows      = 15
	maxChainRows = 25
)

// renderPage returns the build's page as one HTML file, with texts of recipes and logs escaped.
func (r Record) renderPage() ([]byte, error) {
	var b bytes.Buffer
	err := page.Execute(&b, newView(r))
	return b.Bytes(), err
}

// view is a record as the page shows it.
type view struct {
	Record
	Verdict  string
	Headline string
	Took     string
	Facts    []fact
	Failed   []failureView
	Chart    chart
	Chain    chainView
	Recipes  []slowRow
	Slowest  []slowRow
	Shared   []sharedRow
}

// failureView is a failed task with the link to its log, "" without one.
type failureView struct {
	Failure
	Link string
}

// chainView is the critical path.
type chainView struct {
	Tasks      int
	Took, Span string // what its tasks took, from the start of the first to the end of the last
	Rows       []slowRow
	Short      int // tasks that are left out
	ShortTook  string
}

// fact is a name with its value, and a link, "" without one.
type fact struct{ Name, Value, Link string }

// slowRow is a task or recipe with its duration, its bar's width W in percent, and its log's link.
type slowRow struct {
	Name, Detail, Took string
	W                  float64
	Log                string
}

// sharedRow counts the hits and misses in shared state for one kind of task.
type sharedRow struct {
	Task                 string
	Hits, Misses, Broken int
	W                    float64 // the hits in percent
}

// newView returns what the page shows of a record. A dry run or a parse has no chart and no tables.
func newView(r Record) view {
	v := view{Record: r, Verdict: r.verdict(), Headline: r.headline(), Took: formatDuration(r.Took()), Facts: r.facts()}
	for _, f := range r.Failures {
		v.Failed = append(v.Failed, failureView{f, r.logLink(f.Log)})
	}
	if r.DryRun || r.Parse { // no task ran, so none took time or came from shared state
		return v
	}
	v.Chart, v.Shared, v.Chain = r.layOutChart(), r.sharedRows(), r.chainView()
	v.Recipes, v.Slowest = slowestRecipes(r.Tasks), r.slowestTasks()
	return v
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// verdict returns how the run ended, and whether it was a dry run or only a parse.
func (r Record) verdict() string {
	ended := plaintext.Either(r.State == Succeeded, "ended", string(r.State))
	switch {
	case r.DryRun:
		return "dry run " + ended
	case r.Parse:
		return "parse " + ended
	}
	return string(r.State)
}

// headline returns the page's first line: failed tasks, the first error, or task or recipe counts.
func (r Record) headline() string {
	switch {
	case r.State == Failed && len(r.Failures) > 0:
		return r.failedTasks()
	case r.State == Failed && len(r.Errors) > 0:
		return r.Errors[0]
	case r.Counts.Total == 0:
		return fmt.Sprintf("%d recipes read", r.Parsed.Recipes)
	}
	return fmt.Sprintf("%d tasks: %s", r.Counts.Total, r.queueSummary("tasks"))
}

// facts returns the rows of the page's table of facts, without those that have no value.
func (r Record) facts() []fact {
	all := []fact{
		{"Board", r.Board, ""},
		{"Targets", strings.Join(r.Targets, ", "), ""},
		{"Task", r.taskFact(), ""},
		{"bitbake", r.Version, ""},
		{"Distribution", strings.TrimSpace(r.Variables["DISTRO"] + " " + r.Variables["DISTRO_VERSION"]), ""},
		{"Recipes", fmt.Sprintf("%d, read in %s", r.Parsed.Recipes, formatDuration(ms(r.Parsed.TookMS))), ""},
		{"At one time", fmt.Sprintf("%d tasks, %.1f on average", r.Workers, r.averageParallel()), ""},
		{"Processors", r.Load.fact(), ""},
		{"Exit status", fmt.Sprint(r.Exit), ""},
		{"Log", r.Log, r.logLink(r.Log)},
	}
	if r.Disk.FreeBytesAfter > 0 { // it was measured
		all = append(all, fact{"Disk taken", formatSize(r.Disk.Used()), ""}, fact{"Disk free", formatSize(r.Disk.FreeBytesAfter), ""})
	}
	for _, c := range r.Commits {
		edited := ""
		if c.Local != "" {
			edited = ", local folder " + c.Local
		}
		if c.Edited {
			edited += ", modified"
		}
		all = append(all, fact{c.Repo, c.Commit[:min(len(c.Commit), 12)] + edited, ""})
	}
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

// taskFact returns the name of the task that ran, or what a dry run or a parse did instead.
func (r Record) taskFact() string {
	switch {
	case r.DryRun:
		return r.Task + ": not run, this was a dry run"
	case r.Parse:
		return "none: the recipes were read"
	}
	return r.Task
}

// slowestRecipes returns the recipes, at most maxRows, whose tasks together took longest.
func slowestRecipes(tasks []Task) []slowRow {
	sums, versions := map[string]int64{}, map[string]string{}
	for _, t := range tasks {
		sums[t.Recipe] += t.TookMS
		versions[t.Recipe] = t.Version
	}
	var all []slowRow
	names := namesByValue(sums)
	for _, name := range names[:min(len(names), maxRows)] {
		all = append(all, slowRow{Name: name, Detail: versions[name], Took: formatDuration(ms(sums[name])), W: share(sums[name], sums[names[0]])})
	}
	return all
}

// slowestTasks returns the tasks, at most maxRows, that took longest.
func (r Record) slowestTasks() []slowRow {
	tasks := slowestFirst(r.Tasks)
	return r.taskRows(tasks[:min(len(tasks), maxRows)])
}

func slowestFirst(tasks []Task) []Task {
	return slices.SortedStableFunc(slices.Values(tasks), func(a, b Task) int { return cmp.Compare(b.TookMS, a.TookMS) })
}

// taskRows returns the rows of a table of tasks.
func (r Record) taskRows(tasks []Task) []slowRow {
	var all []slowRow
	var most int64
	for _, t := range tasks {
		most = max(most, t.TookMS)
	}
	for _, t := range tasks {
		detail := "began at " + formatDuration(ms(t.StartMS))
		if t.Config != "" {
			detail += ", " + t.Config
		}
		all = append(all, slowRow{t.Recipe + " " + t.Task, detail, formatDuration(ms(t.TookMS)), share(t.TookMS, most), r.logLink(t.Log)})
	}
	return all
}

// share returns part of whole in percent.
func share(part, whole int64) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

// chainView returns the critical path: its maxChainRows longest tasks, in order, and how many more.
func (r Record) chainView() chainView {
	chain := r.criticalChain()
	if len(chain) == 0 {
		return chainView{}
	}
	least, short := int64(0), int64(0)
	if len(chain) > maxChainRows {
		least = slowestFirst(chain)[maxChainRows-1].TookMS
	}
	var shown []Task
	var took int64
	for _, t := range chain {
		took += t.TookMS
		if t.TookMS >= least && len(shown) < maxChainRows {
			shown = append(shown, t)
		} else {
			short += t.TookMS
		}
	}
	span := chain[len(chain)-1].endMS() - chain[0].StartMS
	return chainView{
		Tasks: len(chain), Took: formatDuration(ms(took)), Span: formatDuration(ms(span)),
		Rows: r.taskRows(shown), Short: len(chain) - len(shown), ShortTook: formatDuration(ms(short)),
	}
}

// logLink returns the page's relative link to a log below its folder, "" for any other path.
func (r Record) logLink(log string) string {
	rel, err := filepath.Rel(filepath.Dir(r.Log), log)
	if r.Log == "" || log == "" || err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return "./" + (&url.URL{Path: rel}).EscapedPath() // a name may have a colon
}

// namesByValue returns the names, the largest values first.
func namesByValue(sums map[string]int64) []string {
	return slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(-cmp.Compare(sums[a], sums[b]), cmp.Compare(a, b))
	})
}

// sharedRows counts hits, misses and failed unpackings for the maxRows most frequent task names.
func (r Record) sharedRows() []sharedRow {
	rows := map[string]*sharedRow{}
	sums := map[string]int64{}
	for _, t := range r.Tasks {
		if t.Shared == "" {
			continue
		}
		if rows[t.Task] == nil {
			rows[t.Task] = &sharedRow{Task: t.Task}
		}
		sums[t.Task]++
		switch t.Shared {
		case Hit:
			rows[t.Task].Hits++
		case Broken:
			rows[t.Task].Broken++
		default:
			rows[t.Task].Misses++
		}
	}
	var all []sharedRow
	names := namesByValue(sums)
	for _, name := range names[:min(len(names), maxRows)] {
		row := *rows[name]
		row.W = 100 * float64(row.Hits) / float64(sums[name])
		all = append(all, row)
	}
	return all
}

// formatDuration returns a duration such as "350ms", "12.4s", "5m3s" or "1h30m".
func formatDuration(d time.Duration) string {
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// formatSize returns a size in GiB.
func formatSize(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
