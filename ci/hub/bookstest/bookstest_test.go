package bookstest

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/hub"
	"slipway/ci/job"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func at(sec int) time.Time { return noon.Add(time.Duration(sec) * time.Second) }

// ended is a job of the board b1 that ended, and its request of the audit.
func ended(t *testing.T, id string, kind fleet.Kind, sec int) (job.Change, hub.Record) {
	t.Helper()
	c := job.Change{Job: job.Job{ID: id, Name: "b1", State: job.Ended, Result: &job.Result{Result: fleet.Result{Kind: kind}, Attempts: 1}}}
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, hub.Record{At: at(sec), Who: "bench-1", Verb: job.VerbEnd, What: string(data)}
}

// A board's file that agrees breaks no rule, and each fault breaks the rule that it is about.
func TestCheck(t *testing.T) {
	one, endOne := ended(t, "one", fleet.Passed, 10)
	two, endTwo := ended(t, "two", fleet.Passed, 20)
	_, otherEnd := ended(t, "one", fleet.Checks, 11)
	lost, endLost := ended(t, "two", fleet.Unsure, 20)
	refused := otherEnd
	refused.Refused = "it has ended"
	open := one
	open.Job.State, open.Job.Result = job.Running, nil
	event := func(sec int, id string, attempt int, what string, kind fleet.Kind) Event {
		return Event{at(sec), id, attempt, what, kind}
	}
	whole := []Event{event(1, "one", 1, "begin", ""), event(2, "one", 1, "write", ""), event(3, "one", 1, "end", fleet.Passed)}
	next := []Event{event(11, "two", 1, "begin", ""), event(12, "two", 1, "end", fleet.Passed)}
	for _, tt := range []struct {
		name  string
		jobs  []job.Change
		audit []hub.Record
		file  []Event
		want  string // "": no rule is broken
	}{
		{"agrees", []job.Change{one, two}, []hub.Record{endOne, endTwo}, append(whole[:3:3], next...), ""},
		{"ended twice with one result", []job.Change{one}, []hub.Record{endOne, endOne}, whole, ""},
		{"ended with two results", []job.Change{one}, []hub.Record{endOne, otherEnd}, whole, "ended with"},
		{"another end was refused, after the request of others", []job.Change{one, two}, []hub.Record{otherEnd, endOne, refused, endTwo}, append(whole[:3:3], next...), ""},
		{"killed, and done in attempt 2", []job.Change{one}, []hub.Record{endOne}, []Event{whole[0], event(2, "one", 2, "begin", ""), event(3, "one", 2, "end", fleet.Passed)}, ""},
		{"killed, and nobody knows", []job.Change{lost}, []hub.Record{endLost}, []Event{event(11, "two", 1, "begin", "")}, ""},
		{"no end at the hub", []job.Change{open}, nil, whole, "without an end"},
		{"attempt 1 twice", []job.Change{one}, []hub.Record{endOne}, append([]Event{whole[0]}, whole...), "attempt 1 was begun while"},
		{"two jobs at once", []job.Change{one, two}, []hub.Record{endOne, endTwo}, []Event{whole[0], next[0], next[1]}, "was begun while job one"},
		{"a write of another job", []job.Change{one, two}, []hub.Record{endOne, endTwo}, []Event{whole[0], event(2, "two", 1, "write", ""), whole[2], next[0], next[1]}, "write of job two, attempt 1, while job one"},
		{"begun again after its end", []job.Change{one}, []hub.Record{endOne}, append(whole[:3:3], event(4, "one", 2, "begin", ""), event(5, "one", 2, "end", fleet.Passed)), "begun again after its end"},
		{"a write after the hub heard of the end", []job.Change{one}, []hub.Record{endOne}, []Event{whole[0], event(12, "one", 1, "write", ""), event(13, "one", 1, "end", fleet.Passed)}, "2s after its end"},
		{"another kind", []job.Change{one}, []hub.Record{endOne}, []Event{whole[0], event(3, "one", 1, "end", fleet.Checks)}, "ended as checks failed"},
		{"passed, and not in the file", []job.Change{one}, []hub.Record{endOne}, nil, "no board's file has it"},
		{"begun, and not ended", []job.Change{one}, []hub.Record{endOne}, whole[:2], "was begun and not ended"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Check(tt.jobs, tt.audit, map[string][]Event{"b1": tt.file})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Check = %v; want %q", err, tt.want)
			}
		})
	}
}

// What is noted is read again. A board that did nothing has no file.
func TestNote(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if all, err := Read(file); err != nil || all != nil {
		t.Errorf("Read without a file = %v, %v; want nothing", all, err)
	}
	o := job.Order{Job: job.Job{ID: "one", Claim: &job.Claim{Attempt: 2}}}
	for _, what := range []string{"begin", "end"} {
		if err := Note(file, o, what, fleet.Passed); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Read(file)
	if err != nil || len(all) != 2 || all[1].Job != "one" || all[1].Attempt != 2 || all[1].What != "end" || all[1].Kind != fleet.Passed {
		t.Errorf("Read = %+v, %v; want begin and end of attempt 2", all, err)
	}
}
