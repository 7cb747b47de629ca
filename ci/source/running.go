package source

import (
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/progress"
)

// running are the tests at work, in the order in which they began or went on.
type running struct {
	mu    sync.Mutex
	tests []runningTest
}

type runningTest struct{ pkg, name string }

// note takes in one event. A test that is paused waits for others; when a package
// ends, so do tests of it that never said so.
func (r *running) note(e testEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := runningTest{e.Package, e.Test}
	switch e.Action {
	case "run", "cont":
		if e.Test != "" && !slices.Contains(r.tests, t) {
			r.tests = append(r.tests, t)
		}
	case "pause", "pass", "fail", "skip":
		r.tests = slices.DeleteFunc(r.tests, func(o runningTest) bool { return o == t || o.pkg == t.pkg && t.name == "" })
	}
}

// longest names the test that has been at work longest. One that has a subtest at
// work only waits for it.
func (r *running) longest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tests {
		waits := slices.ContainsFunc(r.tests, func(o runningTest) bool {
			return o.pkg == t.pkg && strings.HasPrefix(o.name, t.name+"/")
		})
		if !waits {
			return t.pkg + " " + t.name
		}
	}
	return ""
}

const redrawEvery = time.Second

// show tells step what is at work until the returned function is called: also
// while nothing happens, because a step draws not all that it is told in a hurry,
// and after the last of it a test may be silent for minutes.
func (r *running) show(step *progress.Step) (stop func()) {
	done := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		tick := time.NewTicker(redrawEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if test := r.longest(); test != "" {
				step.Detail(test)
			}
		}
	})
	return func() {
		close(done)
		drawing.Wait()
	}
}
