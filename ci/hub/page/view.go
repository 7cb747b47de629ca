package page

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
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

// view is a page: a state, what a reader asked of it, and its head and sections.
type view struct {
	*state
	ctx    context.Context
	h      *hub.Hub
	Who    job.Person
	Args   []string // names in the path
	Query  url.Values
	Events string // address of the page's stream; "" for a page that does not follow what happens
	Said   string // the answer to the last form
	live   bool   // only the parts that follow what happens

	People []job.Person
	Log    shownLog
	Pages  [][2]string // links to more of a list

	Rollout job.RolloutState // of the page
	Reports []job.Report     // of the page's board, the newest first

	Class, Title, Verdict, Line string
	sections                    []section
}

// May reports whether the reader's role allows a verb.
func (v *view) May(verb string) bool { return v.Who.Role.May(verb) }

// section is a part of a page. It has an ID, by which a newer one takes its place.
type section struct {
	ID, Title, Aside string
	Facts            [][2]string
	Rows             []row
	Else             string // instead of no rows
	Form             string // what a person does here: the name of a template
	Still            bool   // it stays while the page is open, as somebody may type into it
	Body             template.HTML
}

// row is a line of a table.
type row struct {
	Class, Name, Link, Saw, Next, Took string
	Max, Value                         int64 // of a bar
}

// kinds make all pages by path, with * for a name.
var kinds = map[string]func(v *view) error{
	"": (*view).home, "boards": (*view).boardList, "boards/*/*": (*view).boardPage, "rollouts": (*view).rolloutList, "rollouts/*": (*view).rolloutPage,
	"stations": (*view).stationList, "stations/*": (*view).stationPage, "jobs/*": (*view).jobPage, "places": (*view).placesPage,
	"people": (*view).peoplePage, "log": (*view).auditPage,
}

// unfollowed are the pages that do not follow what happens.
var unfollowed = []string{"people", "log"}

// newView returns the page of an address as somebody may see it.
func (p *Page) newView(ctx context.Context, s *state, who job.Person, uri *url.URL, live bool) (*view, error) {
	name, args := find(uri.Path)
	fill, follows := kinds[name], !slices.Contains(unfollowed, name)
	if fill == nil || live && !follows {
		return nil, errUnknown
	}
	v := &view{state: s, ctx: ctx, h: p.h, Who: who, Args: args, Query: uri.Query(), live: live}
	if follows {
		v.Events = "/events?page=" + url.QueryEscape(uri.RequestURI())
	}
	return v, fill(v)
}

// draw renders the head and the sections of a page.
func (v *view) draw() (all []part, err error) {
	text := func(name string, data any) template.HTML {
		var b bytes.Buffer
		err = errors.Join(err, templates.ExecuteTemplate(&b, name, data))
		return template.HTML(plaintext.WithoutControls(b.String())) // what boards and stations say has any characters
	}
	all = []part{{ID: "band", HTML: text("band", v)}}
	for _, s := range v.sections {
		if s.Form != "" {
			s.Body = text(s.Form, v)
		}
		all = append(all, part{s.ID, text("section", s), s.Still})
	}
	return all, err
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

func (v *view) home() error {
	needs := v.needs()
	v.head("passed", "Hub", "nothing needs you", count(len(v.boards), "board")+" at "+count(len(v.stations), "station"))
	if n := len(needs); n > 0 {
		v.Class, v.Verdict = "failed", count(n, "thing")+plaintext.Either(n == 1, " needs you", " need you")
	}
	active := append(v.rolloutRows(func(s job.RolloutState) bool { return !s.Ended && s.Wish != job.Pause }), v.active()...)
	return v.show(limited("needs", "Needs you", "Nothing needs you.", needs), limited("jobs", "Running and waiting", "No job runs or waits.", active), limited("stations", "Stations", noStations, rowsOf(v.stations)))
}

func (v *view) head(class, title, verdict, line string) {
	v.Class, v.Title, v.Verdict, v.Line = class, title, verdict, line
}

func (v *view) show(sections ...section) error {
	v.sections = sections
	return nil
}

const noStations = "No station has joined. Next, as an admin: slipway hub invite station NAME"

// needs returns what somebody must look at.
func (v *view) needs() (all []row) {
	for _, s := range v.stations {
		r := row{Class: "failed", Link: "/stations/" + s.Name}
		switch {
		case !s.Heard:
			r.Name, r.Saw, r.Next = s.Name+" is not heard", s.Machine, "look at that machine, and start it there: slipway station"
		case s.FreeBytes > 0 && s.FreeBytes < lowDisk:
			r.Name, r.Saw, r.Next = s.Name+" has little disk space", plaintext.SizeText(s.FreeBytes)+" are free on "+s.Machine, "free space on the disk of its state folder"
		default:
			continue
		}
		all = append(all, r)
	}
	for _, r := range v.rolloutRows(func(s job.RolloutState) bool { return !s.Ended && s.Wish == job.Pause }) {
		r.Next = "look at the rollout, then resume it or stop it"
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
		for _, j := range slices.Backward(v.jobs) {
			if j.State == state {
				all = append(all, j.row())
			}
		}
	}
	return all
}

func (s *shownStation) row() row {
	counts := map[string]int{}
	for _, b := range s.boards {
		counts[b.state]++
	}
	r := row{Class: "passed", Name: s.Name, Link: "/stations/" + s.Name, Saw: join(" · ", countWords(counts), plaintext.Either(s.Builds, "builder for "+s.Arch, ""), s.Machine, s.Program)}
	if !s.Heard {
		r.Class, r.Took = "failed", "not heard"
	} else if s.Draining {
		r.Class, r.Took = "skipped", "takes no jobs"
	}
	return r
}

// rowsOf returns the lines of all.
func rowsOf[T interface{ row() row }](all []T) (rows []row) {
	for _, one := range all {
		rows = append(rows, one.row())
	}
	return rows
}

func (v *view) stationList() error {
	v.head("", "Stations", "", count(len(v.stations), "station"))
	return v.show(section{ID: "stations", Title: "Stations", Rows: rowsOf(v.stations), Else: noStations})
}

// boardList shows the boards that a filter wants, and which versions they run.
func (v *view) boardList() error {
	words, state := strings.Fields(strings.ToLower(v.Query.Get("q"))), v.Query.Get("state")
	found := slices.DeleteFunc(slices.Clone(v.boards), func(b *board) bool {
		lacks := func(word string) bool { return !strings.Contains(b.text, word) }
		return slices.ContainsFunc(words, lacks) || state != "" && b.state != state
	})
	from, _ := strconv.Atoi(v.Query.Get("from")) // 0 if it is no number
	from = max(0, min(from, len(found)-1)) / pageSize * pageSize
	to := min(from+pageSize, len(found))
	list := section{ID: "boards", Title: "Boards", Form: "pages", Else: "No board is like that.", Aside: fmt.Sprintf("%d to %d of %d", min(from+1, to), to, len(found)), Rows: rowsOf(found[from:to])}
	for _, p := range []struct {
		name string
		from int
	}{{"earlier", from - pageSize}, {"later", from + pageSize}} {
		if p.from >= 0 && p.from < len(found) {
			q := maps.Clone(v.Query)
			q.Set("from", strconv.Itoa(p.from))
			v.Pages = append(v.Pages, [2]string{p.name, "?" + q.Encode()})
		}
	}
	v.head("", "Boards", "", spread(found))
	return v.show(section{ID: "filter", Form: "filter", Still: true}, list)
}

// spread says how many boards run which versions.
func spread(boards []*board) string {
	counts := map[string]int{}
	for _, b := range boards {
		counts["with "+cmp.Or(plaintext.ShortLine(b.Runs), "an unknown version")]++
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

func (v *view) boardPage() error {
	b := v.Board()
	if b == nil {
		return errUnknown
	}
	facts := facts("Kind", b.Board.Board, "Station", b.Station, "Runs", b.Runs, "Device", b.Device, "Serial", b.Serial, "Labels", strings.Join(b.Labels, " "), "On its device", b.Shows, "Note", b.Note)
	v.head(b.class, b.Name, b.state, b.Board.Board+" at "+b.Station)
	all := []section{{ID: "board", Title: "The board", Facts: facts}}
	if st := v.byStation[b.Station]; st != nil {
		all[0].Rows = []row{st.row()}
	}
	if b.Open && v.May(job.VerbNameDevice) {
		all = append(all, section{ID: "name", Title: "Name the device", Form: "name", Still: true})
	}
	if !v.live { // it is not drawn anew
		known, err := ask[job.Reports](v.ctx, v.h, v.Who, job.VerbReportList, job.ReportWish{Station: b.Station, Name: b.Name})
		if err != nil {
			return err
		}
		v.Reports = known.Reports[:min(len(known.Reports), maxRows)]
	}
	if v.May(job.VerbJobAdd) && len(b.Does) > 0 {
		all = append(all, section{ID: "begin", Title: "Begin a job", Form: "begin", Still: true})
	}
	return v.show(append(all, jobsOf(b.jobs), section{ID: "report", Title: "Reports", Form: "report", Still: true})...)
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

func jobsOf(jobs []*shownJob) section {
	return limited("jobs", "Jobs", "No job in the last 7 days.", rowsOf(jobs))
}

// Artifacts returns those that jobs brought onto boards of the page's kind, the last one first.
func (v *view) Artifacts() (all []string) {
	for _, j := range v.jobs {
		if len(all) < maxRows && j.Artifact != "" && j.Board == v.Board().Board.Board && !slices.Contains(all, j.Artifact) {
			all = append(all, j.Artifact)
		}
	}
	return all
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
func (v *view) Station() *shownStation { return v.byStation[v.Args[0]] }

func (v *view) stationPage() error {
	s := v.Station()
	if s == nil {
		return errUnknown
	}
	v.head(plaintext.Either(s.Heard, "passed", "failed"), s.Name, plaintext.Either(s.Heard, "heard", "not heard"), s.Machine)
	about := section{ID: "station", Title: "The station", Facts: facts("Machine", s.Machine, "Program", s.Program, "Architecture", s.Arch, "Builds", plaintext.Either(s.Builds, "it takes them", ""), "Jobs at once", strconv.Itoa(s.Parallel),
		"Free disk", plaintext.SizeText(s.FreeBytes), "Last heard", clock(s.At), "New jobs", plaintext.Either(s.Draining, "it takes none", "it takes them"))}
	if v.May(job.VerbDrain) {
		about.Form = "drain"
	}
	return v.show(about, limited("boards", "Boards", "It has no boards.", rowsOf(s.boards)), jobsOf(s.jobs))
}

// Job returns the page's job, nil if the hub does not know it.
func (v *view) Job() *shownJob { return v.byJob[v.Args[0]] }

func (v *view) jobPage() error {
	j := v.Job()
	if j == nil {
		return errUnknown
	}
	v.head(j.class(), j.Subject()+": "+job.StepNames(j.Steps), j.Word(), join(", ", plaintext.Either(j.Station == "", "", "at "+j.Station), "by "+j.By))
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
	if !v.live { // else the pieces of the log are events
		n, _ := strconv.ParseUint(v.Query.Get("log"), 10, 64) // 0 is the begin
		v.Log.Next, v.Log.Full = readLog(v.ctx, v.h, v.Who, j.ID, n, func(l job.Log) { v.Log.Text += plaintext.Visible(l.Text) })
	}
	return v.show(section{ID: "steps", Title: "Steps", Rows: j.stepRows()}, about, section{ID: "log-box", Title: "Log", Form: "log", Still: true})
}

// stepRows returns the steps of a job, and how far the commands say that they are.
func (j *shownJob) stepRows() (all []row) {
	for i, s := range j.Steps {
		r := row{Class: "skipped", Name: string(s.Do)}
		if j.Result != nil && i < len(j.Result.Steps) {
			done := j.Result.Steps[i]
			r.Class, r.Took = plaintext.Either(done.Status == 0, "passed", "failed"), took(done.ElapsedMS)
			r.Saw = plaintext.Either(done.Status == 0, "", fmt.Sprintf("exit status %d", done.Status))
		}
		all = append(all, r)
	}
	for _, e := range j.events {
		all = append(all, eventRow(e))
	}
	return all
}

// Lost reports whether the station of the page's job is not heard.
func (v *view) Lost() bool {
	s := v.byStation[v.Job().Station]
	return s == nil || !s.Heard
}

func (v *view) peoplePage() error {
	all, err := ask[job.People](v.ctx, v.h, v.Who, job.VerbPeople, struct{}{})
	if err != nil {
		return err
	}
	v.People = append(all.People, all.Invited...)
	s := section{ID: "people", Title: "People and stations", Form: "people"}
	for _, p := range v.People {
		r := row{Class: "passed", Name: p.Name, Saw: join(" · ", string(p.Role), plaintext.Either(p.By == "", "", "by "+p.By)), Took: clock(p.Since)}
		switch {
		case !p.Until.IsZero():
			r.Class, r.Saw = "cached", r.Saw+" · invited until "+clock(p.Until)
		case p.Key == "":
			r.Class, r.Saw = "skipped", r.Saw+" · removed"
		}
		s.Rows = append(s.Rows, r)
	}
	v.head("", "People", "", "who may use this hub, and since when")
	return v.show(s)
}

func (v *view) auditPage() error {
	before, _ := strconv.ParseUint(v.Query.Get("before"), 10, 64) // none is the newest
	all, err := ask[hub.Audit](v.ctx, v.h, v.Who, job.VerbAudit, job.ListWish{Before: before})
	if err != nil {
		return err
	}
	s := section{ID: "audit", Title: "Audit", Aside: "the newest first"}
	if all.First > 1 {
		s.Form, v.Pages = "pages", [][2]string{{"older", fmt.Sprintf("?before=%d", all.First)}}
	}
	for _, a := range slices.Backward(all.Records) {
		class := plaintext.Either(a.Refused == "", "passed", "failed")
		s.Rows = append(s.Rows, row{Class: class, Name: a.Who + ": " + a.Verb, Saw: plaintext.ShortLine(cmp.Or(a.Refused, strings.Trim(a.What, "{}"))), Took: clock(a.At)})
	}
	v.head("", "Log", "", "who asked for which change, and what was refused")
	return v.show(s)
}
