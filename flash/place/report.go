package place

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"slipway/layers/htmlstyle"
	"slipway/layers/plaintext"
)

//go:embed report.html.tmpl
var pageText string

var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"style": func() template.CSS { return htmlstyle.CSS }, "script": func() template.JS { return htmlstyle.TableScript }, "policy": htmlstyle.TablePolicy,
		"clock": func(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") },
		"colour": func(verdict string) string {
			return plaintext.Either(verdict == string(Pass), "passed", plaintext.Either(verdict == string(Known), "cached", "failed"))
		},
	}).Parse(pageText))
})

// Report is what a record says of one day, or of all days.
type Report struct {
	Day     string         `json:"day,omitempty"`
	Good    int            `json:"good"`
	Bad     int            `json:"bad"`
	Causes  map[string]int `json:"causes,omitempty"`
	Entries []Entry        `json:"entries"` // the newest first
	// Unfinished are the entries of cards that may be whole, because the run or the card failed as it was
	// completed. Each has its row until it comes again.
	Unfinished []Entry `json:"unfinished,omitempty"`
}

// ErrNoDay is of a text that is no day.
var ErrNoDay = errors.New("is no day")

// ReadReport reads the entries of a record that were begun on a day, such as 2026-11-29, in UTC; of
// all days if day is "".
func ReadReport(dir, day string) (r Report, err error) {
	if _, err := time.Parse(dayForm, day); day != "" && err != nil {
		return r, fmt.Errorf("%q %w, such as %s", day, ErrNoDay, time.Now().UTC().Format(dayForm))
	}
	if _, err := os.Stat(dir); err != nil {
		return r, fmt.Errorf("no record: %w\nnext: place BOARD place.yml  # it begins one", err)
	}
	r = Report{Day: day, Causes: map[string]int{}}
	t := Totals{Causes: r.Causes}
	err = eachEntry(dir, func(e Entry) {
		if day != "" && e.Began.Format(dayForm) != day {
			return
		}
		r.Entries = append(r.Entries, e)
		r.Unfinished = slices.DeleteFunc(r.Unfinished, func(old Entry) bool { return old.Stamp == e.Stamp }) // it came again
		if e.Taken && e.Verdict != string(Pass) {
			r.Unfinished = append(r.Unfinished, e)
		}
		t.add(e)
	})
	slices.Reverse(r.Entries)
	r.Good, r.Bad = t.Good, t.Bad
	return r, err
}

// Headline says how many were good and bad.
func (r Report) Headline() string {
	return fmt.Sprintf("%d good, %d bad", r.Good, r.Bad) + plaintext.Either(r.Day != "", " on "+r.Day, "")
}

// CausesText lists the causes of failures, the most frequent first.
func (r Report) CausesText() string { return causesText(Totals{Causes: r.Causes}) }

// Page returns the report as one HTML page, which needs no other file.
func (r Report) Page() ([]byte, error) {
	var b bytes.Buffer
	err := page().Execute(&b, r)
	return b.Bytes(), err
}

// Print writes the report as text.
func (r Report) Print(w io.Writer) error {
	fmt.Fprintln(w, r.Headline())
	if len(r.Causes) > 0 {
		fmt.Fprintln(w, r.CausesText())
	}
	for _, e := range r.Unfinished {
		fmt.Fprintf(w, "UNFINISHED %s at %s%s: it failed as it was completed, and may be whole; put it in again\n", e.Began.Local().Format("2006-01-02 15:04"), e.Label, plaintext.Either(e.Row != "", ", row "+e.Row, ""))
	}
	_, err := fmt.Fprintf(w, "%d entries; --json and --html=FILE have them all\n", len(r.Entries))
	return err
}
