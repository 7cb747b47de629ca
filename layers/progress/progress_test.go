package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"slipway/layers/terminal/terminaltest"
)

func TestJSONEvents(t *testing.T) {
	var out bytes.Buffer
	r := New(JSON(&out))
	ctx := With(t.Context(), r)
	s := Start(ctx, "flash", 10, Bytes)
	s.Add(10)
	s.End("all of it", nil)
	s.End("again", nil) // a step ends once
	r.Close()
	var states []State
	for line := range strings.Lines(out.String()) {
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Step != "flash" || e.Total != 10 {
			t.Errorf("event %+v; want step flash of 10", e)
		}
		states = append(states, e.State)
	}
	if len(states) < 2 || states[0] != Running || states[len(states)-1] != Done {
		t.Errorf("states = %v; want running first and done last", states)
	}
}

// No more is ever reported than there is to do.
func TestCountStaysBelowItsTotal(t *testing.T) {
	var out bytes.Buffer
	r := New(JSON(&out))
	ctx := With(t.Context(), r)
	known, open, told := Start(ctx, "known", 100, Tasks), Start(ctx, "open", 0, Bytes), Start(ctx, "told", 100, Tasks)
	for _, s := range []*Step{known, open} {
		s.Add(60)
		s.Add(59)
		s.End("", nil)
	}
	told.Set(80)
	told.Set(19)
	told.End("", nil)
	r.Close()
	last := map[string]int64{}
	for line := range strings.Lines(out.String()) {
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if last[e.Step] = e.Count; e.Total > 0 && e.Count > e.Total {
			t.Errorf("%d of %d", e.Count, e.Total)
		}
	}
	if last["known"] != 100 || last["open"] != 119 || last["told"] != 19 {
		t.Errorf("the last counts are %v; want 100 of 100, 119 of nothing known, and the 19 that were told", last)
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	r := New(Lines(&out))
	ctx := With(t.Context(), r)
	Start(ctx, "build", 0, "").Reuse("nothing changed")
	err := Run(ctx, "boot", func(*Step) (string, error) { return "", errors.New("no answer\x1b[2J\nand more") })
	r.Close()
	if err == nil {
		t.Error("Run lost the error")
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "cached build") || !strings.Contains(lines[1], "failed boot") {
		t.Errorf("lines = %q; want one for each step", lines)
	}
	if strings.Contains(out.String(), "\x1b") || strings.Contains(out.String(), "and more") {
		t.Errorf("output %q; want only the first line of a detail, without escapes", out.String())
	}
}

func TestLinesOfLongSteps(t *testing.T) {
	var out bytes.Buffer
	s := &lineSink{w: &out, open: map[string]running{}, stop: make(chan struct{})}
	r := New(s)
	ctx := With(t.Context(), r)
	tasks, bytes := Start(ctx, "parse", 3000, Tasks), Start(ctx, "flash", 64<<20, Bytes)
	tasks.Add(120)
	bytes.Add(16 << 20)
	bytes.Detail("verify")
	Start(ctx, "boot", 0, "").Detail("waits")
	time.Sleep(2 * minInterval) // what comes soon after a report is reported then
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		s.reportOpenSteps(time.Millisecond)
	}()
	time.Sleep(minInterval)
	r.Close()
	<-beating
	for _, want := range []string{"120 of 3000\n", "16 of 64 MiB  verify\n", "s  waits\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lines %q; want %q in them", out.String(), want)
		}
	}
}

func TestBarsEndAsLines(t *testing.T) {
	var out bytes.Buffer
	r := New(Bars(&out))
	ctx := With(t.Context(), r)
	known, open := Start(ctx, "flash", 100, Bytes), Start(ctx, "boot", 0, "")
	known.Add(40)
	known.End("written", nil)
	open.End("", errors.New("no answer"))
	Start(ctx, "never ended", 5, Tasks) // Close must not wait for it
	r.Close()
	for _, want := range []string{"done   flash", "failed boot"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q lacks %q", out.String(), want)
		}
	}
}

// A terminal shows the states in colour, and no more of a detail than fits into its line.
func TestBarsOnTerminal(t *testing.T) {
	for name, value := range map[string]string{"NO_COLOR": "", "CI": "", "TERM": "xterm"} {
		t.Setenv(name, value)
	}
	user, tty := terminaltest.Open(t)
	terminaltest.Resize(t, tty, 60)
	r := New(ForOutput(tty))
	ctx := With(t.Context(), r)
	Start(ctx, "flash", 100, Bytes).End("written to the disk and read back", nil)
	Start(ctx, "boot", 0, "").End("", errors.New("no answer"))
	r.Close()
	shown := terminaltest.Shown(t, user, tty)
	for _, want := range []string{"\x1b[32mdone  \x1b[0m flash", "\x1b[1;31mfailed\x1b[0m boot", "0.0s  written to the disk …\r\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal shows %q; want %q in it", shown, want)
		}
	}
}

func TestWithoutReporter(t *testing.T) {
	s := Start(t.Context(), "quiet", 0, "")
	s.Add(1)
	s.End("", nil)
}

type recorder struct{ events chan Event }

func (r recorder) Event(e Event) { r.events <- e }
func (recorder) Close()          {}

// What is said right after something else is shown all the same, a little later.
func TestLastDetailIsShown(t *testing.T) {
	events := make(chan Event, 100)
	step := Start(With(t.Context(), New(recorder{events})), "build", 0, "")
	for _, text := range []string{"one", "two", "three"} {
		step.Detail(text)
	}
	for late, shown := time.After(10*time.Second), ""; shown != "three"; {
		select {
		case e := <-events:
			shown = e.Detail
		case <-late:
			t.Fatalf("%q is shown; want the last detail", shown)
		}
	}
	step.End("built", nil)
	step.Detail("too late")
	if e := <-events; e.State != Done || e.Detail != "built" {
		t.Errorf("event %+v; want the end", e)
	}
	time.Sleep(2 * minInterval)
	if len(events) > 0 {
		t.Errorf("after the end came %+v", <-events)
	}
}

type keptEvent struct{ last Event }

func (k *keptEvent) Event(e Event) { k.last = e }
func (k *keptEvent) Close()        {}

func TestEventsAreClean(t *testing.T) {
	seen := &keptEvent{}
	Start(With(t.Context(), New(seen)), "s\x1b", 0, "").End("a\x1b[2K https://u:S3CRET@h/", nil)
	if seen.last.Step != "s" || seen.last.Detail != "a[2K https://h/" {
		t.Errorf("the event is %+v; want no control character and no login", seen.last)
	}
}
