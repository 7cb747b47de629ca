// Package progress carries what a long step is doing to whoever watches: bars
// on a terminal, one line a step in CI, JSON lines for a script. Steps find the
// reporter in their context; without one they report to nobody.
package progress

import (
	"context"
	"sync"
	"time"
)

// State is where a step stands.
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
	Detail    string    `json:"detail,omitempty"`
	ElapsedMS int64     `json:"elapsedMs"`
}

// Sink draws events. A reporter calls it from one goroutine at a time.
type Sink interface {
	Event(Event)
	Close()
}

// Reporter hands out steps and passes their events to one sink.
type Reporter struct {
	mu     sync.Mutex
	sink   Sink
	closed bool
}

// New returns a reporter that draws on s.
func New(s Sink) *Reporter { return &Reporter{sink: s} }

// Close lets the sink finish its output.
func (r *Reporter) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.sink.Close()
}

func (r *Reporter) send(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.sink.Event(e)
	}
}

type key struct{}

// With returns a context whose steps report to r.
func With(ctx context.Context, r *Reporter) context.Context {
	return context.WithValue(ctx, key{}, r)
}

// Start begins a step. A total of 0 means that its end is not known beforehand.
func Start(ctx context.Context, name string, total int64, unit Unit) *Step {
	r, _ := ctx.Value(key{}).(*Reporter)
	s := &Step{reporter: r, began: time.Now(), event: Event{Step: name, State: Running, Total: total, Unit: unit}}
	s.report()
	return s
}

// Run wraps work in a step of no known length; what it returns is the step's
// last detail.
func Run(ctx context.Context, name string, work func(*Step) (string, error)) error {
	s := Start(ctx, name, 0, "")
	detail, err := work(s)
	s.End(detail, err)
	return err
}

// Step is one thing that takes time. Its methods may be called from any goroutine.
type Step struct {
	mu       sync.Mutex
	reporter *Reporter
	began    time.Time
	sent     time.Time
	later    *time.Timer // reports what came too soon after the last report
	event    Event
}

// Every event costs a redraw; more than this many a second serve nobody.
const interval = 50 * time.Millisecond

// Add counts n more units.
func (s *Step) Add(n int64) {
	s.update(func(e *Event) { e.Count += n })
}

// Set is Add for work whose count is told as a whole, and may begin anew.
func (s *Step) Set(count int64) {
	s.update(func(e *Event) { e.Count = count })
}

// Detail says in a few words what is being done at the moment.
func (s *Step) Detail(text string) {
	s.update(func(e *Event) { e.Detail = text })
}

func (s *Step) update(change func(*Event)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event.State != Running {
		return
	}
	change(&s.event)
	wait := interval - time.Since(s.sent)
	switch {
	case s.later != nil:
	case wait > 0:
		s.later = time.AfterFunc(wait, s.catchUp)
	default:
		s.reportLocked()
	}
}

func (s *Step) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later = nil
	if s.event.State == Running {
		s.reportLocked()
	}
}

// End closes the step: failed where err is not nil, done otherwise.
func (s *Step) End(detail string, err error) {
	if err != nil {
		s.close(Failed, err.Error())
		return
	}
	s.close(Done, detail)
}

// Reuse closes the step as one that had nothing to do.
func (s *Step) Reuse(detail string) { s.close(Cached, detail) }

func (s *Step) close(state State, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event.State != Running {
		return
	}
	s.event.State, s.event.Detail = state, detail
	if s.later != nil {
		s.later.Stop()
	}
	s.reportLocked()
}

func (s *Step) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportLocked()
}

func (s *Step) reportLocked() {
	s.sent = time.Now()
	if s.reporter == nil {
		return
	}
	e := s.event
	if e.Total > 0 {
		e.Count = min(e.Count, e.Total) // work that is done twice is counted twice
	}
	e.Time, e.ElapsedMS = s.sent, s.sent.Sub(s.began).Milliseconds()
	s.reporter.send(e)
}
