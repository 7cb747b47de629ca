package hub

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/flash/place"
)

// rowsOf asks for the rows of a place, and returns them in one text.
func rowsOf(t *testing.T, c *access.Client, holder string, want int) string {
	t.Helper()
	return strings.Join(ask[job.Rows](t, c, job.VerbRows, job.RowsWish{Instance: "i1", Table: "lab", Place: "line-1", Holder: holder, Want: want}).Lines, "")
}

func cardOf(row, stamp string, finished bool) job.Card {
	e := place.Entry{Verdict: "UNFINISHED", Taken: true, Port: "mmc0", Row: row, Stamp: stamp, Began: time.Unix(1796000000, 0).UTC()}
	if finished {
		e.Verdict, e.Finished = "PASS", e.Began.Add(time.Minute)
	}
	data, _ := json.Marshal(e)
	return job.Card{Place: "line-1", Name: "2026-11-30/" + stamp + ".json", Table: "lab", Holder: "H1", Entry: data}
}

// A table's rows are each one record's. A repeated request costs none, and a card keeps its row.
func TestTable(t *testing.T) {
	admin, invite := newHub(t)
	one, two := invite(job.AStation, "bench-1"), invite(job.AStation, "bench-2")
	announce(t, one, "i1")
	announce(t, two, "i1")
	refused(t, one, job.VerbRows, job.RowsWish{Instance: "i1", Table: "lab", Place: "line-1", Holder: "H1", Want: 2}, `the hub has no table "lab"`)
	add := func(csv string) job.TableRows { return job.TableRows{Table: "lab", CSV: csv} }
	ask[nothing](t, admin, job.VerbTableAdd, add("host,secret\nn1,hush\nn2,b\nn3,c\n"))
	ask[nothing](t, admin, job.VerbTableAdd, add("host,secret\nn3,c\nn4,d\n"))
	refused(t, admin, job.VerbTableAdd, add("host\nn5\n"), "the table lab has other columns: host,secret")
	refused(t, admin, job.VerbTableAdd, add("host,secret\nn4,other\n"), `the table lab has another row "n4"`)
	refused(t, admin, job.VerbTableAdd, add("host,secret\nn6,\x01\n"), "secret: want at most")
	for range 2 {
		if got := rowsOf(t, one, "H1", 2); got != "n1,hush\nn2,b\n" {
			t.Errorf("bench-1 got %q; want two rows, the same again", got)
		}
	}
	if got := rowsOf(t, two, "H2", 1); got != "n3,c\n" {
		t.Errorf("bench-2 got %q", got)
	}
	refused(t, two, job.VerbRows, job.RowsWish{Instance: "other", Table: "lab", Place: "line-1", Holder: "H2", Want: 2}, "another run of this station has it")
	ask[nothing](t, one, job.VerbCard, cardOf("n1", "s1", true))
	if got := rowsOf(t, one, "H3", 5); got != "n4,d\n" {
		t.Errorf("a new record of bench-1 got %q; want none of the old one's", got)
	}
	if got := rowsOf(t, one, "H1", 5); got != "n2,b\n" {
		t.Errorf("bench-1 has %q; want the row that no card has", got)
	}
	ask[nothing](t, two, job.VerbCard, cardOf("n2", "s2", true)) // of bench-1
	records := ask[Audit](t, admin, job.VerbAudit, nothing{}).Records
	last := records[len(records)-1]
	if last.Who != "bench-2" || !strings.Contains(last.Refused, `the row "n2" of the table lab is not this place's`) {
		t.Errorf("the audit ends with %+v; want what bench-2 did with n2", last)
	}
	if text := fmt.Sprint(records); strings.Contains(text, "hush") {
		t.Error("the audit has a cell of the table")
	}
	testFree(t, admin)
	if all := ask[job.Tables](t, admin, job.VerbTables, nothing{}).Tables; fmt.Sprint(all) != "[{lab 4 1 1}]" {
		t.Errorf("the tables are %v", all)
	}
}

// Only rows of a removed station are given back, and none that a card has.
func testFree(t *testing.T, admin *access.Client) {
	t.Helper()
	free := job.TableWish{Table: "lab", Station: "bench-1"}
	refused(t, admin, job.VerbTableFree, free, "only those of a removed station are given back")
	ask[nothing](t, admin, job.VerbRemove, job.Person{Name: "bench-1"})
	if got := ask[job.Table](t, admin, job.VerbTableFree, free).Rows; len(got) != 2 || got[0].Row != "n2" || got[1].Row != "n4" {
		t.Errorf("given back were %v; want n2 and n4", got)
	}
	refused(t, admin, job.VerbTableFree, free, "cards have 1 of its rows for ever")
}

// A hub that does not know yet that another one gave a row to a place looks again, and the audit has no
// word of it.
func TestRowOfAnotherHub(t *testing.T) {
	admin, invite, h := newHubAnd(t)
	station := invite(job.AStation, "bench-1")
	announce(t, station, "i1")
	ask[nothing](t, admin, job.VerbTableAdd, job.TableRows{Table: "lab", CSV: "host\nn1\n"})
	h.index.mu.Lock()
	before := h.index.keys["rows"]["lab"]["lab.n1"]
	h.index.mu.Unlock()
	rowsOf(t, station, "H1", 1)
	h.index.mu.Lock()
	h.index.keys["rows"]["lab"]["lab.n1"] = before
	h.index.mu.Unlock()
	ask[nothing](t, station, job.VerbCard, cardOf("n1", "s1", true))
	if row, _, _ := get[tableRow](h.index, "rows", "lab.n1"); row.Card != "s1" {
		t.Errorf("the row is %+v; want that of the card s1", row)
	}
	for _, r := range ask[Audit](t, admin, job.VerbAudit, nothing{}).Records {
		if r.Refused != "" {
			t.Errorf("the audit has %+v", r)
		}
	}
}

// A card is in the history once, as its record has it last, and by day and station.
func TestCards(t *testing.T) {
	admin, invite := newHub(t)
	station := invite(job.AStation, "bench-1")
	for _, finished := range []bool{false, true, true, false} { // the last came late
		ask[nothing](t, station, job.VerbCard, cardOf("", "s1", finished))
	}
	ask[nothing](t, station, job.VerbCard, cardOf("", "s2", true))
	count := func(w job.CardsWish) int { return len(ask[job.Cards](t, admin, job.VerbCards, w).Cards) }
	all := ask[job.Cards](t, admin, job.VerbCards, job.CardsWish{})
	if len(all.Cards) != 2 || all.N != 0 || all.Cards[0].Station != "bench-1" || all.Cards[0].Name != "2026-11-30/s1.json" || !strings.Contains(string(all.Cards[0].Entry), "PASS") {
		t.Errorf("the history is %+v", all)
	}
	if n, m := count(job.CardsWish{Day: "2026-11-30", Station: "bench-1"}), count(job.CardsWish{Day: "2026-12-01"})+count(job.CardsWish{Station: "bench"}); n != 2 || m != 0 {
		t.Errorf("the day has %d cards; another day and station have %d", n, m)
	}
	for what, c := range map[string]job.Card{
		`"../x" does not have`: {Place: "line-1", Name: "../x"},
		"lacks its verdict":    {Place: "line-1", Name: "2026-11-30/x.json", Entry: []byte("{}")},
		"is longer than":       {Place: "line-1", Name: "2026-11-30/x.json", Entry: []byte(`"` + strings.Repeat("x", 70_000) + `"`)},
		"the place \"a b\"":    {Place: "a b", Name: "2026-11-30/x.json"},
		"the stamp of who":     {Place: "line-1", Name: "2026-11-30/x.json", Entry: cardOf("n1", "", true).Entry},
	} {
		refused(t, station, job.VerbCard, c, what)
	}
}

// A place is begun by an operator, and not while it runs.
func TestBeginPlace(t *testing.T) {
	admin, invite := newHub(t)
	station, vera, otto := invite(job.AStation, "bench-1"), invite(job.Viewer, "vera"), invite(job.Operator, "otto")
	announce(t, station, "i1")
	b := job.Board{V: 1, Name: "line-1", Board: "virt", Does: []job.Do{job.Place}}
	noRows := job.Board{V: 1, Name: "line-2", Board: "virt", Note: `the hub has no table "lab"`}
	ask[nothing](t, station, job.VerbBoards, job.Boards{Instance: "i1", Boards: []job.Board{b, noRows}})
	start := job.Job{Station: "bench-1", Name: "line-1", Board: "virt", Steps: []job.Step{{Do: job.Place, Count: 3}}}
	start.LimitMS, start.StartWithinMS = job.Times(start.Steps)
	refused(t, vera, job.VerbJobAdd, start, "needs the role operator")
	first := ask[job.Change](t, otto, job.VerbJobAdd, start)
	refused(t, admin, job.VerbJobAdd, start, "the place line-1 of bench-1 runs already, by otto")
	ask[job.Change](t, otto, job.VerbJobStop, job.StopWish{ID: first.Job.ID, How: job.Gently})
	ask[job.Change](t, admin, job.VerbJobAdd, start)
	start.Name = "line-2"
	refused(t, admin, job.VerbJobAdd, start, `does not take "place"; it does []: the hub has no table "lab"`)
	start.Name, start.Steps[0].Count = "line-1", -1
	refused(t, admin, job.VerbJobAdd, start, "-1 is no count of a place")
	start.Steps = []job.Step{{Do: job.Place}, {Do: job.Place}}
	refused(t, admin, job.VerbJobAdd, start, "a place is the only step")
}
