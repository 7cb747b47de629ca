// Package progress turns the events of long steps into bars on a terminal, lines in CI, or JSON
// lines for a script. Steps find the reporter in their context. Without one they report nothing.
package progress

import (
	"context"
	"sync"
	"time"

	"slipway/layers/plaintext"
)

// State is the state of a step.
type State string

// The states of a step, in the order in which it goes through them.
const (
	Running State = "running"
	Done    State = "done"
	Cached  State = "cached" // nothing to do: an earlier result serves
	Failed  State = "failed"
)

// Unit says what a step counts.
type Unit string

// The units that steps count in.
const (
	Bytes Unit = "bytes"
	Tasks Unit = "tasks"
)

// Event is one report of one step.
type Event struct {
	Time      time.Time `json:"time"`
	Step      string    `json:"step"`
	State     State     `json:"state"`
	Count     int64     `json:"count,omitempty"`
	Total     int64     `json:"total,omitempty"`
	Unit      Unit      `json:"unit,omitempty"`
	PerSecond int64     `json:"perSecond,omitempty"` // how many units, lately
	Detail    string    `json:"detail,omitempty"`
	ElapsedMS int64     `json:"elapsedMs"`

	Returned bool `json:"-"` // Detail is the command's error, which lines leave to the command
}

// Sink draws events. A reporter calls it from one goroutine at a time.
type Sink interface {
	Event(Event)
	Close()
}

// Reporter passes the events of steps to one sink.
type Reporter struct {
	mu     sync.Mutex
	sink   Sink
	closed bool
	idle   *idle // nil: nobody watches
	warned map[string]bool
}

// New returns a reporter that draws on s.
func New(s Sink) *Reporter { return &Reporter{sink: s, warned: map[string]bool{}} }

// Close lets the sink finish its output. Later events are dropped.
func (r *Reporter) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.idle.hide(r.sink)
	r.sink.Close()
}

// sendEvent hides "working" and passes an event to the sink, in printable text; not after Close.
func (r *Reporter) sendEvent(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		e.Step, e.Detail = plaintext.Printable(e.Step), plaintext.Printable(e.Detail)
		r.idle.hide(r.sink)
		r.sink.Event(e)
		r.idle.note(e)
	}
}

type contextKey struct{}

// With returns a context whose steps report to r.
func With(ctx context.Context, r *Reporter) context.Context {
	return context.WithValue(ctx, contextKey{}, r)
}

// Start begins a step and reports it to the Reporter of ctx, if there is one. A total of 0 means
// that the length is unknown.
func Start(ctx context.Context, name string, total int64, unit Unit) *Step {
	r, _ := ctx.Value(contextKey{}).(*Reporter)
	s := &Step{reporter: r, began: time.Now(), event: Event{Step: name, State: Running, Total: total, Unit: unit}}
	s.reportLocked() // nobody else has it yet
	return s
}

// Relay reports an event of another machine's step to the Reporter of ctx, if there is one.
func Relay(ctx context.Context, e Event) {
	if r, _ := ctx.Value(contextKey{}).(*Reporter); r != nil {
		r.sendEvent(e)
	}
}

// Warn reports a warning as a step that has ended. It reports each text once.
func Warn(ctx context.Context, text string) {
	if r, _ := ctx.Value(contextKey{}).(*Reporter); r.isNewWarning(text) {
		Start(ctx, "warning", 0, "").End(text, nil)
	}
}

// isNewWarning reports whether a text is new, and remembers it. It returns false for a nil reporter.
func (r *Reporter) isNewWarning(text string) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.warned[text]
	r.warned[text] = true
	return !known
}

// Run calls work in a step of unknown length, and ends the step with work's text or error.
func Run(ctx context.Context, name string, work func(*Step) (string, error)) error {
	s := Start(ctx, name, 0, "")
	detail, err := work(s)
	s.End(detail, err)
	return err
}

// Step is one piece of work that takes time. Any goroutine may call its methods.
type Step struct {
	mu       sync.Mutex
	reporter *Reporter
	began    time.Time
	sent     time.Time
	later    *time.Timer // reports a value that came too soon after the last report
	event    Event
	speed    speed
}

// speed measures how fast a count grows. Recent growth has more weight.
type speed struct {
	since     time.Time
	count     int64
	perSecond float64
}

// measure returns averaged units per second, 0 until reports are a second apart, or if count falls.
func (v *speed) measure(count int64, now time.Time) int64 {
	took := now.Sub(v.since).Seconds()
	switch {
	case v.since.IsZero() || count < v.count:
		*v = speed{since: now, count: count}
	case took >= 1:
		lately := float64(count-v.count) / took
		if v.perSecond > 0 {
			lately = 0.7*v.perSecond + 0.3*lately
		}
		*v = speed{now, count, lately}
	}
	return int64(v.perSecond)
}

// minInterval limits the events of a step: each costs a redraw.
const minInterval = 50 * time.Millisecond

// Add adds n units to the count.
func (s *Step) Add(n int64) {
	s.updateEvent(func(e *Event) { e.Count += n })
}

// Set sets the count, for work that knows its whole count or may start again.
func (s *Step) Set(count int64) {
	s.updateEvent(func(e *Event) { e.Count = count })
}

// Phase sets the detail and the total, and counts from 0 again.
func (s *Step) Phase(text string, total int64) {
	s.updateEvent(func(e *Event) {
		s.speed = speed{}
		e.Detail, e.Count, e.Total, e.PerSecond = text, 0, total, 0
	})
}

// Detail sets the text that says what the step is doing.
func (s *Step) Detail(text string) {
	s.updateEvent(func(e *Event) { e.Detail = text })
}

// updateEvent changes the event of a running step, and reports it at most every minInterval.
func (s *Step) updateEvent(change func(*Event)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event.State != Running {
		return
	}
	change(&s.event)
	wait := minInterval - time.Since(s.sent)
	switch {
	case s.later != nil:
	case wait > 0:
		s.later = time.AfterFunc(wait, s.reportLater)
	default:
		s.reportLocked()
	}
}

// reportLater reports a value that came too soon after the last report.
func (s *Step) reportLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later = nil
	if s.event.State == Running {
		s.reportLocked()
	}
}

// End closes the step: failed with err's text if err is not nil, done with detail otherwise. The
// caller returns err, so the line of a failed step does not show it, unless detail is the same text.
func (s *Step) End(detail string, err error) {
	if err != nil {
		s.closeStep(Failed, err.Error(), detail != err.Error())
		return
	}
	s.closeStep(Done, detail, false)
}

// Reuse ends the step as Cached: an earlier result is still valid.
func (s *Step) Reuse(detail string) { s.closeStep(Cached, detail, false) }

// closeStep ends a step, unless it has ended. returned says that the command prints detail.
func (s *Step) closeStep(state State, detail string, returned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event.State != Running {
		return
	}
	s.event.State, s.event.Detail, s.event.Returned = state, detail, returned
	if s.later != nil {
		s.later.Stop()
	}
	s.reportLocked()
}

// reportLocked sends the step's event with its times and speed. The caller holds s.mu.
func (s *Step) reportLocked() {
	s.sent = time.Now()
	if s.reporter == nil {
		return
	}
	s.event.PerSecond = s.speed.measure(s.event.Count, s.sent)
	e := s.event
	if e.Total > 0 {
		e.Count = min(e.Count, e.Total) // work that is done twice is counted twice
	}
	e.Time, e.ElapsedMS = s.sent, s.sent.Sub(s.began).Milliseconds()
	s.reporter.sendEvent(e)
}
