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
	Who    job.Person
	Args   []string // names in the path
	Query  url.Values
	Events string // address of the page's stream; "" for a page that does not follow what happens
	Said   string // the answer to the last form
	live   bool   // only the parts that follow what happens

	People []job.Person
	audit  hub.Audit
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

// kind makes a page, and reports whether the hub knows what it is of.
type kind struct {
	make func(v *view) bool
	load func(ctx context.Context, p *Page, who job.Person, v *view) error // what is not in a state
	once bool                                                              // the page does not follow what happens
}

// kinds are all pages by path, with * for a name.
var kinds = map[string]kind{
	"": {make: (*view).home}, "boards": {make: (*view).boardList}, "boards/*/*": {make: (*view).boardPage, load: loadReports},
	"rollouts": {make: (*view).rolloutList}, "rollouts/*": {make: (*view).rolloutPage, load: loadRollout},
	"stations": {make: (*view).stationList}, "stations/*": {make: (*view).stationPage}, "jobs/*": {make: (*view).jobPage, load: loadLog},
	"places": {make: (*view).placesPage},
	"people": {(*view).peoplePage, loadPeople, true}, "log": {(*view).auditPage, loadAudit, true},
}

// newView returns the page of an address as somebody may see it.
func (p *Page) newView(ctx context.Context, s *state, who job.Person, uri *url.URL, live bool) (*view, error) {
	name, args := find(uri.Path)
	k, known := kinds[name]
	if !known || live && k.once {
		return nil, errUnknown
	}
	v := &view{state: s, Who: who, Args: args, Query: uri.Query(), live: live}
	if !k.once {
		v.Events = "/events?page=" + url.QueryEscape(uri.RequestURI())
	}
	if k.load != nil {
		if err := k.load(ctx, p, who, v); err != nil {
			return nil, err
		}
	}
	if !k.make(v) {
		return nil, errUnknown
	}
	return v, nil
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

func (v *view) home() bool {
	needs := v.needs()
	v.head("passed", "Hub", "nothing needs you", count(len(v.boards), "board")+" at "+count(len(v.Stations), "station"))
	if n := len(needs); n > 0 {
		v.Class, v.Verdict = "failed", count(n, "thing")+plaintext.Either(n == 1, " needs you", " need you")
	}
	active := append(v.rolloutRows(func(s job.RolloutState) bool { return !s.Ended && s.Wish != job.Pause }), v.active()...)
	return v.show(limited("needs", "Needs you", "Nothing needs you.", needs), limited("jobs", "Running and waiting", "No job runs or waits.", active), limited("stations", "Stations", noStations, v.stationRows()))
}

func (v *view) head(class, title, verdict, line string) {
	v.Class, v.Title, v.Verdict, v.Line = class, title, verdict, line
}

func (v *view) show(sections ...section) bool {
	v.sections = sections
	return true
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
		for _, j := range slices.Backward(v.Jobs) {
			if j.State == state {
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

func (v *view) stationList() bool {
	v.head("", "Stations", "", count(len(v.Stations), "station"))
	return v.show(section{ID: "stations", Title: "Stations", Rows: v.stationRows(), Else: noStations})
}

// boardList shows the boards that a filter wants, and which versions they run.
func (v *view) boardList() bool {
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

func (v *view) boardPage() bool {
	b := v.Board()
	if b == nil {
		return false
	}
	facts := facts("Kind", b.Board.Board, "Station", b.Station, "Runs", b.Runs, "Device", b.Device, "Serial", b.Serial, "Labels", strings.Join(b.Labels, " "), "On its device", b.Shows, "Note", b.Note)
	v.head(b.class, b.Name, b.state, b.Board.Board+" at "+b.Station)
	at := slices.DeleteFunc(v.stationRows(), func(r row) bool { return r.Name != b.Station })
	all := []section{{ID: "board", Title: "The board", Facts: facts, Rows: at}}
	if b.Open && v.May(job.VerbNameDevice) {
		all = append(all, section{ID: "name", Title: "Name the device", Form: "name", Still: true})
	}
	if v.May(job.VerbJobAdd) && len(b.Does) > 0 {
		all = append(all, section{ID: "begin", Title: "Begin a job", Form: "begin", Still: true})
	}
	return v.show(append(all, v.jobsOf(b.jobs), section{ID: "report", Title: "Reports", Form: "report", Still: true})...)
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

func (v *view) jobsOf(jobs []*shownJob) section {
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
func (v *view) Station() *job.HubStation { return v.station(v.Args[0]) }

func (v *view) station(name string) *job.HubStation {
	if i := slices.IndexFunc(v.Stations, func(s job.HubStation) bool { return s.Name == name }); i >= 0 {
		return &v.Stations[i]
	}
	return nil
}

func (v *view) stationPage() bool {
	s := v.Station()
	if s == nil {
		return false
	}
	v.head(plaintext.Either(s.Heard, "passed", "failed"), s.Name, plaintext.Either(s.Heard, "heard", "not heard"), s.Machine)
	about := section{ID: "station", Title: "The station", Facts: facts("Machine", s.Machine, "Program", s.Program, "Architecture", s.Arch, "Builds", plaintext.Either(s.Builds, "it takes them", ""), "Jobs at once", strconv.Itoa(s.Parallel),
		"Free disk", plaintext.SizeText(s.FreeBytes), "Last heard", clock(s.At), "New jobs", plaintext.Either(s.Draining, "it takes none", "it takes them"))}
	if v.May(job.VerbDrain) {
		about.Form = "drain"
	}
	var boards []row
	for _, b := range v.boards {
		if b.Station == s.Name {
			boards = append(boards, b.row())
		}
	}
	jobs := slices.DeleteFunc(slices.Clone(v.Jobs), func(j *shownJob) bool { return j.Station != s.Name })
	return v.show(about, limited("boards", "Boards", "It has no boards.", boards), v.jobsOf(jobs))
}

// Job returns the page's job, nil if the hub does not know it.
func (v *view) Job() *shownJob {
	if i := slices.IndexFunc(v.Jobs, func(j *shownJob) bool { return j.ID == v.Args[0] }); i >= 0 {
		return v.Jobs[i]
	}
	return nil
}

func (v *view) jobPage() bool {
	j := v.Job()
	if j == nil {
		return false
	}
	v.head(jobClass(j), j.Subject()+": "+job.StepNames(j.Steps), jobState(j), join(", ", plaintext.Either(j.Station == "", "", "at "+j.Station), "by "+j.By))
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
	return v.show(section{ID: "steps", Title: "Steps", Rows: v.stepRows(j)}, about, section{ID: "log-box", Title: "Log", Form: "log", Still: true})
}

// stepRows returns the steps of a job, and how far the commands say that they are.
func (v *view) stepRows(j *shownJob) (all []row) {
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
	s := v.station(v.Job().Station)
	return s == nil || !s.Heard
}

func (v *view) peoplePage() bool {
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
	v.head("", "People", "", "who may ask this hub")
	return v.show(s)
}

func loadPeople(ctx context.Context, p *Page, who job.Person, v *view) error {
	all, err := ask[job.People](ctx, p.h, who, job.VerbPeople, struct{}{})
	v.People = append(all.People, all.Invited...)
	return err
}

func (v *view) auditPage() bool {
	s := section{ID: "audit", Title: "Audit", Aside: "the newest first"}
	if v.audit.First > 1 {
		s.Form, v.Pages = "pages", [][2]string{{"older", fmt.Sprintf("?before=%d", v.audit.First)}}
	}
	for _, a := range slices.Backward(v.audit.Records) {
		class := plaintext.Either(a.Refused == "", "passed", "failed")
		s.Rows = append(s.Rows, row{Class: class, Name: a.Who + ": " + a.Verb, Saw: plaintext.ShortLine(cmp.Or(a.Refused, strings.Trim(a.What, "{}"))), Took: clock(a.At)})
	}
	v.head("", "Log", "", "who wanted what, and what was refused")
	return v.show(s)
}

func loadAudit(ctx context.Context, p *Page, who job.Person, v *view) (err error) {
	before, _ := strconv.ParseUint(v.Query.Get("before"), 10, 64) // none is the newest
	v.audit, err = ask[hub.Audit](ctx, p.h, who, job.VerbAudit, job.ListWish{Before: before})
	return err
}
