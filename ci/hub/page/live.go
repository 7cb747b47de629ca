package page

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"slipway/ci/hub"
	"slipway/ci/job"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

const (
	pause    = 250 * time.Millisecond // between two versions of a part
	beat     = 60                     // pauses between comments, which show a proxy that the stream lives
	patience = 30 * time.Second       // with a browser that takes nothing
	maxSteps = 50                     // of a job's progress
	maxNoted = 4096                   // jobs whose progress is kept while nobody looks
	maxLog   = 16                     // pieces of a log that are read at once
)

// follower makes one state for all pages, and renders each page once for all who look at it.
type follower struct {
	ctx context.Context
	h   *hub.Hub

	mu      sync.Mutex
	last    *state
	changed <-chan struct{}             // gets something when the hub knows more than last
	events  map[string][]progress.Event // by the job's key
	moved   bool                        // there are events that last lacks

	drawing sync.Mutex
	drawn   map[string][]part // of the state drawnOf, by role and page
	drawnOf *state
}

// part is a section of a page, or its head, as HTML.
type part struct {
	ID    string        `json:"id"`
	HTML  template.HTML `json:"html"`
	still bool
}

// note keeps the newest event of each step of a job.
func (f *follower) note(key string, e progress.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Clone(f.events[key]) // a state has the old ones
	if i := slices.IndexFunc(all, func(old progress.Event) bool { return old.Step == e.Step }); i >= 0 {
		all[i] = e
	} else if len(all) < maxSteps {
		all = append(all, e)
	}
	if f.events[key] == nil && len(f.events) >= maxNoted {
		f.forgetEnded()
	}
	f.events[key], f.moved = all, true
}

// forgetEnded drops the events of jobs that do not run, or all if the others are too many: each job's
// next event is kept again.
func (f *follower) forgetEnded() {
	if now, err := readState(f.ctx, f.h); err == nil {
		f.keepRunning(now)
	}
	if len(f.events) > maxNoted/2 {
		clear(f.events)
	}
}

// keepRunning gives the jobs that run their events, and drops those of others.
func (f *follower) keepRunning(now *state) {
	kept := map[string][]progress.Event{}
	for _, j := range now.jobs {
		if all := f.events[j.Key()]; len(all) > 0 && j.State == job.Running {
			j.events, kept[j.Key()] = all, all
		}
	}
	f.events = kept
}

// look returns a state that was true at most age ago.
func (f *follower) look(age time.Duration) (*state, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil {
		select {
		case <-f.changed:
			f.moved = true
		default:
		}
		if !f.moved || time.Since(f.last.made) < age {
			return f.last, nil
		}
	}
	f.moved = false
	now, err := readState(f.ctx, f.h)
	if err != nil {
		return nil, err
	}
	f.keepRunning(now)
	f.last = now
	return now, nil
}

// draw returns the parts of a page that nobody types into.
func (p *Page) draw(who job.Person, uri *url.URL) ([]part, error) {
	s, err := p.look(pause)
	if err != nil {
		return nil, err
	}
	p.drawing.Lock()
	defer p.drawing.Unlock()
	if p.drawnOf != s {
		p.drawnOf, p.drawn = s, map[string][]part{}
	}
	key := string(who.Role) + " " + uri.String()
	if parts, known := p.drawn[key]; known {
		return parts, nil
	}
	v, err := p.newView(p.ctx, s, who, uri, true)
	if err != nil {
		return nil, err
	}
	parts, err := v.draw()
	p.drawn[key] = slices.DeleteFunc(parts, func(p part) bool { return p.still })
	return p.drawn[key], err
}

// serveEvents sends the parts of a page, then those that changed, and the pieces of a job's log. It
// keeps nothing for a slow browser, which gets the newest parts once it reads again.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request, who job.Person) error {
	uri, err := url.ParseRequestURI(r.URL.Query().Get("page"))
	if err != nil {
		return fmt.Errorf("%w: %q", errUnknown, plaintext.ShortLine(r.URL.Query().Get("page")))
	}
	parts, err := p.draw(who, uri)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	s := &stream{out: http.NewResponseController(w), w: w, sent: map[string]template.HTML{}}
	s.write("retry: 1000\n\n")
	name, args := find(uri.Path)
	n, _ := strconv.ParseUint(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("log")), 10, 64) // 0 is the begin
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := 1; err == nil && s.err == nil && p.h.IsStill(who); i++ {
		s.sendParts(parts)
		if name == "jobs/*" {
			n, _ = readLog(r.Context(), p.h, who, args[0], n, func(l job.Log) { s.send("log", l.N, plaintext.Visible(l.Text)) })
		}
		if i%beat == 0 {
			c, _ := r.Cookie(cookieName) // it was there
			if _, err := p.h.SignedIn(r.Context(), c.Value); err != nil {
				return nil
			}
			s.write(": still here\n\n")
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-p.ctx.Done():
			return nil
		case <-tick.C:
		}
		parts, err = p.draw(who, uri)
	}
	return nil // the browser comes back, and then hears why
}

// stream is the answer to one browser, until its first error.
type stream struct {
	w    http.ResponseWriter
	out  *http.ResponseController
	sent map[string]template.HTML // by ID
	err  error
}

func (s *stream) write(text string) {
	if s.err == nil {
		s.err = s.out.SetWriteDeadline(time.Now().Add(patience))
	}
	if s.err == nil {
		_, s.err = s.w.Write([]byte(text))
	}
	if s.err == nil {
		s.err = s.out.Flush()
	}
}

// send sends an event. id is where a log goes on, 0 for others.
func (s *stream) send(event string, id uint64, data any) {
	text, _ := json.Marshal(data) // of strings: it cannot fail
	head := ""
	if id > 0 {
		head = fmt.Sprintf("id: %d\n", id)
	}
	s.write(fmt.Sprintf("%sevent: %s\ndata: %s\n\n", head, event, text))
}

func (s *stream) sendParts(parts []part) {
	for _, p := range parts {
		if s.sent[p.ID] != p.HTML {
			s.sent[p.ID] = p.HTML
			s.send("part", 0, p)
		}
	}
}

// readLog calls note with the pieces of a job's log from n on, at most maxLog. It returns where the
// log goes on, and whether there may be more. Without a log, all is right but for that.
func readLog(ctx context.Context, h *hub.Hub, who job.Person, id string, n uint64, note func(job.Log)) (next uint64, full bool) {
	for range maxLog {
		l, err := ask[job.Log](ctx, h, who, job.VerbJobLog, job.LogWish{ID: id, N: n, Now: true})
		if err != nil || l.Text == "" {
			return n, false
		}
		note(l)
		n = l.N
	}
	return n, true
}

// shownLog is what a page has of a job's log, and where the log goes on.
type shownLog struct {
	Text string
	Next uint64
	Full bool // there may be more
}
