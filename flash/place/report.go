package place

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// Totals are counts of cards, sticks and boards. One that comes again counts once, by its last
// result.
type Totals struct {
	Good    int            `json:"good"`
	Bad     int            `json:"bad"`
	Refused int            `json:"refused"`          // they were not written
	Causes  map[string]int `json:"causes,omitempty"` // of the bad and refused ones

	last    []Entry          // good ones
	counted map[string]Entry // by what tells cards apart
	ending  bool             // no new card is served
	left    string           // how many rows of a hub's table
}

// paceOver is how many of the last good cards the pace is of.
const paceOver = 20

// add counts an entry, in place of an earlier one of its card. One of a card that is known or not
// finished counts nothing, and neither does a refusal of a card that counts already.
func (t *Totals) add(e Entry) {
	if t.counted == nil {
		t.counted, t.Causes = map[string]Entry{}, map[string]int{}
	}
	key := cmp.Or(e.Stamp, cmp.Or(e.Serial, e.Port+e.Cause)+e.card().Medium)
	old, again := t.counted[key]
	switch state := State(e.Verdict); {
	case state != Pass && state != Fail && state != Refused, state == Refused && again:
		return
	case state == Pass:
		t.last = append(t.last[max(0, len(t.last)-paceOver):], e)
	}
	if again {
		t.count(old, -1)
	}
	t.count(e, 1)
	t.counted[key] = e
}

// count adds n to the counts of an entry's verdict and cause.
func (t *Totals) count(e Entry, n int) {
	switch State(e.Verdict) {
	case Pass:
		t.Good += n
		return
	case Refused:
		t.Refused += n
	default:
		t.Bad += n
	}
	if t.Causes[e.Cause] += n; t.Causes[e.Cause] == 0 {
		delete(t.Causes, e.Cause)
	}
}

// String says how many were good, bad and refused.
func (t Totals) String() string {
	return fmt.Sprintf("%d good, %d bad", t.Good, t.Bad) + plaintext.Either(t.Refused > 0, fmt.Sprintf(", %d refused", t.Refused), "")
}

// CausesText lists the causes, the most frequent first.
func (t Totals) CausesText() string {
	causes := slices.SortedFunc(maps.Keys(t.Causes), func(a, b string) int {
		return cmp.Or(t.Causes[b]-t.Causes[a], strings.Compare(a, b))
	})
	for i, c := range causes {
		causes[i] = fmt.Sprintf("%d × %s", t.Causes[c], c)
	}
	return plaintext.Printable(strings.Join(causes, ", "))
}

// Report is what a record says of one day, or of all days.
type Report struct {
	Day string `json:"day,omitempty"`
	Totals
	Entries []Entry `json:"entries"` // the newest first
	// Unfinished are the entries of cards that may be whole, because the run or the card failed as it
	// was completed. Each has its row until it comes again.
	Unfinished []Entry `json:"unfinished,omitempty"`
}

// ErrNoDay is of a text that is no day.
var ErrNoDay = errors.New("is no day")

// ReportOf returns the report of a day, or of all days if day is "", over the entries that each calls
// its argument with, the oldest first.
func ReportOf(day string, each func(func(Entry)) error) (r Report, err error) {
	if _, err := time.Parse(dayForm, day); day != "" && err != nil {
		return r, fmt.Errorf("%q %w, such as %s", day, ErrNoDay, time.Now().UTC().Format(dayForm))
	}
	r.Day = day
	err = each(func(e Entry) {
		if day != "" && e.Began.Format(dayForm) != day {
			return
		}
		r.Entries = append(r.Entries, e)
		r.Unfinished = slices.DeleteFunc(r.Unfinished, func(old Entry) bool { return old.Stamp == e.Stamp }) // it came again
		if e.Taken && e.Verdict != string(Pass) {
			r.Unfinished = append(r.Unfinished, e)
		}
		r.add(e)
	})
	slices.Reverse(r.Entries)
	return r, err
}

// ReadReport reads the entries of a record that were begun on a day, such as 2026-11-29, in UTC; of
// all days if day is "".
func ReadReport(dir, day string) (r Report, err error) {
	if info, err := os.Stat(dir); err != nil {
		return r, fmt.Errorf("no record: %w\nnext: place BOARD place.yml  # it begins one", err)
	} else if !info.IsDir() {
		return r, fmt.Errorf("%s is a file, and a record is a folder\nnext: place report %s", dir, plaintext.Quote(filepath.Dir(dir)))
	}
	return ReportOf(day, func(add func(Entry)) error { return eachEntry(dir, add) })
}

// Headline says how many were good, bad and refused, and when.
func (r Report) Headline() string {
	return r.String() + plaintext.Either(r.Day != "", " on "+r.Day, "")
}

// Page returns the report as one HTML page, which needs no other file.
func (r Report) Page() ([]byte, error) {
	var b bytes.Buffer
	err := page().Execute(&b, r)
	return b.Bytes(), err
}

// Print writes the report as text.
func (r Report) Print(w io.Writer) error {
	fmt.Fprint(w, r.Headline(), "\n", plaintext.Either(len(r.Causes) > 0, r.CausesText()+"\n", ""))
	for _, e := range r.Unfinished {
		fmt.Fprintf(w, "UNFINISHED %s at %s%s: it failed as it was completed, and may be whole; put it in again\n", e.Began.Local().Format("2006-01-02 15:04"), e.Label, plaintext.Either(e.Row != "", ", row "+e.Row, ""))
	}
	_, err := fmt.Fprintf(w, "%d entries; the CSV of each day, --json and --html=FILE have them all\n", len(r.Entries))
	return err
}
