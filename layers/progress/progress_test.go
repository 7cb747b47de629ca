package progress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/layers/plaintext/terminaltest"
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

// Each run appends its events to the file that SLIPWAY_PROGRESS names, and writes nothing else.
func TestEventsInAFile(t *testing.T) {
	dir := t.TempDir()
	name, screen := filepath.Join(dir, "events.jsonl"), filepath.Join(dir, "screen")
	f, err := os.Create(screen)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Setenv("SLIPWAY_PROGRESS", "json:"+name)
	for _, step := range []string{"first", "second"} {
		if err := Check(); err != nil {
			t.Fatal(err)
		}
		r := reporterOn(t, f)
		Start(With(t.Context(), r), step, 0, "").End("", nil)
		r.Close()
	}
	text, err := os.ReadFile(name)
	steps := []string{}
	for line := range bytes.Lines(text) {
		var e Event
		err = errors.Join(err, json.Unmarshal(line, &e))
		steps = append(steps, e.Step+" "+string(e.State))
	}
	if want := []string{"first running", "first done", "second running", "second done"}; err != nil || !slices.Equal(steps, want) {
		t.Errorf("the file has %q, %v; want %q", steps, err, want)
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v; want a file that only its owner reads", info, err)
	}
	if shown, err := os.ReadFile(screen); err != nil || len(shown) > 0 {
		t.Errorf("on the screen: %q, %v; want nothing", shown, err)
	}
}

// Check names a file that cannot be opened, and ForOutput does not go on without it.
func TestNoEventsFile(t *testing.T) {
	dir := t.TempDir()
	for name, folder := range map[string]string{dir: filepath.Dir(dir), filepath.Join(dir, "none", "events.jsonl"): dir} {
		t.Setenv("SLIPWAY_PROGRESS", "json:"+name)
		want := "SLIPWAY_PROGRESS: open " + name + ": "
		if err := Check(); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "\nnext: ls -la "+folder) {
			t.Errorf("Check() = %v; want %q and the folder %s", err, want, folder)
		}
		if sink, err := ForOutput(os.Stderr); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("ForOutput = %v, %v; want %q", sink, err, want)
		}
	}
	t.Setenv("SLIPWAY_PROGRESS", "json:")
	if err := Check(); err == nil || !strings.Contains(err.Error(), "=json:: want json, json:FILE, or nothing") {
		t.Errorf("Check() = %v; want the forms", err)
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
	Start(ctx, "wait", 0, "").End("no answer\x1b[2J\nand more", nil)
	Start(ctx, "smoke", 0, "").End("1 failed", errors.New("1 failed"))
	err := Run(ctx, "boot", func(*Step) (string, error) { return "on", errors.New("the command says why") })
	r.Close()
	if err == nil {
		t.Error("Run lost the error")
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "cached build") || !strings.HasSuffix(lines[1], "s  no answer[2J") ||
		!strings.HasSuffix(lines[2], "s  1 failed") || !strings.HasPrefix(lines[3], "  failed boot") || !strings.HasSuffix(lines[3], "0.0s") {
		t.Errorf("lines = %q; want one for each step, with the first line of its detail, and no error that is returned", lines)
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

func TestCountText(t *testing.T) {
	for _, tt := range []struct {
		event Event
		want  string
	}{
		{Event{Unit: Bytes}, ""},
		{Event{}, ""},
		{Event{Unit: Bytes, Count: 274 << 20, Total: 1536 << 20}, "274 of 1536 MiB"},
		{Event{Unit: Bytes, Count: 274 << 20, Total: 1536 << 20, PerSecond: 98 << 20}, "274 of 1536 MiB, 98 MiB/s, 12s left"},
		{Event{Unit: Bytes, Count: 1536 << 20, Total: 1536 << 20, PerSecond: 98 << 20}, "1536 of 1536 MiB, 98 MiB/s"},
		{Event{Unit: Bytes, Count: 40 << 20, PerSecond: 2 << 20}, "40 MiB, 2 MiB/s"},
		{Event{Unit: Bytes, Count: 1 << 19, Total: 1 << 20, PerSecond: 1 << 10}, "512 of 1024 KiB, 1 KiB/s, 8m32s left"},
		{Event{Unit: Bytes, Total: 100 << 30, PerSecond: 1 << 20}, "0 of 102400 MiB, 1 MiB/s, 28h26m40s left"},
		{Event{Unit: Tasks, Count: 120, Total: 3000, PerSecond: 7}, "120 of 3000"},
	} {
		if got := strings.TrimSpace(CountText(tt.event)); got != tt.want {
			t.Errorf("CountText(%+v) = %q; want %q", tt.event, got, tt.want)
		}
	}
}

func TestSpeed(t *testing.T) {
	var v speed
	began := time.Unix(0, 0)
	for _, tt := range []struct {
		after time.Duration
		count int64
		want  int64
	}{
		{0, 500, 0}, // what was there at the start is not speed
		{900 * time.Millisecond, 900, 0},
		{2 * time.Second, 2500, 1000},
		{2500 * time.Millisecond, 9000, 1000}, // too soon
		{3 * time.Second, 2500, 700},
		{4 * time.Second, 4500, 1090},
		{5 * time.Second, 0, 0}, // it began anew
		{7 * time.Second, 100, 50},
	} {
		if got := v.measure(tt.count, began.Add(tt.after)); got != tt.want {
			t.Errorf("after %s, at %d: %d per second; want %d", tt.after, tt.count, got, tt.want)
		}
	}
}

func TestPhases(t *testing.T) {
	seen := &keptEvent{}
	s := Start(With(t.Context(), New(seen)), "flash", 100, Bytes)
	s.Add(100)
	s.Phase("reading back", 40)
	s.Add(30)
	s.End("", nil)
	if e := seen.last; e.Count != 30 || e.Total != 40 {
		t.Errorf("the last event is %+v; want 30 of 40", e)
	}
}

// hidingSink notes which steps are shown, and which are taken away.
type hidingSink struct{ seen chan string }

func (s hidingSink) Event(e Event)    { s.seen <- string(e.State) + " " + e.Step }
func (s hidingSink) hide(step string) { s.seen <- "hide " + step }
func (s hidingSink) Close()           {}

// A silent command shows that it works, until something else is shown. It shows nothing while
// a step does, while a person is asked, or while another program has the terminal.
func TestWatch(t *testing.T) {
	type reporter struct {
		*Reporter
		ctx context.Context
	}
	for name, tt := range map[string]struct {
		do   func(r reporter)
		want []string
	}{
		"silent":           {func(reporter) {}, []string{"running working"}},
		"then a text":      {func(r reporter) { r.showIdle(); r.Yield([]byte("x\n")) }, []string{"running working", "hide working", "running working"}},
		"then a step":      {func(r reporter) { r.showIdle(); Start(r.ctx, "boot", 0, "").End("", nil) }, []string{"running working", "hide working", "running boot", "done boot", "running working"}},
		"beside a step":    {func(r reporter) { Start(r.ctx, "boot", 0, "") }, []string{"running boot"}},
		"a question":       {func(r reporter) { r.Yield([]byte("Type yes to go on: ")) }, nil},
		"an answer":        {func(r reporter) { r.Yield([]byte("yes? ")); r.Yield([]byte("well\n")) }, []string{"running working"}},
		"another program":  {func(r reporter) { Release(r.ctx); r.Yield([]byte("x\n")) }, nil},
		"it ended":         {func(r reporter) { Release(r.ctx)() }, []string{"running working"}},
		"the command":      {func(r reporter) { r.showIdle(); r.Close(); r.Yield([]byte("bye\n")) }, []string{"running working", "hide working"}},
		"without a watch":  {func(r reporter) { r.idle = nil; r.Yield([]byte("x")); Release(r.ctx)() }, nil},
		"without reporter": {func(reporter) { Release(t.Context())() }, []string{"running working"}},
	} {
		t.Run(name, func(t *testing.T) {
			seen := hidingSink{make(chan string, 20)}
			r := New(seen)
			r.Watch("working")
			r.idle.timer.Stop() // showIdle is called below
			tt.do(reporter{r, With(t.Context(), r)})
			if r.idle != nil {
				r.idle.timer.Stop()
				r.showIdle()
				r.showIdle() // once is enough
			}
			close(seen.seen)
			var got []string
			for text := range seen.seen {
				got = append(got, text)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("shown: %q; want %q", got, tt.want)
			}
		})
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

// reporterOn returns a reporter on ForOutput's sink for f.
func reporterOn(t *testing.T, f *os.File) *Reporter {
	t.Helper()
	sink, err := ForOutput(f)
	if err != nil {
		t.Fatal(err)
	}
	return New(sink)
}

// A terminal shows the states in colour, and no more of a detail than fits into its line.
func TestBarsOnTerminal(t *testing.T) {
	for name, value := range map[string]string{"NO_COLOR": "", "CI": "", "TERM": "xterm"} {
		t.Setenv(name, value)
	}
	user, tty := terminaltest.Open(t)
	terminaltest.Resize(t, tty, 60)
	r := reporterOn(t, tty)
	ctx := With(t.Context(), r)
	Start(ctx, "flash", 100, Bytes).End("written to the disk and read back", nil)
	Start(ctx, "boot", 0, "").End("", errors.New("no answer"))
	r.Close()
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(user) // the kernel returns EIO at the end of a terminal
	shown := string(text)
	for _, want := range []string{"\x1b[32mdone  \x1b[0m flash", "\x1b[1;31mfailed\x1b[0m boot", "0.0s  written to the disk …\r\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal shows %q; want %q in it", shown, want)
		}
	}
}

// A serial console says that it has 0 columns and 0 rows. It shows the same as 80 columns do.
func TestBarsWithoutSize(t *testing.T) {
	for name, value := range map[string]string{"NO_COLOR": "1", "CI": "", "TERM": "xterm"} {
		t.Setenv(name, value)
	}
	user, tty := terminaltest.Open(t)
	r := reporterOn(t, tty)
	ctx := With(t.Context(), r)
	flash, boot := Start(ctx, "flash", 100<<20, Bytes), Start(ctx, "boot", 0, "")
	flash.Set(50 << 20)
	time.Sleep(500 * time.Millisecond) // mpb draws every 150 ms
	flash.End("written", nil)
	boot.End("ssh", nil)
	r.Close()
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(user) // the kernel returns EIO at the end of a terminal
	for _, want := range []string{"  flash               [======>-------] 50 of 100 MiB", "\r\n  boot ", "\x1b[2A\x1b[J", "done   boot"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the terminal shows %q; want %q in it", text, want)
		}
	}
}

// Two steps of a command may read the same file.
func TestWarnOnce(t *testing.T) {
	var out bytes.Buffer
	ctx := With(t.Context(), New(JSON(&out)))
	for _, text := range []string{"a", "b", "a"} {
		Warn(ctx, text)
		Warn(t.Context(), text)
	}
	if got := strings.Count(out.String(), `"done"`); got != 2 {
		t.Errorf("%d warnings; want 2\n%s", got, out.String())
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
