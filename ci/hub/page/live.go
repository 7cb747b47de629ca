package page

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	"slipway/layers/run"
)

const (
	pause    = 250 * time.Millisecond // between two versions of a part
	heart    = 15 * time.Second       // between comments, which show a proxy that the stream lives
	patience = 30 * time.Second       // with a browser that takes nothing
	maxSteps = 50                     // of a job's progress
	maxLog   = 16                     // pieces of a log on a page without a script
)

// follower makes one state for all pages, and renders each page once for all who look at it.
type follower struct {
	ctx context.Context
	h   *hub.Hub

	mu     sync.Mutex
	last   *state
	events map[string][]progress.Event // by the job's key
	moved  chan struct{}               // closed at the next event

	drawing sync.Mutex
	drawn   map[string][]part // of the state drawnOf, by role and page
	drawnOf *state
}

// part is a section of a page, or its head, as HTML.
type part struct {
	ID    string `json:"id"`
	HTML  string `json:"html"`
	still bool
}

func newFollower(ctx context.Context, h *hub.Hub) follower {
	return follower{ctx: ctx, h: h, events: map[string][]progress.Event{}, moved: make(chan struct{})}
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
	f.events[key] = all
	close(f.moved)
	f.moved = make(chan struct{})
}

// look returns a state that was true at most age ago.
func (f *follower) look(age time.Duration) *state {
	f.mu.Lock()
	defer f.mu.Unlock()
	var before *hub.Seen
	if f.last != nil {
		if time.Since(f.last.made) < age || !isClosed(f.last.Changed) && !isClosed(f.last.moved) {
			return f.last
		}
		before = f.last.Seen
	}
	now := f.h.Look(before)
	running := map[string]bool{}
	for _, j := range now.Jobs {
		running[j.Key] = j.State == job.Running
	}
	maps.DeleteFunc(f.events, func(key string, _ []progress.Event) bool { return !running[key] })
	f.last = newState(now, maps.Clone(f.events))
	f.last.moved = f.moved
	return f.last
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// draw returns the parts of a page that nobody types into.
func (f *follower) draw(s *state, role job.Role, uri *url.URL) ([]part, error) {
	f.drawing.Lock()
	defer f.drawing.Unlock()
	if f.drawnOf != s {
		f.drawnOf, f.drawn = s, map[string][]part{}
	}
	key := string(role) + " " + uri.String()
	if parts, known := f.drawn[key]; known {
		return parts, nil
	}
	name, args := find(uri.Path)
	v := &view{state: s, Role: role, Args: args, Query: uri.Query()}
	c := kinds[name].make(v)
	if c == nil {
		return nil, errUnknown
	}
	parts, err := c.parts(v)
	f.drawn[key] = slices.DeleteFunc(parts, func(p part) bool { return p.still })
	return f.drawn[key], err
}

// serveEvents sends the parts of a page, then those that changed, and the pieces of a job's log. It
// keeps nothing for a slow browser, which gets the newest parts once it reads again.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request, who job.Person) error {
	uri, err := url.ParseRequestURI(r.URL.Query().Get("page"))
	if err != nil {
		return fmt.Errorf("%w: %q", errUnknown, plaintext.ShortLine(r.URL.Query().Get("page")))
	}
	name, args := find(uri.Path)
	if k, known := kinds[name]; !known || k.once {
		return errUnknown
	}
	s := &stream{out: http.NewResponseController(w), w: w, sent: map[string]string{}}
	now := p.look(0)
	parts, err := p.draw(now, who.Role, uri)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if err := s.write("retry: 1000\n\n"); err != nil {
		return nil // the browser is gone
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var logs <-chan job.Log
	if name == "jobs/*" {
		n, _ := strconv.ParseUint(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("log")), 10, 64) // 0 is the begin
		logs = p.followLog(ctx, who, args[0], n)
	}
	err = s.sendParts(parts)
	beat := time.NewTicker(heart)
	defer beat.Stop()
	var due <-chan time.Time // when changes are sent
	for err == nil {
		changed, moved := now.Changed, now.moved
		if due != nil {
			changed, moved = nil, nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.ctx.Done():
			return nil
		case <-changed:
			due = time.After(pause)
		case <-moved:
			due = time.After(pause)
		case <-due:
			due, now = nil, p.look(pause)
			if !p.h.IsStill(who) {
				return nil
			}
			if parts, err = p.draw(now, who.Role, uri); err == nil {
				err = s.sendParts(parts)
			}
		case l := <-logs:
			err = s.send("log", l.N, plaintext.Visible(l.Text))
		case <-beat.C:
			c, _ := r.Cookie(cookieName) // it was there
			if _, err = p.h.SignedIn(ctx, c.Value); err == nil {
				err = s.write(": still here\n\n")
			}
		}
	}
	return nil // the browser comes back, and then hears why
}

// stream is the answer to one browser.
type stream struct {
	w    http.ResponseWriter
	out  *http.ResponseController
	sent map[string]string // HTML by ID
}

func (s *stream) write(text string) error {
	if err := s.out.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.out.Flush()
}

// send sends an event. id is where a log goes on, 0 for others.
func (s *stream) send(event string, id uint64, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	head := ""
	if id > 0 {
		head = fmt.Sprintf("id: %d\n", id)
	}
	return s.write(fmt.Sprintf("%sevent: %s\ndata: %s\n\n", head, event, text))
}

func (s *stream) sendParts(parts []part) error {
	for _, p := range parts {
		if s.sent[p.ID] == p.HTML {
			continue
		}
		s.sent[p.ID] = p.HTML
		if err := s.send("part", 0, p); err != nil {
			return err
		}
	}
	return nil
}

// followLog sends the pieces of a job's log from a number on, until ctx ends.
func (p *Page) followLog(ctx context.Context, who job.Person, id string, n uint64) <-chan job.Log {
	pieces := make(chan job.Log)
	go func() {
		for ctx.Err() == nil {
			l, err := ask[job.Log](ctx, p, who, job.VerbJobLog, job.LogWish{ID: id, N: n, Now: true})
			if err != nil || l.Text == "" {
				_ = run.Sleep(ctx, pause)
				continue
			}
			n = l.N
			select {
			case pieces <- l:
			case <-ctx.Done():
			}
		}
	}()
	return pieces
}

// shownLog is what a page has of a job's log, and where the log goes on.
type shownLog struct {
	Text string
	Next uint64
	Full bool // there may be more
}

// loadLog reads the log of the page's job from the query's "log" on.
func loadLog(ctx context.Context, p *Page, who job.Person, v *view) error {
	v.Log.Next, _ = strconv.ParseUint(v.Query.Get("log"), 10, 64) // 0 is the begin
	for range maxLog {
		l, err := ask[job.Log](ctx, p, who, job.VerbJobLog, job.LogWish{ID: v.Args[0], N: v.Log.Next, Now: true})
		if err != nil || l.Text == "" {
			return nil // the page is right without it
		}
		v.Log.Text += plaintext.Visible(l.Text)
		v.Log.Next = l.N
	}
	v.Log.Full = true
	return nil
}
