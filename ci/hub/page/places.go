package page

import (
	"cmp"
	"slices"
	"strings"

	"slipway/ci/job"
	"slipway/flash/place"
	"slipway/layers/plaintext"
)

// shownPlace is a flashing place, as a worker sees it from three metres.
type shownPlace struct {
	*board
	Totals string
	Now    string // what the worker must know: it does not run, or is cut off
	Ports  []shownPort
}

// shownPort is a block. Class has its colour.
type shownPort struct {
	Label, Class, State, Text string
	Percent                   int64
}

// portClasses are the colours of the states that are no work in progress. The words say the same.
var portClasses = map[place.State]string{place.Pass: "good", place.Known: "good", place.Fail: "bad", place.Closed: "bad", place.Refused: "refused", place.Empty: "empty", place.Stopped: "empty"}

// placesPage shows all places, or the one of a station that the query names.
func (v *view) placesPage() error {
	v.head("", "Places", "", "")
	return v.show(section{ID: "places", Form: "places"})
}

// Places returns the places that the page shows.
func (v *view) Places() (all []shownPlace) {
	want := v.Query.Get("place")
	for _, b := range v.boards {
		isPlace := slices.Contains(b.Does, job.Place) || b.runs != nil && b.runs.Steps[0].Do == job.Place
		if name := b.Station + "/" + b.Name; isPlace && cmp.Or(want, name) == name {
			all = append(all, v.placeOf(b))
		}
	}
	return all
}

func (v *view) placeOf(b *board) shownPlace {
	p := shownPlace{board: b}
	switch {
	case !b.Heard:
		since := ""
		if s := v.byStation[b.Station]; s != nil {
			since = clock(s.At)
		}
		p.Now = join(" since ", "not heard", since) + ": the place continues with its rows, and this page is old"
	case b.runs == nil:
		p.Now = join(": ", "not running", b.Note)
	case b.runs.Stop != "":
		p.Now = "it is ending: insert no other card"
	}
	if b.runs == nil {
		return p
	}
	for _, e := range b.runs.events {
		if e.Step == place.TotalsStep {
			p.Totals = plaintext.ShortLine(e.Detail)
			continue
		}
		state, text := place.Split(e.Detail)
		p.Ports = append(p.Ports, shownPort{plaintext.ShortLine(e.Step), cmp.Or(portClasses[state], "work"), plaintext.ShortLine(string(state)), plaintext.ShortLine(text), e.Count})
	}
	slices.SortFunc(p.Ports, func(a, b shownPort) int { return strings.Compare(a.Label, b.Label) })
	return p
}
