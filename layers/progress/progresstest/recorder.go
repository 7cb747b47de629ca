// Package progresstest records what steps report, for tests.
package progresstest

import (
	"strings"
	"sync"

	"slipway/layers/progress"
)

// Recorder is a sink that keeps all events.
type Recorder struct {
	mu  sync.Mutex
	all []progress.Event
}

// Event keeps an event.
func (r *Recorder) Event(e progress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

// Close does nothing.
func (r *Recorder) Close() {}

// Last returns the last event of a step; its Step is "" if there was none.
func (r *Recorder) Last(step string) (last progress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		if e.Step == step {
			last = e
		}
	}
	return last
}

// Saw reports whether a step had a detail with the text in it.
func (r *Recorder) Saw(step, text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		if e.Step == step && strings.Contains(e.Detail, text) {
			return true
		}
	}
	return false
}
