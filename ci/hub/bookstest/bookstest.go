// Package bookstest compares what boards noted in files of their own with what a hub says of their jobs.
// Only simulated boards write such files.
package bookstest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/localfile"
)

// Event is a line of a board's file.
type Event struct {
	At      time.Time
	Job     string
	Attempt int
	What    string // begin, write, sigint, end
	Kind    fleet.Kind
}

// maxFileBytes limits a board's file.
const maxFileBytes = 64 << 20

// Note adds an event to a board's file. A file takes a line whole, also of a process that is killed.
func Note(file string, o job.Order, what string, kind fleet.Kind) error {
	line, err := json.Marshal(Event{time.Now(), o.Job.ID, o.Job.Claim.Attempt, what, kind})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Read reads a board's file. A board without one never did anything.
func Read(file string) (all []Event, err error) {
	data, err := localfile.Read(file, maxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range bytes.Lines(data) {
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, e)
	}
	return all, err
}

// Audit returns all that a hub's audit has, the newest last.
func Audit(ctx context.Context, c *access.Client) (all []hub.Record, err error) {
	for before := uint64(0); ; {
		a, err := access.Ask[hub.Audit](ctx, c, job.VerbAudit, job.ListWish{Before: before})
		if err != nil || len(a.Records) == 0 {
			return all, err
		}
		all = append(a.Records, all...)
		if before = a.First; before <= 1 {
			return all, nil
		}
	}
}

// Request is a request of the audit.
type Request struct {
	job.Change
	At time.Time
}

// Accepted returns the requests of a verb that the hub took, the newest first. It audits one that it
// refuses a second time, perhaps after those of others.
func Accepted(all []hub.Record, verb string) (taken []Request) {
	refused := map[[2]string]int{}
	for _, r := range slices.Backward(all) {
		same := [2]string{r.Who, r.What}
		var c job.Change
		switch {
		case r.Verb != verb:
		case r.Refused != "":
			refused[same]++
		case refused[same] > 0:
			refused[same]--
		case json.Unmarshal([]byte(r.What), &c) == nil:
			taken = append(taken, Request{c, r.At})
		}
	}
	return taken
}

// book is what is known while the boards' files are read.
type book struct {
	jobs    map[string]job.Job
	endedAt map[string]time.Time // when the hub was told first
	ran     map[string]bool      // a board's file has the end
	broken  []error
}

// Check returns the rules that are broken: each board is begun by one job at a time and not after that
// has ended, nothing is written after the end, each job ended once, with what the board's file says.
// files are those of all boards, by name.
func Check(jobs []job.Change, audit []hub.Record, files map[string][]Event) error {
	b := &book{jobs: map[string]job.Job{}, endedAt: map[string]time.Time{}, ran: map[string]bool{}}
	for _, c := range jobs {
		b.jobs[c.Job.ID] = c.Job
		if c.Job.State != job.Ended || c.Job.Result == nil {
			b.breaks("job %s is %s without an end", c.Job.ID, c.Job.State)
		}
	}
	for _, c := range Accepted(audit, job.VerbEnd) {
		b.endedAt[c.Job.ID] = c.At
		if r := b.jobs[c.Job.ID].Result; r == nil || !reflect.DeepEqual(r, c.Job.Result) {
			b.breaks("job %s ended with %+v, and with %+v", c.Job.ID, c.Job.Result, r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b.checkBoard(name, files[name])
	}
	for id, j := range b.jobs {
		if j.Result != nil && (j.Result.Kind == fleet.Passed || j.Result.Kind == fleet.Checks) && !b.ran[id] {
			b.breaks("job %s is %s, and no board's file has it", id, j.Result.Kind)
		}
	}
	return errors.Join(b.broken...)
}

func (b *book) breaks(format string, args ...any) {
	b.broken = append(b.broken, fmt.Errorf(format, args...))
}

func (b *book) checkBoard(board string, all []Event) {
	var now Event // the last begin without an end
	for _, e := range all {
		if at, ended := b.endedAt[e.Job]; ended && e.At.After(at) {
			b.breaks("%s: %s of job %s is %v after its end", board, e.What, e.Job, e.At.Sub(at))
		}
		switch {
		case e.What == "begin":
			b.checkBegin(board, now, e)
			now = e
		case e.Job != now.Job || e.Attempt != now.Attempt:
			b.breaks("%s: %s of job %s, attempt %d, while job %s, attempt %d was at work", board, e.What, e.Job, e.Attempt, now.Job, now.Attempt)
		case e.What == "end":
			b.ran[e.Job], now = true, Event{}
			if j := b.jobs[e.Job]; j.Result == nil || j.Result.Kind != e.Kind || j.Name != board {
				b.breaks("%s: job %s ended as %s; the hub says %+v of %s", board, e.Job, e.Kind, j.Result, j.Name)
			}
		}
	}
	if now.Job != "" && !b.isUnsure(now.Job) {
		b.breaks("%s: job %s was begun and not ended, and the hub says %+v", board, now.Job, b.jobs[now.Job].Result)
	}
}

// checkBegin checks a begin, before which another was the last one without an end. The process of that
// one was killed if it is an earlier attempt, or a job of which the hub knows no end of the board.
func (b *book) checkBegin(board string, now, e Event) {
	killed := now.Job == e.Job && now.Attempt < e.Attempt
	gone := now.Job != e.Job && b.isUnsure(now.Job)
	if now.Job != "" && !killed && !gone {
		b.breaks("%s: job %s, attempt %d was begun while job %s, attempt %d was at work", board, e.Job, e.Attempt, now.Job, now.Attempt)
	}
	if b.ran[e.Job] {
		b.breaks("%s: job %s was begun again after its end", board, e.Job)
	}
}

func (b *book) isUnsure(id string) bool {
	r := b.jobs[id].Result
	return r != nil && r.Kind == fleet.Unsure
}
