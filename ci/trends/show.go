package trends

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// Write writes changes, unsteady checks, a table with a row for each series, notes and headline.
func (t Trends) Write(w io.Writer) error {
	for _, c := range t.Changes {
		word := fmt.Sprintf("%-11s", c.Kind)
		if c.Kind == Regression {
			word = plaintext.Bad.On(w, word)
		}
		fmt.Fprintf(w, "%s  %s\n  commits    %s\n", word, c.Title(), strings.TrimSpace(c.Range.String()+"  "+c.Range.Page))
		fmt.Fprintf(w, "  began      %s\n", c.Start())
	}
	for _, c := range t.Checks {
		fmt.Fprintf(w, "unsteady     %s: %s\n", c.Title(), c.Words())
	}
	if len(t.Changes)+len(t.Checks) > 0 {
		fmt.Fprintln(w)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "BOARD\tWHAT\tNOW\tBEFORE\tSINCE\tRUNS")
	for _, s := range t.Series {
		was, since := "", ""
		if n := len(s.Levels); n > 1 {
			was, since = format(s.Levels[n-2].Median, s.Unit), s.Points[s.Levels[n-1].First].Run
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\n", label(s.Board, s.Device), s.Title(), format(s.now(), s.Unit), was, since, len(s.Points))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, note := range t.Notes {
		fmt.Fprintln(w, "note:", note)
	}
	_, err := fmt.Fprintln(w, t.Headline())
	return err
}

// Headline returns a line like "120 runs of 3 boards on main: 2 regressions, 1 unsteady check".
func (t Trends) Headline() string {
	n := map[string]int{}
	for _, c := range t.Changes {
		n[c.Kind]++
	}
	text := fmt.Sprintf("%s of %s", count(t.Runs, "run"), report.Boards(len(t.Boards)))
	if t.Branch != "" {
		text += " on " + t.Branch
	}
	all := []string{plaintext.Either(n[Regression] == 0, "no regression"+plaintext.Either(t.Runs < leastPoints, fmt.Sprintf(" (figures need %d runs)", leastPoints), ""), count(n[Regression], "regression"))}
	for _, kind := range []string{Changed, Improvement} {
		if n[kind] > 0 {
			all = append(all, count(n[kind], kind))
		}
	}
	if n[Recovered] > 0 {
		all = append(all, fmt.Sprintf("%d recovered", n[Recovered]))
	}
	if len(t.Checks) > 0 {
		all = append(all, count(len(t.Checks), "unsteady check"))
	}
	return text + ": " + strings.Join(all, ", ")
}

// Title returns the name of a series for a person: "temperature (base: sensors)".
func (s Series) Title() string { return titled(s.Name, s.Of) }

// titled returns "name (of)", or name alone if of is empty.
func titled(name, of string) string {
	if of == "" {
		return name
	}
	return name + " (" + of + ")"
}

// label returns the name of a board with its device.
func label(board, device string) string {
	if device == "" {
		return board
	}
	return board + " " + device
}

// now returns the level that a series has now.
func (s Series) now() float64 { return s.Levels[len(s.Levels)-1].Median }

// Title returns a line like "build time of orin: 61 s → 75 s (+23 %)".
func (c Change) Title() string {
	return titled(c.Name, c.Of) + " of " + label(c.Board, c.Device) + ": " + c.Words()
}

// Words returns a series' values ("61 s → 75 s (+23 %)"), or how often a check failed at the end.
func (c Change) Words() string {
	if c.Check {
		return fmt.Sprintf("always passed, failed in the last %s", count(c.Runs, "run"))
	}
	text := format(c.From, c.Unit) + " → " + format(c.To, c.Unit)
	if c.Percent != nil {
		text += fmt.Sprintf(" (%+.4g %%)", *c.Percent)
	}
	return text
}

// Start describes the first run of the change, its time, and how many there are since.
func (c Change) Start() string {
	return fmt.Sprintf("%s, %s, the first of %s", c.Began, day(c.Time), count(c.Runs, "run"))
}

// Title returns the names of the check, its suite and its board.
func (c Check) Title() string { return titled(c.Name, c.Of) + " of " + label(c.Board, c.Device) }

// Words returns how often the check failed and flipped, also on one image and in the last runs.
func (c Check) Words() string {
	text := fmt.Sprintf("failed %d of %s, %s", c.Failed, count(c.Runs, "run"), count(c.Flips, "flip"))
	if c.Mixed > 0 {
		text += fmt.Sprintf(", passed and failed on %s", plaintext.Either(c.Mixed == 1, "the same image", fmt.Sprintf("%d images", c.Mixed)))
	}
	if red := c.failuresAtEnd(); red > 1 {
		text += fmt.Sprintf(", failed in the last %d", red)
	}
	return text
}

// format returns a number with at most four significant digits, and its unit.
func format(v float64, unit string) string {
	if rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64); err == nil && math.Abs(v) < 1e15 {
		v = rounded
	}
	return report.FormatNumber(v, unit)
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
