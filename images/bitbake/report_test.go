package bitbake

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"slipway/layers/htmlstyle/pagetest"
)

// recordedRun reads a recorded run of bitbake 2.8.
func recordedRun(t *testing.T, name string, state State) Record {
	t.Helper()
	r := watched(t, unpacked(t, "../testdata/bitbake/recorded/2.8.1/"+name+".events.gz"), "", state == Failed)
	r.Board, r.State, r.Task, r.Log = "virt", state, "build", "/b/recording/board/bitbake.log"
	r.Ended = r.Started.Add(4 * time.Second)
	return r
}

func renderedPage(t *testing.T, r Record) string {
	t.Helper()
	page, err := r.renderPage()
	must(t, err)
	return string(page)
}

// The page of a real run, whole and as records of other ages and failures have it.
func TestPageOfRecordedRun(t *testing.T) {
	tests := []struct {
		name, run  string
		change     func(*Record)
		want, lack []string
	}{
		{"whole", "fresh", func(r *Record) {
			r.Load = &Load{Processors: 2, StartMS: 10, EveryMS: 1000, Busy: []int{100, 51, 50}, Disk: []int{0, 20, 0}, Waits: []int{30, 0, 0}}
		}, []string{
			"Critical path: 8 tasks,", "tiny-image do_deploy", "Tasks at a time", "2 tasks, ", "2 tasks 0s 500ms 1s", "Processors 67 % busy on average",
			"2, 67 % busy on average", "waited for a processor", "One sample in 1s", "Slowest tasks", "libc do_compile",
		}, []string{"left out"}},
		{"without pressure", "fresh", func(r *Record) {
			r.Load = &Load{Processors: 2, EveryMS: 2000, Busy: []int{100}, Disk: []int{0}}
		}, []string{"Processors 100 % busy", "One sample in 2s"}, []string{"waited for a processor"}},
		{"without a load", "fresh", func(*Record) {}, []string{"Critical path", "Tasks at a time"}, []string{"Processors"}},
		{"without a tree", "fresh", func(r *Record) { uncritical(r) }, []string{"tiny-image do_deploy"}, []string{"Critical path", "critical path"}},
		{"a load of no sense", "fresh", func(r *Record) { r.Load = &Load{Busy: []int{1}} }, nil, []string{"waiting for a disk"}},
		{"failed", "broken", func(r *Record) { r.State = Failed }, []string{"broken-image do_compile", "Log: /b/recording/board/bitbake/tmp"}, nil},
		{"nothing ran", "nothing", func(*Record) {}, nil, []string{"Timeline", "Critical path", "Slowest"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state := Succeeded
			if tt.run == "broken" {
				state = Failed
			}
			r := recordedRun(t, tt.run, state)
			tt.change(&r)
			page := renderedPage(t, r)
			pagetest.Check(t, page)
			text := pagetest.Text(page)
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("the page lacks %q: %s", want, text)
				}
			}
			for _, lack := range tt.lack {
				if strings.Contains(text, lack) {
					t.Errorf("the page says %q: %s", lack, text)
				}
			}
		})
	}
}

func uncritical(r *Record) {
	for i := range r.Tasks {
		r.Tasks[i].Critical = false
	}
}

// A record may have neither logs, nor a chain, nor a load.
func TestPageOfSmallRecord(t *testing.T) {
	var r Record
	must(t, json.Unmarshal([]byte(`{"board": "b", "state": "succeeded", "started": "2026-01-02T03:04:05Z", "ended": "2026-01-02T05:04:05Z", "log": "/b/bitbake.log",
		"workers": 2, "tasks": [{"recipe": "gcc", "task": "do_compile", "startMs": 100, "tookMs": 7000000, "outcome": "succeeded"}]}`), &r))
	page := renderedPage(t, r)
	pagetest.Check(t, page)
	for _, want := range []string{"gcc do_compile began at 100ms 1h56m40s", "30m 1h 1h30m 2h"} {
		if text := pagetest.Text(page); !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
}

func TestLogLink(t *testing.T) {
	for log, want := range map[string]string{
		"/b/virt/bitbake/tmp/work/liba/temp/log.do_fetch.1": "./bitbake/tmp/work/liba/temp/log.do_fetch.1",
		"/b/virt/a b#c?d%e": "./a%20b%23c%3Fd%25e",
		"/b/virt/x:y":       "./x:y",
		"/b/other/log":      "",
		"/b/virtual/log":    "",
		"relative":          "",
		"":                  "",
	} {
		if got := (Record{Log: "/b/virt/bitbake.log"}).logLink(log); got != want {
			t.Errorf("logLink(%q) = %q; want %q", log, got, want)
		}
	}
	if got := (Record{}).logLink("/b/virt/log"); got != "" {
		t.Errorf("logLink without a folder = %q; want none", got)
	}
}

// Names on bars and marks of the axis have room on a phone.
func TestAxis(t *testing.T) {
	for end, want := range map[int64]string{
		1:           "0s",
		800:         "0s,(100ms),200ms,(300ms),400ms,(500ms),600ms,(700ms),800ms",
		40_000:      "0s,(5s),10s,(15s),20s,(25s),30s,(35s),40s",
		200_000:     "0s,(30s),1m,(1m30s),2m,(2m30s),3m",
		14_400_000:  "0s,(30m),1h,(1h30m),2h,(2h30m),3h,(3h30m),4h",
		360_000_000: "0s,(13h),26h,(39h),52h,(65h),78h,(91h)",
	} {
		var got []string
		for _, tick := range axisTicks(end) {
			if tick.Minor {
				tick.Text = "(" + tick.Text + ")"
			}
			got = append(got, tick.Text)
		}
		if strings.Join(got, ",") != want {
			t.Errorf("axisTicks(%d) = %s; want %s", end, strings.Join(got, ","), want)
		}
	}
}

// The graph of tasks has the mean of each column.
func TestRunningGraph(t *testing.T) {
	r := Record{Workers: 2, Tasks: []Task{{StartMS: 0, TookMS: 1000}, {StartMS: 500, TookMS: 250}}}
	if got, want := r.runningGraph(1000).Areas[0].Path, "M0.0,100V50.0H500.0V0.0H750.0V50.0H1000.0V100Z"; got != want {
		t.Errorf("runningGraph = %s; want %s", got, want)
	}
}

// Of too many bars, those of the critical path stay.
func TestBarsOfCriticalPathStay(t *testing.T) {
	r := Record{Tasks: []Task{{Recipe: "r", Task: "do_x", TookMS: 1, Critical: true, Outcome: TaskSucceeded}}}
	for range 2 * maxBars {
		r.Tasks = append(r.Tasks, Task{Recipe: "r", Task: "do_x", StartMS: 10, TookMS: 500, Outcome: TaskSucceeded})
	}
	c := r.layOutChart()
	if last := c.Bars[len(c.Bars)-1]; len(c.Bars) != maxBars || c.Cut != maxBars+1 || last.Kind != "rest critical" {
		t.Errorf("%d bars, %d cut, the last %q; want %d, %d and the critical one", len(c.Bars), c.Cut, last.Kind, maxBars, maxBars+1)
	}
}

// Both build systems' tasks have the colours of what they do.
func TestBarKind(t *testing.T) {
	for task, want := range map[string]string{
		"do_fetch": "fetch", "do_compile": "compile", "do_dpkg_build": "compile", "do_rootfs": "image", "do_rootfs_install": "image",
		"do_bootstrap": "image", "do_image_wic": "image", "do_package": "rest",
	} {
		if got := (Task{Task: task, Outcome: TaskSucceeded}).barKind(); got != want {
			t.Errorf("%s is drawn as %q; want %q", task, got, want)
		}
	}
	if got := (Task{Task: "do_fetch", Outcome: TaskSucceeded, Shared: Hit}).barKind(); got != "hit" {
		t.Errorf("a task from shared state is drawn as %q", got)
	}
}
