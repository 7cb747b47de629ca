package bitbake

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("build").Parse(pageText))

// The limits of the page: a browser draws this much without thinking.
const (
	maxBars   = 4000
	maxLanes  = 64
	maxRows   = 15
	laneHigh  = 16
	chartWide = 1000
)

// renderPage renders the page as one file that needs no other. Texts of recipes and
// logs are never markup there.
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
	Chart    chart
	Recipes  []slowRow
	Slowest  []slowRow
	Shared   []sharedRow
}

type fact struct{ Name, Value string }

// slowRow is a task or a recipe with its duration. W is its bar in percent.
type slowRow struct {
	Name, Detail, Took string
	W                  float64
}

// sharedRow counts what shared state had for one kind of task.
type sharedRow struct {
	Task                 string
	Hits, Misses, Broken int
	W                    float64 // the hits in percent
}

// chart is the timeline: a lane for each task at a time, a bar for each task.
type chart struct {
	Wide, High int // High is that of the lanes
	Box        int // with the ticks above them
	Bars       []bar
	Ticks      []tick
	Cut        int // bars that were too short to be drawn
}

type bar struct {
	X, W    float64
	Y       int
	Kind    string
	Caption string
}

type tick struct {
	X    float64
	Text string
}

func newView(r Record) view {
	v := view{Record: r, Verdict: r.verdict(), Headline: r.headline(), Took: formatDuration(r.Took()), Facts: r.facts()}
	if r.DryRun || r.Parse { // no task ran, so none took time or came from shared state
		return v
	}
	v.Chart, v.Shared = r.layOutChart(), r.sharedRows()
	v.Slowest = slowestByName(r.Tasks, func(t Task) (string, string) { return t.Recipe + " " + t.Task, formatDuration(ms(t.StartMS)) + " in" })
	v.Recipes = slowestByName(r.Tasks, func(t Task) (string, string) { return t.Recipe, t.Version })
	return v
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// verdict returns how a run ended. A run that builds nothing is named as such.
func (r Record) verdict() string {
	ended := string(r.State)
	if r.State == Succeeded {
		ended = "ended"
	}
	switch {
	case r.DryRun:
		return "dry run " + ended
	case r.Parse:
		return "parse " + ended
	}
	return string(r.State)
}

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

func (r Record) facts() []fact {
	all := []fact{
		{"Board", r.Board},
		{"Targets", strings.Join(r.Targets, ", ")},
		{"Task", r.taskFact()},
		{"bitbake", r.Version},
		{"Distribution", strings.TrimSpace(r.Variables["DISTRO"] + " " + r.Variables["DISTRO_VERSION"])},
		{"Recipes", fmt.Sprintf("%d, read in %s", r.Parsed.Recipes, formatDuration(ms(r.Parsed.TookMS)))},
		{"At one time", fmt.Sprintf("%d tasks, %.1f on average", r.Workers, r.averageParallel())},
		{"Disk taken", formatSize(r.Disk.Used())},
		{"Disk free", formatSize(r.Disk.FreeBytesAfter)},
		{"Exit status", fmt.Sprint(r.Exit)},
		{"Log", r.Log},
	}
	for _, c := range r.Commits {
		edited := ""
		if c.Local != "" {
			edited = ", local folder " + c.Local
		}
		if c.Edited {
			edited += ", modified"
		}
		all = append(all, fact{c.Repo, c.Commit[:min(len(c.Commit), 12)] + edited})
	}
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

func (r Record) taskFact() string {
	switch {
	case r.DryRun:
		return r.Task + ": not run, this was a dry run"
	case r.Parse:
		return "none: the recipes were read"
	}
	return r.Task
}

// slowestByName sums the tasks by name. It returns the longest.
func slowestByName(tasks []Task, of func(Task) (name, detail string)) []slowRow {
	sums, details := map[string]int64{}, map[string]string{}
	for _, t := range tasks {
		name, detail := of(t)
		sums[name] += t.TookMS
		details[name] = detail
	}
	var all []slowRow
	names := namesByValue(sums)
	for _, name := range names[:min(len(names), maxRows)] {
		all = append(all, slowRow{name, details[name], formatDuration(ms(sums[name])), 100 * float64(sums[name]) / float64(max(sums[names[0]], 1))})
	}
	return all
}

// namesByValue returns the names, the largest values first.
func namesByValue(sums map[string]int64) []string {
	names := make([]string, 0, len(sums))
	for name := range sums {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(-cmp.Compare(sums[a], sums[b]), cmp.Compare(a, b))
	})
	return names
}

// sharedRows counts hits and misses for each kind of task.
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

// layOutChart lays the tasks into as few lanes as there were tasks at one time.
func (r Record) layOutChart() chart {
	var end int64 = 1
	for _, t := range r.Tasks {
		end = max(end, t.StartMS+t.TookMS)
	}
	scale := float64(chartWide) / float64(end)
	c := chart{Wide: chartWide}
	var free []int64 // when each lane is free again
	for i, lane := range assignLanes(r.Tasks, &free) {
		t := r.Tasks[i]
		b := bar{X: float64(t.StartMS) * scale, W: max(float64(t.TookMS)*scale, 0.8), Y: lane * laneHigh, Kind: t.barKind()}
		b.Caption = fmt.Sprintf("%s %s: %s, %s", t.Recipe, t.Task, formatDuration(ms(t.TookMS)), cmp.Or(t.Shared, t.Outcome))
		c.Bars = append(c.Bars, b)
	}
	if len(c.Bars) > maxBars {
		slices.SortStableFunc(c.Bars, func(a, b bar) int { return -cmp.Compare(a.W, b.W) })
		c.Cut = len(c.Bars) - maxBars
		c.Bars = c.Bars[:maxBars]
	}
	c.High = max(len(free), 1) * laneHigh
	c.Box = c.High + 16
	step := roundStep(end)
	for at := int64(0); at <= end; at += step {
		c.Ticks = append(c.Ticks, tick{float64(at) * scale, formatDuration(ms(at))})
	}
	return c
}

// assignLanes gives each task, in the order of their starts, a free lane.
func assignLanes(tasks []Task, free *[]int64) []int {
	at := make([]int, len(tasks))
	for i, t := range tasks {
		lane := slices.IndexFunc(*free, func(until int64) bool { return until <= t.StartMS })
		if lane < 0 && len(*free) < maxLanes {
			lane = len(*free)
			*free = append(*free, 0)
		}
		lane = max(lane, 0) // there are more at a time than lanes
		(*free)[lane] = t.StartMS + t.TookMS
		at[i] = lane
	}
	return at
}

// barKind returns the kind of a task, which is the colour of its bar.
func (t Task) barKind() string {
	switch {
	case t.Outcome != TaskSucceeded:
		return "failed"
	case t.Shared == Hit:
		return "hit"
	case strings.HasPrefix(t.Task, "do_fetch"), strings.HasPrefix(t.Task, "do_unpack"):
		return "fetch"
	case strings.HasPrefix(t.Task, "do_compile"), strings.HasPrefix(t.Task, "do_configure"), strings.HasPrefix(t.Task, "do_install"):
		return "compile"
	}
	return "rest"
}

// roundStep returns a round time between two ticks, so that there are few ticks.
func roundStep(end int64) int64 {
	for _, step := range []int64{100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000} {
		if end/step <= 8 {
			return step
		}
	}
	return end/8 + 1
}

// formatDuration returns a duration in the unit that suits its size.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}

// formatSize returns a size in MiB or GiB.
func formatSize(bytes int64) string {
	switch {
	case bytes <= 0:
		return "none"
	case bytes < 1<<30:
		return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
