package bitbake

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The drawings stretch to the screen. Their texts are in HTML beside them: a phone can show these.
const (
	maxBars   = 4000
	maxLanes  = 64
	maxNames  = 500
	laneHigh  = 16
	chartWide = 1000
	graphHigh = 100
	columns   = 500 // of a graph
)

// chart is the drawings of a build, which have one axis of time.
type chart struct {
	High    int // of the lanes, in pixels
	Bars    []bar
	Names   []barName
	Ticks   []tick
	Cut     int // bars that were too short to be drawn
	Running *graph
	Load    *loadGraph
}

type bar struct {
	X, W    float64
	Y       int
	Kind    string
	Caption string
	Log     string

	critical bool
}

// barName is the text on a bar that is wide enough for it. Positions are in percent.
type barName struct {
	X, W  float64
	Y     int
	Text  string
	Short bool // a phone has no room for it
}

// tick is a mark of the axis, in percent of its width.
type tick struct {
	X     float64
	Text  string
	Minor bool // left out on a phone
	Last  bool // its text is left of it
}

// graph is a drawing of areas over time. Their SVG paths are in a box of chartWide and graphHigh.
type graph struct {
	Top   string // the value at the upper edge
	Mean  string
	Areas []area
}

type area struct {
	Kind string
	Path string
}

type loadGraph struct {
	graph
	Waits bool // the kernel reports how long processes waited
	Step  string
}

// layOutChart returns the drawings of a build's page: a bar for each task, at most maxBars, in
// as few lanes as tasks ran at one time, the number of running tasks, and the processors' load.
func (r Record) layOutChart() chart {
	end := r.chartEnd()
	scale := chartWide / float64(end)
	c := chart{Ticks: axisTicks(end), Running: r.runningGraph(end), Load: r.loadGraph(end)}
	var free []int64 // when each lane is free again
	for i, lane := range assignLanes(r.Tasks, &free) {
		t := r.Tasks[i]
		b := bar{X: float64(t.StartMS) * scale, W: max(float64(t.TookMS)*scale, 1), Y: lane * laneHigh, Kind: t.barKind(), Log: r.logLink(t.Log)}
		b.Caption = fmt.Sprintf("%s %s: %s, %s", t.Recipe, t.Task, formatDuration(ms(t.TookMS)), cmp.Or(t.Shared, t.Outcome))
		if t.Critical {
			b.critical = true
			b.Kind += " critical"
			b.Caption += ", on the critical path"
		}
		c.Bars = append(c.Bars, b)
		if w := b.W * 100 / chartWide; w >= 6 && len(c.Names) < maxNames {
			c.Names = append(c.Names, barName{b.X * 100 / chartWide, w, b.Y, t.Recipe + " " + strings.TrimPrefix(t.Task, "do_"), w < 20})
		}
	}
	c.Bars, c.Cut = cutBars(c.Bars)
	c.High = max(len(free), 1) * laneHigh
	return c
}

// cutBars keeps at most maxBars bars, those of the critical path and the longest, and counts the
// others. It reorders all: the critical path comes last, so that it is drawn above the others.
func cutBars(all []bar) (kept []bar, cut int) {
	slices.SortStableFunc(all, func(a, b bar) int {
		switch {
		case a.critical == b.critical:
			return cmp.Compare(b.W, a.W)
		case a.critical:
			return -1
		}
		return 1
	})
	kept = all[:min(len(all), maxBars)]
	slices.Reverse(kept)
	return kept, len(all) - len(kept)
}

// chartEnd returns how long the build and its tasks ran, in milliseconds, at least 1.
func (r Record) chartEnd() int64 {
	end := max(r.Took().Milliseconds(), 1)
	for _, t := range r.Tasks {
		end = max(end, t.endMS())
	}
	return end
}

// assignLanes returns the lane of each task. Tasks must be sorted by their starts. It writes to
// free when each lane becomes free; tasks beyond maxLanes share the first lane.
func assignLanes(tasks []Task, free *[]int64) []int {
	at := make([]int, len(tasks))
	for i, t := range tasks {
		lane := slices.IndexFunc(*free, func(until int64) bool { return until <= t.StartMS })
		if lane < 0 && len(*free) < maxLanes {
			lane = len(*free)
			*free = append(*free, 0)
		}
		lane = max(lane, 0) // there are more at a time than lanes
		(*free)[lane] = t.endMS()
		at[i] = lane
	}
	return at
}

// barKinds are the kinds of tasks by how their names begin. Isar's dpkg_build compiles.
var barKinds = []struct{ prefix, kind string }{
	{"do_fetch", "fetch"},
	{"do_unpack", "fetch"},
	{"do_configure", "compile"},
	{"do_compile", "compile"},
	{"do_install", "compile"},
	{"do_dpkg_build", "compile"},
	{"do_bootstrap", "image"},
	{"do_rootfs", "image"},
	{"do_image", "image"},
}

// barKind returns a bar's kind, for its colour: failed (or stopped), hit, a kind of work, or rest.
func (t Task) barKind() string {
	switch {
	case t.Outcome != TaskSucceeded:
		return "failed"
	case t.Shared == Hit:
		return "hit"
	}
	for _, k := range barKinds {
		if strings.HasPrefix(t.Task, k.prefix) {
			return k.kind
		}
	}
	return "rest"
}

// axisTicks returns the marks of the time axis. Every second one is Minor: for wide screens only.
func axisTicks(end int64) []tick {
	var all []tick
	step := roundStep(end)
	for at := int64(0); at <= end; at += step {
		all = append(all, tick{100 * float64(at) / float64(end), formatDuration(ms(at)), at/step%2 == 1, float64(at) > 0.9*float64(end)})
	}
	return all
}

// roundStep returns a round number of milliseconds between marks of the axis, for about 8 marks.
func roundStep(end int64) int64 {
	for _, step := range []int64{100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000} {
		if end/step <= 8 {
			return step
		}
	}
	return (end/8/3_600_000 + 1) * 3_600_000
}

// runningGraph returns the graph of how many tasks ran at a time, as the mean of each column.
func (r Record) runningGraph(end int64) *graph {
	sums := make([]float64, columns)
	wide := float64(end) / columns
	for _, t := range r.Tasks {
		from, to := float64(t.StartMS)/wide, float64(t.endMS())/wide
		for i := int(from); i < columns && float64(i) < to; i++ {
			sums[i] += min(to, float64(i+1)) - max(from, float64(i))
		}
	}
	most := max(slices.Max(sums), float64(r.Workers), 1)
	return &graph{
		Top: fmt.Sprintf("%d tasks", int(most+0.999)), Mean: fmt.Sprintf("%.1f on average", r.averageParallel()),
		Areas: []area{{"rest", areaPath(sums, chartWide/float64(columns), 0, float64(int(most+0.999)))}},
	}
}

// loadGraph returns the graph of the processors' load, nil if the record has no load.
func (r Record) loadGraph(end int64) *loadGraph {
	l := r.Load
	if l == nil || l.EveryMS <= 0 || len(l.Busy) == 0 || len(l.Disk) != len(l.Busy) {
		return nil
	}
	scale := chartWide / float64(end)
	wide, left := float64(l.EveryMS)*scale, float64(l.StartMS)*scale
	busy, both := make([]float64, len(l.Busy)), make([]float64, len(l.Busy))
	for i, b := range l.Busy {
		busy[i], both[i] = float64(b), float64(b+l.Disk[i])
	}
	g := &loadGraph{Step: formatDuration(ms(l.EveryMS)), Waits: len(l.Waits) == len(l.Busy)}
	g.Top, g.Mean = "100 %", fmt.Sprintf("%d %% busy on average", l.meanBusy())
	g.Areas = []area{{"fetch", areaPath(both, wide, left, 100)}, {"compile", areaPath(busy, wide, left, 100)}}
	if g.Waits {
		waits := make([]float64, len(l.Waits))
		for i, w := range l.Waits {
			waits[i] = float64(w)
		}
		g.Areas = append(g.Areas, area{"waits", linePath(waits, wide, left, 100)})
	}
	return g
}

// areaPath returns the SVG path of the area below a line of steps. Each step is wide, the first
// begins at left, and top is the value at the upper edge.
func areaPath(values []float64, wide, left, top float64) string {
	return fmt.Sprintf("M%.1f,%dV%sV%dZ", left, graphHigh, stepsPath(values, wide, left, top), graphHigh)
}

// linePath returns the SVG path of a line of steps, with the arguments of areaPath.
func linePath(values []float64, wide, left, top float64) string {
	return fmt.Sprintf("M%.1f,%s", left, stepsPath(values, wide, left, top))
}

// stepsPath draws steps of equal width (wide) from left as an SVG path, which begins with the
// height of the first. The value top has full height. Equal neighbours become one line.
func stepsPath(values []float64, wide, left, top float64) string {
	var b strings.Builder
	was := ""
	for i, v := range values {
		y := fmt.Sprintf("%.1f", graphHigh*(1-min(max(v/top, 0), 1)))
		switch {
		case i == 0:
			b.WriteString(y)
		case y != was:
			fmt.Fprintf(&b, "H%.1fV%s", left+float64(i)*wide, y)
		}
		was = y
	}
	fmt.Fprintf(&b, "H%.1f", left+float64(len(values))*wide)
	return b.String()
}
