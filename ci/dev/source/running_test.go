package source

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/layers/progress"
)

// The test that is shown is the one that keeps a person waiting.
func TestLongestRunning(t *testing.T) {
	for _, tt := range []struct{ name, events, want string }{
		{"nothing", "", ""},
		{"one", "run A", "p A"},
		{"ended", "run A, pass A, run B", "p B"},
		{"failed", "run A, fail A", ""},
		{"skipped", "run A, skip A, run B", "p B"},
		{"the first of two", "run A, cont B", "p A"},
		{"paused", "run A, pause A, run B", "p B"},
		{"went on after another", "run A, pause A, run B, pause B, cont B, cont A", "p B"},
		{"subtest", "run A, run A/x", "p A/x"},
		{"subtest that ended", "run A, run A/x, pass A/x", "p A"},
		{"subtests that wait", "run A, run A/x, pause A/x", "p A"},
		{"parallel subtests", "run A, run A/x, pause A/x, run A/y, pause A/y, cont A/y, cont A/x", "p A/y"},
		{"a name that begins alike", "run A, run AB/x", "p A"},
		{"deep", "run A, run A/x, run A/x/y, pass A/x/y", "p A/x"},
		{"output is no event", "run A, pass A, output A", ""},
		{"package ended", "run A, run A/x, fail ", ""},
	} {
		var r running
		for event := range strings.SplitSeq(tt.events, ", ") {
			action, test, _ := strings.Cut(event, " ")
			r.note(testEvent{Action: action, Package: "p", Test: test})
		}
		if got := r.longest(); got != tt.want {
			t.Errorf("%s: longest() = %q; want %q", tt.name, got, tt.want)
		}
	}
}

// A test that starts right after another and then says nothing is shown all the same.
func TestShowsTheSilentTest(t *testing.T) {
	var r running
	seen := &details{}
	ctx := progress.With(context.Background(), progress.New(seen))
	step := progress.Start(ctx, "test", 2, progress.Tasks)
	for _, e := range []testEvent{{Action: "run", Test: "Quick"}, {Action: "pass", Test: "Quick"}, {Action: "run", Test: "Silent"}} {
		e.Package = "p"
		r.note(e)
		r.show(step)
	}
	for end := time.Now().Add(10 * time.Second); seen.last() != "p Silent" && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	step.End("", nil)
	ended := seen.len()
	if seen.last() != "" || !seen.had("p Silent") {
		t.Errorf("details %q; want the silent test, and then the end", seen.all)
	}
	time.Sleep(time.Second + 200*time.Millisecond)
	if seen.len() != ended {
		t.Errorf("details %q; want none after the end", seen.all)
	}
}

// details keeps what a step says that it is doing.
type details struct {
	mu  sync.Mutex
	all []string
}

func (d *details) Event(e progress.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, e.Detail)
}

func (d *details) Close() {}

func (d *details) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all)
}

func (d *details) last() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[len(d.all)-1]
}

func (d *details) had(text string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, got := range d.all {
		if got == text {
			return true
		}
	}
	return false
}
