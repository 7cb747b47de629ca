package page

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/fleet"
	"slipway/ci/hub"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
)

// view is a state, and what a reader asked of it.
type view struct {
	*state
	Role   job.Role
	Args   []string // names in the path
	Query  url.Values
	Said   string // the answer to the last form
	People []job.Person
	audit  []hub.Record
	Log    shownLog
}

// May reports whether the reader's role allows a verb.
func (v *view) May(verb string) bool { return allows(v.Role, verb) }

// content is a page: its head and its sections.
type content struct {
	Class, Title, Verdict, Line string
	sections                    []section
}

// section is a part of a page. It has an ID, by which a newer one takes its place.
type section struct {
	ID, Title, Aside string
	Facts            [][2]string
	Rows             []row
	Else             string // instead of no rows
	Form             string // what a person does here: the name of a template
	Still            bool   // it stays while the page is open, as somebody may type into it
	View             *view
}

// row is a line of a table.
type row struct {
	Class, Name, Link, Saw, Next, Took string
	Max, Value                         int64 // of a bar
}

// kind makes a page; nil is a page of something that the hub does not know.
type kind struct {
	make func(v *view) *content
	load func(ctx context.Context, p *Page, who job.Person, v *view) error // what is not in a state
	once bool                                                              // the page does not follow what happens
}

// kinds are all pages by path, with * for a name.
var kinds = map[string]kind{
	"": {make: (*view).home}, "boards": {make: (*view).boardList}, "boards/*/*": {make: (*view).boardPage},
	"stations": {make: (*view).stationList}, "stations/*": {make: (*view).stationPage}, "jobs/*": {make: (*view).jobPage, load: loadLog},
	"people": {(*view).peoplePage, loadPeople, true}, "log": {(*view).auditPage, loadAudit, true},
}

const (
	maxRows  = 50 // of a table that counts the others
	lowDisk  = 5 << 30
	pageSize = 200 // boards
)

// limited returns a section with the first of its rows.
func limited(id, title, otherwise string, rows []row) section {
	s := section{ID: id, Title: title, Rows: rows[:min(len(rows), maxRows)], Else: otherwise}
	if n := len(rows) - maxRows; n > 0 {
		s.Aside = fmt.Sprintf("and %d more", n)
	}
	return s
}

func (v *view) home() *content {
	needs, active := v.needs(), v.active()
	c := &content{Class: "passed", Title: "Hub", Verdict: "nothing needs you", Line: count(len(v.boards), "board") + " at " + count(len(v.Stations), "station")}
	if n := len(needs); n > 0 {
		c.Class, c.Verdict = "failed", count(n, "thing")+plaintext.Either(n == 1, " needs you", " need you")
	}
	c.sections = []section{limited("needs", "Needs you", "Nothing needs you.", needs), limited("jobs", "Running and waiting", "No job runs or waits.", active), limited("stations", "Stations", noStations, v.stationRows())}
	return c
}

const noStations = "No station has joined. Next, as an admin: slipway hub invite station NAME"

// needs returns what somebody must look at.
func (v *view) needs() (all []row) {
	for _, s := range v.Stations {
		r := row{Class: "failed", Link: "/stations/" + s.Name}
		switch {
		case !s.Heard:
			r.Name, r.Saw, r.Next = s.Name+" is not heard", s.Machine, "look at the machine, then: slipway station"
		case s.FreeBytes > 0 && s.FreeBytes < lowDisk:
			r.Name, r.Saw, r.Next = s.Name+" has little room", plaintext.SizeText(s.FreeBytes)+" are free on "+s.Machine, "make room on the disk of its state folder"
		default:
			continue
		}
		all = append(all, r)
	}
	for _, b := range v.boards {
		if b.state == "failed" {
			r := b.row()
			r.Name, r.Next, r.Took = b.Name+": "+string(b.Last.Kind), b.Last.Kind.Next(), clock(b.Last.At)
			if b.ended != nil && b.ended.ID == b.Last.Job {
				r.Saw = plaintext.ShortLine(b.ended.Result.Saw)
			}
			all = append(all, r)
		}
	}
	return all
}

// active returns the jobs that run, then those that wait, the oldest first.
func (v *view) active() (all []row) {
	for _, state := range []job.State{job.Running, job.Queued} {
		for i := range slices.Backward(v.Jobs) {
			if j := &v.Jobs[i]; j.State == state {
				all = append(all, v.jobRow(j))
			}
		}
	}
	return all
}

func (v *view) stationRows() (all []row) {
	for _, s := range v.Stations {
		counts := map[string]int{}
		for _, b := range v.boards {
			if b.Station == s.Name {
				counts[b.state]++
			}
		}
		r := row{Class: "passed", Name: s.Name, Link: "/stations/" + s.Name, Saw: join(" · ", countWords(counts), plaintext.Either(s.Builds, "builder for "+s.Arch, ""), s.Machine, s.Program)}
		if !s.Heard {
			r.Class, r.Took = "failed", "not heard"
		} else if s.Draining {
			r.Class, r.Took = "skipped", "takes no jobs"
		}
		all = append(all, r)
	}
	return all
}

func (v *view) stationList() *content {
	return &content{Title: "Stations", Line: count(len(v.Stations), "station"), sections: []section{{ID: "stations", Title: "Stations", Rows: v.stationRows(), Else: noStations}}}
}

// boardList shows the boards that a filter wants, and which versions they run.
func (v *view) boardList() *content {
	words, state := strings.Fields(strings.ToLower(v.Query.Get("q"))), v.Query.Get("state")
	found := slices.DeleteFunc(slices.Clone(v.boards), func(b *board) bool {
		lacks := func(word string) bool { return !strings.Contains(b.text, word) }
		return slices.ContainsFunc(words, lacks) || state != "" && b.state != state
	})
	from, _ := strconv.Atoi(v.Query.Get("from")) // 0 if it is no number
	from = max(0, min(from, len(found)-1)) / pageSize * pageSize
	list := section{ID: "boards", Title: "Boards", Form: "pages", Else: "No board is like that.", Aside: fmt.Sprintf("%d to %d of %d", min(from+1, len(found)), min(from+pageSize, len(found)), len(found))}
	for _, b := range found[from:min(from+pageSize, len(found))] {
		list.Rows = append(list.Rows, b.row())
	}
	for _, p := range []struct {
		name string
		from int
	}{{"earlier", from - pageSize}, {"later", from + pageSize}} {
		if p.from >= 0 && p.from < len(found) {
			q := maps.Clone(v.Query)
			q.Set("from", strconv.Itoa(p.from))
			list.Facts = append(list.Facts, [2]string{p.name, "?" + q.Encode()})
		}
	}
	return &content{Title: "Boards", Line: spread(found), sections: []section{{ID: "filter", Form: "filter", Still: true}, list}}
}

// spread says how many boards run which versions.
func spread(boards []*board) string {
	counts := map[string]int{}
	for _, b := range boards {
		counts[cmp.Or(plaintext.ShortLine(b.Runs), "unknown")]++
	}
	return countWords(counts)
}

// countWords returns "3 free, 1 failed", the largest counts first, and the number of others.
func countWords(counts map[string]int) string {
	const most = 6
	var all []string
	for _, word := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) }) {
		all = append(all, fmt.Sprintf("%d %s", counts[word], word))
	}
	if n := len(all) - most; n > 0 {
		all = append(all[:most], fmt.Sprintf("and %d others", n))
	}
	return strings.Join(all, ", ")
}

func count(n int, noun string) string {
	return fmt.Sprintf("%d %s%s", n, noun, plaintext.Either(n == 1, "", "s"))
}

// States are the states that a filter can name.
func (v *view) States() []string { return slices.Sorted(maps.Keys(boardStates)) }

// Board returns the page's board, nil if the hub does not know it.
func (v *view) Board() *board { return v.byBoard[bus.Key(v.Args...)] }

func (v *view) boardPage() *content {
	b := v.Board()
	if b == nil {
		return nil
	}
	facts := facts("Kind", b.Board.Board, "Station", b.Station, "Runs", b.Runs, "Device", b.Device, "Serial", b.Serial, "Labels", strings.Join(b.Labels, " "), "On its device", b.Shows, "Note", b.Note)
	c := &content{Class: b.class, Title: b.Name, Verdict: b.state, Line: b.Board.Board + " at " + b.Station}
	at := slices.DeleteFunc(v.stationRows(), func(r row) bool { return r.Name != b.Station })
	c.sections = []section{{ID: "board", Title: "The board", Facts: facts, Rows: at}}
	if v.May(job.VerbJobAdd) {
		c.sections = append(c.sections, section{ID: "begin", Title: "Begin a job", Form: "begin", Still: true})
	}
	c.sections = append(c.sections, v.jobsOf(b.jobs), section{ID: "report", Title: "Last report", Form: "report", Still: true})
	return c
}

// facts returns names and values in turn, without those whose value is "".
func facts(all ...string) (named [][2]string) {
	for pair := range slices.Chunk(all, 2) {
		if pair[1] != "" {
			named = append(named, [2]string{pair[0], plaintext.ShortLine(pair[1])})
		}
	}
	return named
}

func (v *view) jobsOf(jobs []*hub.SeenJob) section {
	var rows []row
	for _, j := range jobs {
		rows = append(rows, v.jobRow(j))
	}
	return limited("jobs", "Jobs", "No job in the last 7 days.", rows)
}

// Then returns what can follow a step in one job of the page's board.
func (v *view) Then(do job.Do) (all []job.Do) {
	for _, next := range v.Board().Does {
		if do == job.Flash && next == job.Boot || do != job.Smoke && next == job.Smoke {
			all = append(all, next)
		}
	}
	return all
}

// Station returns the page's station, nil if the hub does not know it.
func (v *view) Station() *job.HubStation {
	if i := slices.IndexFunc(v.Stations, func(s job.HubStation) bool { return s.Name == v.Args[0] }); i >= 0 {
		return &v.Stations[i]
	}
	return nil
}

func (v *view) stationPage() *content {
	s := v.Station()
	if s == nil {
		return nil
	}
	c := &content{Class: plaintext.Either(s.Heard, "passed", "failed"), Title: s.Name, Verdict: plaintext.Either(s.Heard, "heard", "not heard"), Line: s.Machine}
	about := section{ID: "station", Title: "The station", Facts: facts("Machine", s.Machine, "Program", s.Program, "Architecture", s.Arch, "Builds", plaintext.Either(s.Builds, "it takes them", ""), "Jobs at once", strconv.Itoa(s.Parallel),
		"Free disk", plaintext.SizeText(s.FreeBytes), "Last heard", clock(s.At), "New jobs", plaintext.Either(s.Draining, "it takes none", "it takes them"))}
	if v.May(job.VerbDrain) {
		about.Form = "drain"
	}
	var boards []row
	var jobs []*hub.SeenJob
	for _, b := range v.boards {
		if b.Station == s.Name {
			boards = append(boards, b.row())
		}
	}
	for i := range v.Jobs {
		if v.Jobs[i].Station == s.Name {
			jobs = append(jobs, &v.Jobs[i])
		}
	}
	c.sections = []section{about, limited("boards", "Boards", "It has no boards.", boards), v.jobsOf(jobs)}
	return c
}

// Job returns the page's job, nil if the hub does not know it.
func (v *view) Job() *hub.SeenJob {
	i, found := slices.BinarySearchFunc(v.Jobs, v.Args[0], func(j hub.SeenJob, id string) int { return strings.Compare(id, j.ID) })
	if !found {
		return nil
	}
	return &v.Jobs[i]
}

func (v *view) jobPage() *content {
	j := v.Job()
	if j == nil {
		return nil
	}
	c := &content{Class: jobClass(j), Title: j.Subject() + ": " + steps(j), Verdict: jobState(j), Line: join(", ", plaintext.Either(j.Station == "", "", "at "+j.Station), "by "+j.By)}
	about := section{ID: "job", Title: "The job", Facts: facts("State", string(j.State), "Since", clock(j.At), "Board", j.Board+" "+j.Subject(), "Artifact", j.Artifact, "Stop", string(j.Stop), "Stopped by", j.StopBy)}
	if r := j.Result; r != nil {
		about.Facts = append(about.Facts, facts("Result", string(r.Kind), "Saw", r.Saw, "Next", plaintext.Either(r.Kind == fleet.Other, "see the log below", r.Kind.Next()), "Checks", plaintext.Either(r.Checks > 0, fmt.Sprintf("%d of %d passed", r.Passed, r.Checks), ""),
			"Version", r.Version, "Built", r.Artifact, "Attempts", strconv.Itoa(r.Attempts), "The same by hand", r.Line)...)
	} else if v.May(job.VerbJobStop) {
		about.Form = "stop"
	}
	if b := v.byBoard[bus.Key(j.Station, j.Name)]; b != nil {
		about.Rows = []row{b.row()}
	}
	c.sections = []section{{ID: "steps", Title: "Steps", Rows: v.stepRows(j)}, about, {ID: "log-box", Title: "Log", Form: "log", Still: true}}
	return c
}

// stepRows returns the steps of a job, and how far the commands say that they are.
func (v *view) stepRows(j *hub.SeenJob) (all []row) {
	for i, s := range j.Steps {
		r := row{Class: "skipped", Name: string(s.Do)}
		if j.Result != nil && i < len(j.Result.Steps) {
			done := j.Result.Steps[i]
			r.Class, r.Took = plaintext.Either(done.Status == 0, "passed", "failed"), took(done.ElapsedMS)
			r.Saw = plaintext.Either(done.Status == 0, "", fmt.Sprintf("exit status %d", done.Status))
		}
		all = append(all, r)
	}
	for _, e := range v.progress[j.Key] {
		all = append(all, eventRow(e))
	}
	return all
}

// Lost reports whether the station of the page's job is not heard.
func (v *view) Lost() bool {
	b := v.byBoard[bus.Key(v.Job().Station, v.Job().Name)]
	return b == nil || !b.Heard
}

func (v *view) peoplePage() *content {
	s := section{ID: "people", Title: "People and stations", Form: "people"}
	for _, p := range v.People {
		r := row{Class: "passed", Name: p.Name, Saw: join(" · ", string(p.Role), plaintext.Either(p.By == "", "", "by "+p.By)), Took: clock(p.Since)}
		if p.Key == "" {
			r.Class, r.Saw = "skipped", r.Saw+" · removed"
		}
		s.Rows = append(s.Rows, r)
	}
	return &content{Title: "People", Line: "who may ask this hub", sections: []section{s}}
}

func loadPeople(ctx context.Context, p *Page, who job.Person, v *view) error {
	all, err := ask[job.People](ctx, p, who, job.VerbPeople, struct{}{})
	v.People = all.People
	return err
}

func (v *view) auditPage() *content {
	s := section{ID: "audit", Title: "Audit", Aside: "the newest first"}
	for _, a := range slices.Backward(v.audit) {
		class := plaintext.Either(a.Refused == "", "passed", "failed")
		s.Rows = append(s.Rows, row{Class: class, Name: a.Who + ": " + a.Verb, Saw: plaintext.ShortLine(cmp.Or(a.Refused, strings.Trim(a.What, "{}"))), Took: clock(a.At)})
	}
	return &content{Title: "Log", Line: "who wanted what, and what was refused", sections: []section{s}}
}

func loadAudit(ctx context.Context, p *Page, who job.Person, v *view) error {
	all, err := ask[hub.Audit](ctx, p, who, job.VerbAudit, struct{}{})
	v.audit = all.Records
	return err
}
