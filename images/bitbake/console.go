package bitbake

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// How bitbake names a failed task and its log on the console, since 1.46.
var (
	taskFailed = plaintext.Regexp(`^ERROR: Task \((.+\.bb):(do_\w+)\) failed with exit code`)
	failureLog = plaintext.Regexp(`^ERROR: Logfile of failure stored in: (/.+)$`)
)

// console collects the failed tasks and the paths of their logs that bitbake's console text names.
type console struct {
	failed []Failure
	logs   []string
}

// readConsoleLine adds a warning or error in a line of bitbake's console text to the record, and a
// failed task to w.console. Before the first task event, it shows other lines as progress.
func (w *watch) readConsoleLine(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if warning, ok := strings.CutPrefix(text, "WARNING: "); ok {
		w.addMessage(&w.rec.Warnings, warning)
	} else if message, ok := strings.CutPrefix(text, "ERROR: "); ok {
		w.addMessage(&w.rec.Errors, message)
		w.console.noteFailure(text)
	} else if len(w.queues) == 0 && strings.TrimSpace(text) != "" {
		w.ready.Detail(strings.TrimPrefix(text, "NOTE: "))
	}
}

// noteFailure adds the failed task or the log that an error line names, up to maxFailures of each.
// bitbake writes both in the same order.
func (c *console) noteFailure(text string) {
	if m := taskFailed().FindStringSubmatch(text); m != nil && len(c.failed) < maxFailures {
		c.failed = append(c.failed, Failure{Recipe: recipeOfFile(m[1]), Task: m[2]})
	}
	if m := failureLog().FindStringSubmatch(text); m != nil && len(c.logs) < maxFailures {
		c.logs = append(c.logs, m[1])
	}
}

// addConsoleFailures adds the failures that the console text named to the record, with causes and
// the ends of their logs, and raises its count. It is for an event log, perhaps cut off, with none.
func (w *watch) addConsoleFailures() {
	w.rec.Counts.Failed = max(w.rec.Counts.Failed, int64(len(w.console.failed)))
	for i, f := range w.console.failed {
		if i < len(w.console.logs) {
			f.Log = w.console.logs[i]
			f.Tail = logTail(f.Log)
			f.Why, f.Next = explainKnownFailure(f.Tail)
		}
		w.rec.Failures = append(w.rec.Failures, f)
	}
}

// explainFailure adds to bitbake's error the failed tasks, the paths of their logs (and the end of
// a single one), known causes, the page and the next step. Other errors stay as they are.
func (r Record) explainFailure(err error) error {
	var failure *run.Failure
	if !errors.As(err, &failure) {
		return err
	}
	var b, known strings.Builder
	if len(r.Failures) > 0 {
		fmt.Fprintf(&b, "failed: %s", r.failedTasks())
	}
	said := reasons{}
	for _, f := range r.Failures {
		if f.Log != "" {
			fmt.Fprintf(&b, "\n  log of the failed task: %s", f.Log)
		}
		if len(r.Failures) == 1 && f.Tail != "" {
			fmt.Fprintf(&b, "\n  | %s", strings.ReplaceAll(f.Tail, "\n", "\n  | "))
		}
		said.writeReason(&known, f.Why, f.Next)
	}
	why, next := explainKnownFailure(failure.Tail + "\n" + strings.Join(r.Errors, "\n"))
	said.writeReason(&known, why, next)
	if r.Disk.Full && !strings.Contains(known.String(), "the disk is full") {
		said.writeReason(&known, fullWhy, fullNext)
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return fmt.Errorf("%s%w%s%s", strings.TrimPrefix(b.String(), "\n"), err, r.namePage(), cmp.Or(known.String(), r.adviseLog(failure)))
}

// namePage returns a line break and the path of the run's page beside its log, "" without a log.
func (r Record) namePage() string {
	if r.Log == "" {
		return ""
	}
	_, page := r.fileNames()
	return "\n  page of the build: " + filepath.Join(filepath.Dir(r.Log), page)
}

// adviseLog returns "\nnext: less" and the first failed task's log, or else bitbake's, "" if none.
func (r Record) adviseLog(failure *run.Failure) string {
	for _, f := range r.Failures {
		if f.Log != "" {
			return "\nnext: less " + plaintext.Quote(f.Log)
		}
	}
	if failure.Log == "" {
		return ""
	}
	return "\nnext: less " + plaintext.Quote(failure.Log)
}

// reasons are the explanations that were written already.
type reasons map[string]bool

// writeReason writes a cause and its next step, unless that cause was written before.
func (s reasons) writeReason(b *strings.Builder, why, next string) {
	if why == "" || s[why] {
		return
	}
	s[why] = true
	fmt.Fprintf(b, "\n  why: %s\nnext: %s", why, next)
}
