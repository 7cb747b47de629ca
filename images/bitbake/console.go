package bitbake

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// What bitbake writes where it has no terminal. The text has been the same since
// 1.46; a line that is not known is passed by.
var (
	taskBegun   = lazy.Regexp(`^NOTE: Running (setscene |noexec )?task (\d{1,9}) of (\d{1,9}) \((.+\.bb):(do_\w+)\)$`)
	taskEnded   = lazy.Regexp(`^NOTE: recipe (\S+): task (do_\w+): (Started|Succeeded|Failed)$`)
	taskFailed  = lazy.Regexp(`^ERROR: Task \((.+\.bb):(do_\w+)\) failed with exit code`)
	sceneFailed = lazy.Regexp(`^WARNING: Setscene task \((.+\.bb):(do_\w+)\) failed with exit code`)
	failureLog  = lazy.Regexp(`^ERROR: Logfile of failure stored in: (/.+)$`)
	recipesRead = lazy.Regexp(`^Parsing of (\d{1,9}) \.bb files complete \((\d{1,9}) cached, \d+ parsed\)\. (\d{1,9}) targets, (\d{1,9}) skipped, \d+ masked, (\d{1,9}) errors\.$`)
)

// console is the state of a build as far as the console text tells it.
type console struct {
	running map[string]*runningTask // by "recipe do_task"
	tasks   []Task
	failed  []Failure
	logs    []string
	at      map[string]counted
	hits    int64
	parsed  Parsed
	shown   bool // it has moved the bars
}

// counted is the last "task 3 of 54" of a queue.
type counted struct{ number, total int64 }

// readConsoleLine handles the next line of bitbake's output.
func (w *watch) readConsoleLine(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.console
	switch {
	case strings.HasPrefix(text, "ERROR: "):
		w.addMessage(&w.rec.Errors, text[len("ERROR: "):])
		c.noteFailure(text)
	case strings.HasPrefix(text, "WARNING: "):
		w.addMessage(&w.rec.Warnings, text[len("WARNING: "):])
		if m := sceneFailed().FindStringSubmatch(text); m != nil { // the task itself follows
			delete(c.running, recipeOfFile(m[1])+" "+m[2])
		}
	case strings.HasPrefix(text, "NOTE: Running "):
		w.noteTaskStart(text)
	case strings.HasPrefix(text, "NOTE: recipe "):
		w.noteTaskEnd(text)
	default:
		w.readOtherLine(text)
	}
}

// readOtherLine handles a line that is about no task.
func (w *watch) readOtherLine(text string) {
	if m := recipesRead().FindStringSubmatch(text); m != nil {
		w.console.parsed = Parsed{Recipes: atoi(m[3]), Cached: atoi(m[2]), Skipped: atoi(m[4]), Errors: atoi(m[5])}
	}
	if w.events == 0 && !w.console.shown && len(w.queues) == 0 && strings.TrimSpace(text) != "" {
		w.ready.Detail(strings.TrimPrefix(text, "NOTE: "))
	}
}

func atoi(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64) // at most nine digits, by the pattern
	return n
}

// noteTaskStart adds a task that started. Its number counts the tasks before it,
// whether they ran or were already done.
func (w *watch) noteTaskStart(text string) {
	m := taskBegun().FindStringSubmatch(text)
	if m == nil {
		return
	}
	c := &w.console
	if c.running == nil {
		c.running, c.at, w.taskShown = map[string]*runningTask{}, map[string]counted{}, time.Now()
	}
	queue := "tasks"
	if m[1] == "setscene " {
		queue = "setscene"
	}
	c.at[queue] = counted{atoi(m[2]), atoi(m[3])}
	if m[1] != "noexec " && len(c.running) < maxTasks {
		r := &runningTask{key: m[4], began: time.Now(), pct: -1}
		r.task = Task{Recipe: recipeOfFile(m[4]), Task: m[5], StartMS: time.Since(w.rec.Started).Milliseconds()}
		c.running[r.task.Recipe+" "+m[5]] = r
	}
}

// showConsoleIfSilent moves the bars by the console text while the event log is silent
// for too long.
func (w *watch) showConsoleIfSilent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events > 0 || w.console.at == nil || time.Since(w.taskShown) < eventsLate {
		return
	}
	w.showConsoleQueues()
}

// showConsoleQueues moves the bar of each queue that the console text named.
func (w *watch) showConsoleQueues() {
	for _, queue := range []string{"setscene", "tasks"} {
		if w.console.at[queue].total > 0 {
			w.showConsoleQueue(queue)
		}
	}
}

// showConsoleQueue moves a queue's bar to the counters in the console text.
func (w *watch) showConsoleQueue(queue string) {
	c := &w.console
	c.shown = true
	at := c.at[queue]
	w.moveBar(queue, at.number, min(at.total, maxTasks))
	if queue == "tasks" {
		w.rec.Counts.Total = at.total
	}
	w.running = c.running
	w.showRunning()
	w.running = map[string]*runningTask{}
}

// noteTaskEnd records how a task ended. The line names the recipe with its version.
func (w *watch) noteTaskEnd(text string) {
	m := taskEnded().FindStringSubmatch(text)
	if m == nil || m[3] == "Started" {
		return
	}
	c := &w.console
	r := c.findTask(m[1], m[2])
	if r == nil {
		return
	}
	r.task.TookMS = time.Since(r.began).Milliseconds()
	r.task.Outcome = TaskSucceeded
	if m[3] == "Failed" {
		r.task.Outcome = TaskFailed
	}
	c.finishTask(r)
}

// findTask returns the running task whose recipe is the name without its version.
func (c *console) findTask(versioned, task string) *runningTask {
	for at := len(versioned); at > 0; at = strings.LastIndexByte(versioned[:at], '-') {
		if r := c.running[versioned[:at]+" "+task]; r != nil {
			return r
		}
	}
	return nil
}

// finishTask moves a task from the running ones to the finished ones.
func (c *console) finishTask(r *runningTask) {
	delete(c.running, r.task.Recipe+" "+r.task.Task)
	if base, scene := strings.CutSuffix(r.task.Task, "_setscene"); scene {
		if r.task.Outcome != TaskSucceeded {
			return // the task itself follows
		}
		r.task.Task, r.task.Shared = base, Hit
		c.hits++
	}
	if len(c.tasks) < maxTasks {
		c.tasks = append(c.tasks, r.task)
	}
}

// noteFailure collects the failed tasks and, in the same order, their logs.
func (c *console) noteFailure(text string) {
	if m := taskFailed().FindStringSubmatch(text); m != nil && len(c.failed) < maxFailures {
		c.failed = append(c.failed, Failure{Recipe: recipeOfFile(m[1]), Task: m[2]})
	}
	if m := failureLog().FindStringSubmatch(text); m != nil && len(c.logs) < maxFailures {
		c.logs = append(c.logs, m[1])
	}
}

// recordFromConsole fills the record from the console text.
func (w *watch) recordFromConsole() {
	c := &w.console
	if c.parsed.Recipes > 0 && w.rec.Parsed.Recipes == 0 {
		w.rec.Parsed = c.parsed
	}
	if c.at == nil {
		return
	}
	w.rec.Source = "console"
	w.showConsoleQueues()
	for _, r := range c.running {
		r.task.Outcome = TaskStopped
		if len(c.tasks) < maxTasks {
			c.tasks = append(c.tasks, r.task)
		}
	}
	w.rec.Tasks = append(w.rec.Tasks, c.tasks...)
	w.rec.Setscene.Hits = c.hits
	w.rec.Counts.Ran = int64(len(c.tasks)) - c.hits
	w.addConsoleFailures()
}

// addConsoleFailures adds the failures that the console text named.
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

// explainFailure adds the failed tasks, the ends of their logs and known causes to
// bitbake's error. bitbake's last lines alone seldom tell the cause.
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

// namePage returns a line with the page of the run, which save writes beside the log.
func (r Record) namePage() string {
	if r.Log == "" {
		return ""
	}
	_, page := r.fileNames()
	return "\n  page of the build: " + filepath.Join(filepath.Dir(r.Log), page)
}

// adviseLog returns the next step where no cause is known: to read the log.
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

// writeReason writes an explanation once.
func (s reasons) writeReason(b *strings.Builder, why, next string) {
	if why == "" || s[why] {
		return
	}
	s[why] = true
	fmt.Fprintf(b, "\n  why: %s\nnext: %s", why, next)
}
