package bitbake

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// chainOf names the tasks of a chain.
func chainOf(tasks []Task) string {
	var names []string
	for _, t := range tasks {
		names = append(names, t.taskName())
	}
	return strings.Join(names, " ")
}

// Each bitbake's event log has the tree of tasks. In the chain, each task needs the one before.
func TestChainOfRecordedRuns(t *testing.T) {
	logs, err := filepath.Glob("../testdata/bitbake/recorded/*/fresh.events.gz")
	must(t, err)
	for _, path := range logs {
		console, err := os.ReadFile(filepath.Join(filepath.Dir(path), "fresh.txt"))
		must(t, err)
		rec := watched(t, unpacked(t, path), string(console), false)
		chain := rec.criticalChain()
		got := chainOf(chain)
		if want := ".do_share tiny-image.do_compile tiny-image.do_share tiny-image.do_deploy"; !strings.HasSuffix(got, want) || len(chain) < 6 {
			t.Errorf("%s: chain = %s; want one that ends with a library's %s", path, got, want)
		}
		for i := range chain[1:] {
			if chain[i].endMS() > chain[i+1].StartMS {
				t.Errorf("%s: %s ends at %d ms, after the next begins", path, chain[i].taskName(), chain[i].endMS())
			}
		}
		again := watched(t, unpacked(t, filepath.Join(filepath.Dir(path), "again.events.gz")), "", false)
		if len(again.criticalChain()) == 0 {
			t.Errorf("%s: no chain in the build from shared state", path)
		}
	}
	if len(logs) < 5 {
		t.Errorf("%d versions are recorded; want 5", len(logs))
	}
}

func TestCriticalChain(t *testing.T) {
	a := Task{Recipe: "a", Task: "do_x", TookMS: 10}
	b := Task{Recipe: "b", Task: "do_x", TookMS: 30}
	c := Task{Recipe: "c", Task: "do_x", StartMS: 30, TookMS: 10}
	d := Task{Recipe: "d", Task: "do_x", StartMS: 50, TookMS: 5}
	hit := c
	hit.Shared = Hit
	early := c
	early.StartMS = 20
	other := b
	other.Config = "m"
	tests := []struct {
		name  string
		tasks []Task
		needs needs
		want  string
	}{
		{"the longer need", []Task{a, b, c}, needs{"c.do_x": {"a.do_x", "b.do_x"}}, "b.do_x c.do_x"},
		{"what it needs, not what ended last", []Task{a, b, c}, needs{"c.do_x": {"a.do_x"}, "b.do_x": nil}, "b.do_x"},
		{"through a task that did not run", []Task{a, b, c, d}, needs{"d.do_x": {"no.do_x"}, "no.do_x": {"c.do_x"}, "c.do_x": {"b.do_x"}}, "b.do_x c.do_x d.do_x"},
		{"shared state needs nothing", []Task{a, b, hit, d}, needs{"d.do_x": {"c.do_x"}, "c.do_x": {"b.do_x"}}, "b.do_x"},
		{"a need that ended too late", []Task{a, b, early}, needs{"c.do_x": {"b.do_x"}}, "b.do_x"},
		{"of a configuration", []Task{other, c}, needs{"c.do_x": {"mc:m:b.do_x"}}, "mc:m:b.do_x c.do_x"},
		{"a loop of tasks without time", []Task{{Recipe: "e", Task: "t"}, {Recipe: "f", Task: "t"}}, needs{"e.t": {"f.t"}, "f.t": {"e.t"}}, "e.t f.t"},
		{"a loop of tasks that did not run", []Task{d}, needs{"d.do_x": {"e.t"}, "e.t": {"f.t"}, "f.t": {"e.t"}}, "d.do_x"},
		{"no tree", []Task{a, b, c, d}, nil, ""},
		{"nothing", nil, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tasks := append([]Task(nil), tt.tasks...)
			markCritical(tasks, tt.needs)
			if got := chainOf(Record{Tasks: tasks}.criticalChain()); got != tt.want {
				t.Errorf("criticalChain = %q; want %q", got, tt.want)
			}
		})
	}
}

// A long chain costs no more than its length.
func TestLongChain(t *testing.T) {
	n, tasks := needs{}, []Task(nil)
	for i := range maxTasks {
		task := Task{Recipe: fmt.Sprint("r", i), Task: "do_x", StartMS: int64(i), TookMS: 1}
		if i > 0 {
			n[task.taskName()] = []string{tasks[i-1].taskName()}
		}
		tasks = append(tasks, task)
	}
	markCritical(tasks, n)
	if chain := (Record{Tasks: tasks}).criticalChain(); len(chain) != maxTasks {
		t.Errorf("criticalChain has %d tasks; want %d", len(chain), maxTasks)
	}
}
