package fleet

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci"
	"slipway/ci/report"
)

// Outcome is the result of a run over many boards.
type Outcome struct {
	Board     string    `json:"board"`
	Work      string    `json:"work"` // describes the work on each board
	Did       Work      `json:"did"`
	Inventory string    `json:"inventory"`
	Started   time.Time `json:"started"`
	ElapsedMS int64     `json:"elapsedMs"`
	Stopped   string    `json:"stopped,omitempty"` // why boards were not begun
	Results   []Result  `json:"results"`
}

// Result is the result of one board.
type Result struct {
	Host      string `json:"host"`
	Address   string `json:"address"`
	Port      int    `json:"port,omitempty"` // 0 where the inventory names none
	Kind      Kind   `json:"kind"`
	Saw       string `json:"saw,omitempty"`
	ElapsedMS int64  `json:"elapsedMs"`
	Passed    int    `json:"passed"` // of its checks
	Checks    int    `json:"checks"`
	Canary    bool   `json:"canary,omitempty"`
	Tries     int    `json:"tries"`

	// Of an update: what runs now, and how much of the bundle went to the board.
	System    ci.System `json:"system,omitempty"`
	Version   string    `json:"version,omitempty"`
	SentBytes int64     `json:"sentBytes,omitempty"`

	Report string `json:"report,omitempty"` // relative to the outcome
}

// The files of an outcome.
const (
	outcomeName = "fleet.json"
	junitName   = "junit.xml"
	pageName    = "index.html"
)

func (o Outcome) write(dir string) error {
	data, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		return err
	}
	return writeFile(dir, outcomeName, append(data, '\n'))
}

// kindCounts are the numbers of boards by kind.
type kindCounts map[Kind]int

func (o Outcome) countKinds() kindCounts {
	n := kindCounts{}
	for _, r := range o.Results {
		n[r.Kind]++
	}
	return n
}

// doneCount is the number of boards that have what the run deploys.
func (n kindCounts) doneCount() int { return n[Passed] + n[Already] }

// String returns "475 passed, 3 disk full, ...".
func (n kindCounts) String() string {
	var words []string
	for _, k := range slices.Backward(kinds) {
		if n[k.kind] > 0 {
			words = append(words, fmt.Sprintf("%d %s", n[k.kind], k.kind))
		}
	}
	return strings.Join(words, ", ")
}

// worstKind returns the most urgent kind of the results.
func (o Outcome) worstKind() Kind {
	n := o.countKinds()
	for _, k := range kinds {
		if n[k.kind] > 0 {
			return k.kind
		}
	}
	return Passed
}

// asError returns an error that says how many boards did not pass. A board that failed its
// checks decides the exit status if there is one, as it may be worse off than before.
func (o Outcome) asError(ctx context.Context) error {
	n := o.countKinds()
	if n.doneCount() == len(o.Results) {
		return nil
	}
	err := fmt.Errorf("fleet %s: %d of %d boards did not pass: %s\nnext: correct what is said above, then repeat the line with --failed", o.Board, len(o.Results)-n.doneCount(), len(o.Results), n)
	for _, worst := range []error{report.ErrFailed, report.ErrWrong, report.ErrUnreachable} {
		for _, k := range kinds {
			if n[k.kind] > 0 && k.err == worst {
				return report.Because(ctx, worst, err)
			}
		}
	}
	return err
}

// WriteSummary lists the boards that did not pass, by kind.
func (o Outcome) WriteSummary(w io.Writer, dir string) error {
	n := o.countKinds()
	for _, k := range kinds {
		if n[k.kind] == 0 || k.kind.isDone() || k.kind == NotBegun {
			continue
		}
		fmt.Fprintf(w, "FAILED  %s: %d\n", k.kind, n[k.kind])
		o.writeHosts(w, k.kind)
		fmt.Fprintf(w, "  next  %s\n", k.next)
	}
	verdict := "PASSED"
	if n.doneCount() < len(o.Results) {
		verdict = "FAILED"
	}
	fmt.Fprintf(w, "%s  %s on %d boards in %.1f s: %s\n", verdict, o.Board, len(o.Results), float64(o.ElapsedMS)/1000, n)
	if o.Stopped != "" {
		fmt.Fprintf(w, "  stopped: %s; --failed goes on with the others\n", oneLine(o.Stopped))
	}
	_, err := fmt.Fprintf(w, "report: %s (and %s, %s)\n", filepath.Join(dir, pageName), outcomeName, junitName)
	return err
}

const shownHosts = 10 // of one kind; the HTML page has all of them

func (o Outcome) writeHosts(w io.Writer, kind Kind) {
	shown := 0
	for _, r := range o.Results {
		if r.Kind != kind {
			continue
		}
		if shown++; shown > shownHosts {
			fmt.Fprintf(w, "  and %d more\n", o.countKinds()[kind]-shownHosts)
			return
		}
		fmt.Fprintf(w, "  %s  %s\n", oneLine(r.Host), r.Saw)
	}
}

//go:embed fleet.html.tmpl
var pageText string

var page = template.Must(template.New("fleet").Funcs(template.FuncMap{
	"seconds": func(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) },
}).Parse(pageText))

// writePages writes the HTML page for people and the JUnit file for CI systems.
func (o Outcome) writePages(dir string) error {
	var html bytes.Buffer
	if err := page.Execute(&html, map[string]any{"Outcome": o, "Counts": o.countKinds().String()}); err != nil {
		return err
	}
	junit, err := o.renderJUnit()
	return errors.Join(err, writeFile(dir, pageName, html.Bytes()), writeFile(dir, junitName, junit))
}

// renderJUnit writes a case for each board. The boards' own reports have one for each
// check.
func (o Outcome) renderJUnit() ([]byte, error) {
	var all []report.CheckResult
	for _, r := range o.Results {
		c := report.CheckResult{Name: r.Host, Kind: string(r.Kind), Status: report.Failed, Saw: r.Saw, Next: kinds[r.Kind.rank()].next, ElapsedMS: r.ElapsedMS}
		switch r.Kind {
		case Passed, Already:
			c.Status = report.Passed
		case NotBegun:
			c.Status, c.Saw = report.Skipped, string(NotBegun)
		}
		all = append(all, c)
	}
	return report.JUnit(o.Board, "fleet", o.Started, o.ElapsedMS, all)
}
