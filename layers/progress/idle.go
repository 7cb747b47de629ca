package progress

import (
	"bytes"
	"context"
	"time"
)

// idle shows a step while a command has no open step and prints nothing, so that no command is
// silent for long. The step disappears as soon as something else is shown.
type idle struct {
	name  string
	timer *time.Timer
	open  map[string]bool // the steps that run
	shown bool

	asked    bool // the last text is a question
	released bool // another program has the terminal
}

// idleAfter is how long a command is silent before the idle step appears.
const idleAfter = 800 * time.Millisecond

// hider is a sink that can remove a step without printing a line for its end.
type hider interface{ hide(step string) }

// Watch shows a step of this name whenever the command is silent, if the sink can hide a step.
func (r *Reporter) Watch(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.sink.(hider); ok {
		r.idle = &idle{name: name, open: map[string]bool{}}
		r.idle.timer = time.AfterFunc(idleAfter, r.showIdle)
	}
}

// showIdle shows the idle step, unless a step is open, a question waits or Release is in effect.
func (r *Reporter) showIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.idle; !r.closed && !i.asked && !i.released && !i.shown && len(i.open) == 0 {
		i.shown = true
		r.sink.Event(Event{Time: time.Now(), Step: i.name, State: Running})
	}
}

// Yield removes the idle step before the command prints text. If the text does not end its line, it
// is a question: then the idle step stays away until a step ends.
func (r *Reporter) Yield(text []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle != nil && !r.closed {
		r.idle.hide(r.sink)
		r.idle.asked = !bytes.HasSuffix(text, []byte("\n"))
		r.idle.timer.Reset(idleAfter)
	}
}

// Release stops the idle step until back is called: another program or a person has the terminal.
func Release(ctx context.Context) (back func()) {
	r, _ := ctx.Value(contextKey{}).(*Reporter)
	r.setQuiet(true)
	return func() { r.setQuiet(false) }
}

// setQuiet hides the idle step, if quiet until the next call with quiet false. r may be nil.
func (r *Reporter) setQuiet(quiet bool) {
	if r == nil || r.idle == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle.hide(r.sink)
	r.idle.released = quiet
	r.idle.timer.Reset(idleAfter)
}

// hide removes the idle step from the sink, if it is shown.
func (i *idle) hide(sink Sink) {
	if i != nil && i.shown {
		i.shown = false
		sink.(hider).hide(i.name)
	}
}

// note updates which steps are open. After the end of one, the idle step may come again.
func (i *idle) note(e Event) {
	switch {
	case i == nil:
	case e.State == Running:
		i.open[e.Step] = true
	default:
		delete(i.open, e.Step)
		i.asked = false
		i.timer.Reset(idleAfter)
	}
}
