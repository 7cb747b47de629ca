package trends

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"sync"

	"slipway/ci/report"
	"slipway/layers/htmlstyle"
	"slipway/layers/plaintext"
)

//go:embed page.html.tmpl
var pageText string

var pageTemplate = sync.OnceValue(func() *template.Template {
	style := template.FuncMap{"style": func() template.CSS { return htmlstyle.CSS }}
	return template.Must(template.New("").Funcs(style).Parse(pageText))
})

// Limits of a page that a browser still shows. --json has all.
const (
	maxCards    = 60 // changes
	maxPlots    = 300
	maxUnsteady = 100
	maxNumbers  = 20_000 // rows of all tables
	maxStrip    = 60     // runs of a check
)

// Page returns the trends as one HTML page, without other files and scripts.
func (t Trends) Page() ([]byte, error) {
	var b bytes.Buffer
	err := pageTemplate().Execute(&b, t.newView())
	return b.Bytes(), err
}

// view is the data for the page's template.
type view struct {
	Title, Verdict, Headline, When string
	Status                         report.Status
	Cards                          []card
	Unsteady                       []unsteady
	Boards                         []boardView
	Notes                          []string
}

// card is the box of one change on the page.
type card struct {
	Kind, Title, Link, Began string
	Commits                  []part
	Status                   report.Status
	Plot                     *plot
}

type unsteady struct {
	Title, Words string
	Strip        []stripe
	Shown        int
}

// stripe is the bar of one run of an unsteady check, in hundredths of the width.
type stripe struct {
	X, W, Y float64
	Status  report.Status
}

type boardView struct {
	Name   string
	Series []seriesView
}

type seriesView struct {
	Title, Now, Was string
	Plot            plot
	Numbers         []number
	LeftOut         int
}

type number struct {
	Run, Value, Time string
	part             // the commit
}

// plot is a drawing of a series in a square of 100 by 100, which the page stretches.
type plot struct {
	Label             string
	Top, Middle, Base string // of the axis
	From, To          string
	Dots, Levels      template.HTMLAttr
	Marks             template.HTMLAttr
	Marked            bool
}

// newView returns the data of the page, with notes on what its limits leave out.
func (t Trends) newView() view {
	title := "Trends"
	if t.Branch != "" {
		title += " of " + t.Branch
	}
	v := view{Title: title, Verdict: "no regression", Headline: t.Headline(), When: day(t.From) + " to " + day(t.To), Status: report.Passed, Notes: slices.Clone(t.Notes)}
	if n := len(t.Regressions()); n > 0 {
		v.Verdict, v.Status = count(n, "regression"), report.Failed
	}
	for _, c := range t.Changes[:min(len(t.Changes), maxCards)] {
		v.Cards = append(v.Cards, c.card())
	}
	for _, c := range t.Checks[:min(len(t.Checks), maxUnsteady)] {
		v.Unsteady = append(v.Unsteady, c.view())
	}
	v.Boards = t.boardViews()
	for _, left := range []struct {
		n    int
		noun string
	}{{len(t.Changes) - maxCards, "change"}, {len(t.Checks) - maxUnsteady, "unsteady check"}, {len(t.Series) - maxPlots, "series"}} {
		if left.n > 0 {
			v.Notes = append(v.Notes, fmt.Sprintf("%d more %s in the output of --json", left.n, strings.TrimSuffix(left.noun, "s")+plaintext.Either(left.n == 1 && left.noun != "series", "", "s")))
		}
	}
	return v
}

// card returns the box of a change, with a drawing if the change is of a series.
func (c Change) card() card {
	k := card{Kind: c.Kind, Title: c.Title(), Commits: c.Range.parts(), Link: c.Range.Page, Began: c.Start(), Status: report.Skipped}
	switch c.Kind {
	case Regression:
		k.Status = report.Failed
	case Improvement:
		k.Status = report.Passed
	}
	if c.series != nil {
		p := c.series.plot()
		k.Plot = &p
	}
	return k
}

// view returns the words of an unsteady check, and its last maxStrip runs.
func (c Check) view() unsteady {
	last := c.Last[max(0, len(c.Last)-maxStrip):]
	u := unsteady{Title: c.Title(), Words: c.Words(), Shown: len(last)}
	w := 100 / float64(len(last))
	for i, bad := range last {
		s := stripe{float64(i) * w, 0.8 * w, 60, report.Passed}
		if bad {
			s.Y, s.Status = 0, report.Failed
		}
		u.Strip = append(u.Strip, s)
	}
	return u
}

// boardViews returns in all at most maxPlots series, preferring those that changed, by board. All
// tables together have at most maxNumbers rows.
func (t Trends) boardViews() (all []boardView) {
	shown := make([]*Series, len(t.Series))
	for i := range t.Series {
		shown[i] = &t.Series[i]
	}
	if len(shown) > maxPlots {
		slices.SortStableFunc(shown, func(a, b *Series) int { return min(len(b.Levels), 2) - min(len(a.Levels), 2) })
		shown = shown[:maxPlots]
		slices.SortStableFunc(shown, func(a, b *Series) int {
			return strings.Compare(label(a.Board, a.Device), label(b.Board, b.Device))
		})
	}
	rows := maxNumbers / max(1, len(shown))
	for _, s := range shown {
		name := label(s.Board, s.Device)
		if len(all) == 0 || all[len(all)-1].Name != name {
			all = append(all, boardView{Name: name})
		}
		b := &all[len(all)-1]
		b.Series = append(b.Series, s.view(rows))
	}
	return all
}

// view returns the drawing of a series, and a table of its last values, at most rows.
func (s *Series) view(rows int) seriesView {
	v := seriesView{Title: s.Title(), Now: format(s.now(), s.Unit), Plot: s.plot(), LeftOut: max(0, len(s.Points)-rows)}
	if n := len(s.Levels); n > 1 {
		v.Was = format(s.Levels[n-2].Median, s.Unit)
	}
	for _, p := range s.Points[v.LeftOut:] {
		v.Numbers = append(v.Numbers, number{p.Run, format(p.Value, s.Unit), day(p.Time), part{short(p.Commit), p.run.Source.Page()}})
	}
	return v
}

// plot draws the values as dots, a line for each level, and a mark at each regression.
func (s *Series) plot() plot {
	n := len(s.Points)
	least, most := s.Points[0].Value, s.Points[0].Value
	for _, p := range s.Points {
		least, most = min(least, p.Value), max(most, p.Value)
	}
	base, step := axis(least, most)
	x := func(i float64) float64 { return 1 + 98*(i+0.5)/float64(n) }
	y := func(v float64) float64 {
		if place := 100 - 100*((v/4-base/4)/(step/2)); place >= 0 && place <= 100 {
			return place
		}
		return 50 // of numbers too large to draw
	}
	var dots, levels, marks strings.Builder
	for i, p := range s.Points {
		fmt.Fprintf(&dots, "M%.1f %.1fh0", x(float64(i)), y(p.Value))
	}
	words := ""
	for i, l := range s.Levels {
		from, to := x(float64(l.First)-0.4), x(float64(l.First+l.Runs)-0.6)
		fmt.Fprintf(&levels, "M%.1f %.1fH%.1f", from, y(l.Median), to)
		words += ", then " + format(l.Median, s.Unit)
		if i > 0 {
			words += " from " + s.Points[l.First].Run
			if s.kindOf(i) == Regression {
				fmt.Fprintf(&marks, "M%.1f 0V100", from)
			}
		}
	}
	return plot{
		Label: fmt.Sprintf("%s: %s, %s", s.Title(), count(n, "value"), strings.TrimPrefix(words, ", then ")),
		Top:   format(base+2*step, s.Unit), Middle: format(base+step, s.Unit), Base: format(base, s.Unit),
		From: s.Points[0].Time.UTC().Format("2006-01-02"), To: s.Points[n-1].Time.UTC().Format("2006-01-02"),
		Dots: pathOf(dots.String()), Levels: pathOf(levels.String()), Marks: pathOf(marks.String()), Marked: marks.Len() > 0,
	}
}

// pathOf returns an SVG path's attribute d. Numbers and SVG commands need no escaping.
func pathOf(d string) template.HTMLAttr { return template.HTMLAttr(`d="` + d + `"`) }

// axis returns the base and the step of an axis with two round steps that includes both values.
func axis(least, most float64) (base, step float64) {
	span := most/2 - least/2
	switch {
	case least == most && most == 0:
		return 0, 1
	case least == most: // in the middle
		span = math.Abs(most) / 20
		return least - span, span
	}
	for exponent := math.Pow(10, math.Floor(math.Log10(span))); ; exponent *= 10 {
		if math.IsInf(exponent, 0) || exponent == 0 {
			return least, max(span, math.SmallestNonzeroFloat64)
		}
		for _, factor := range []float64{1, 2, 2.5, 5} {
			step = factor * exponent
			if base = step * math.Floor(least/step); base+2*step >= most {
				return base, step
			}
		}
	}
}
