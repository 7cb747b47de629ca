package source

import (
	"slices"
	"strings"

	"slipway/layers/progress"
)

// running are the tests at work, in the order in which they began or went on.
type running struct{ tests []runningTest }

type runningTest struct{ pkg, name string }

// note takes in one event. A test that is paused waits for others; when a package
// ends, so do tests of it that never said so.
func (r *running) note(e testEvent) {
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

// show tells step what is at work, if anything is.
func (r *running) show(step *progress.Step) {
	if test := r.longest(); test != "" {
		step.Detail(test)
	}
}
