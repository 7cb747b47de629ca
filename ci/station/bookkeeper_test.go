package station

import (
	"encoding/json"
	"reflect"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/job"
)

// audit returns what the hub did, without what it refused.
func (w *world) audit() (all []hub.Record) {
	w.t.Helper()
	a, err := access.Ask[hub.Audit](w.t.Context(), w.admin, job.VerbAudit, struct{}{})
	if err != nil {
		w.t.Fatal(err)
	}
	return a.Records
}

// accepted returns the requests of a verb that the hub took.
func accepted(all []hub.Record, verb string) (changes []job.Change, at []time.Time) {
	for _, r := range all {
		var c job.Change
		switch {
		case r.Verb != verb:
		case r.Refused != "" && len(changes) > 0: // of the request before it
			changes, at = changes[:len(changes)-1], at[:len(at)-1]
		case json.Unmarshal([]byte(r.What), &c) == nil:
			changes, at = append(changes, c), append(at, r.At)
		}
	}
	return changes, at
}

// keepBooks reads the boards' files, the hub's jobs and the audit, and checks that they agree: each
// board is begun by one job at a time and not after that has ended, each job ended once, with what the
// board's file says, and the counts add up.
func (w *world) keepBooks(benches ...*bench) {
	w.t.Helper()
	list, err := access.Ask[job.Changes](w.t.Context(), w.admin, job.VerbJobList, struct{}{})
	if err != nil {
		w.t.Fatal(err)
	}
	jobs := map[string]job.Job{}
	for _, c := range list.Jobs {
		jobs[c.Job.ID] = c.Job
		if c.Job.State != job.Ended || c.Job.Result == nil {
			w.t.Errorf("job %s is %s without an end", c.Job.ID, c.Job.State)
		}
	}
	ends, at := accepted(w.audit(), job.VerbEnd)
	endedAt := map[string]time.Time{}
	for i, c := range ends {
		id := c.Job.ID
		if _, twice := endedAt[id]; !twice {
			endedAt[id] = at[i]
		}
		if r := jobs[id].Result; r == nil || !reflect.DeepEqual(r, c.Job.Result) {
			w.t.Errorf("job %s ended with %+v, and with %+v", id, c.Job.Result, r)
		}
	}
	ran := map[string]bool{}
	for _, b := range benches {
		for _, name := range b.names {
			w.checkBoard(name, b.events(name), jobs, endedAt, ran)
		}
	}
	for id, j := range jobs {
		if j.Result != nil && (j.Result.Kind == fleet.Passed || j.Result.Kind == fleet.Checks) && !ran[id] {
			w.t.Errorf("job %s is %s, and no board's file has it", id, j.Result.Kind)
		}
	}
}

func (w *world) checkBoard(board string, all []Event, jobs map[string]job.Job, endedAt map[string]time.Time, ran map[string]bool) {
	w.t.Helper()
	var now Event // the last begin without an end
	for _, e := range all {
		j := jobs[e.Job]
		if at, ended := endedAt[e.Job]; ended && e.At.After(at) {
			w.t.Errorf("%s: %s of job %s is %v after its end", board, e.What, e.Job, e.At.Sub(at))
		}
		switch {
		case e.What == "begin":
			killed := now.Job == e.Job && now.Attempt < e.Attempt
			gone := now.Job != e.Job && jobs[now.Job].Result != nil && jobs[now.Job].Result.Kind == fleet.Unsure
			if now.Job != "" && !killed && !gone {
				w.t.Errorf("%s: job %s, attempt %d was begun while job %s, attempt %d was at work", board, e.Job, e.Attempt, now.Job, now.Attempt)
			}
			if ran[e.Job] {
				w.t.Errorf("%s: job %s was begun again after its end", board, e.Job)
			}
			now = e
		case e.Job != now.Job || e.Attempt != now.Attempt:
			w.t.Errorf("%s: %s of job %s, attempt %d, while job %s, attempt %d was at work", board, e.What, e.Job, e.Attempt, now.Job, now.Attempt)
		case e.What == "end":
			ran[e.Job], now = true, Event{}
			if j.Result == nil || j.Result.Kind != e.Kind || j.Name != board {
				w.t.Errorf("%s: job %s ended as %s; the hub says %+v of %s", board, e.Job, e.Kind, j.Result, j.Name)
			}
		}
	}
	if r := jobs[now.Job].Result; now.Job != "" && (r == nil || r.Kind != fleet.Unsure) {
		w.t.Errorf("%s: job %s was begun and not ended, and the hub says %+v", board, now.Job, r)
	}
}
