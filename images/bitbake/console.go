package bitbake

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"slipway/layers/lazy"
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

// console is what the console text tells of a build.
type console struct {
	running map[string]*runs // by "recipe do_task"
	tasks   []Task
	failed  []Failure
	logs    []string
	at      map[string]counted
	hits    int64
	parsed  Parsed
	spoke   bool // it has moved the bars
}

// counted is the last "task 3 of 54" of a queue.
type counted struct{ number, total int64 }

// line takes the next line of bitbake's output.
func (w *watch) line(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.console
	switch {
	case strings.HasPrefix(text, "ERROR: "):
		w.message(&w.rec.Errors, text[len("ERROR: "):])
		c.failure(text)
	case strings.HasPrefix(text, "WARNING: "):
		w.message(&w.rec.Warnings, text[len("WARNING: "):])
		if m := sceneFailed().FindStringSubmatch(text); m != nil { // the task itself follows
			delete(c.running, recipeOf(m[1])+" "+m[2])
		}
	case strings.HasPrefix(text, "NOTE: Running "):
		w.begun(text)
	case strings.HasPrefix(text, "NOTE: recipe "):
		w.recipeLine(text)
	default:
		w.unknownLine(text)
	}
}

func (w *watch) unknownLine(text string) {
	if m := recipesRead().FindStringSubmatch(text); m != nil {
		w.console.parsed = Parsed{Recipes: atoi(m[3]), Cached: atoi(m[2]), Skipped: atoi(m[4]), Errors: atoi(m[5])}
	}
	if w.events == 0 && !w.console.spoke && len(w.queues) == 0 && strings.TrimSpace(text) != "" {
		w.ready.Detail(strings.TrimPrefix(text, "NOTE: "))
	}
}

func atoi(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64) // at most nine digits, by the pattern
	return n
}

// begun notes that a task began. Its number counts the tasks before it, whether
// they ran or were found done.
func (w *watch) begun(text string) {
	m := taskBegun().FindStringSubmatch(text)
	if m == nil {
		return
	}
	c := &w.console
	if c.running == nil {
		c.running, c.at, w.taskShown = map[string]*runs{}, map[string]counted{}, time.Now()
	}
	queue := "tasks"
	if m[1] == "setscene " {
		queue = "setscene"
	}
	c.at[queue] = counted{atoi(m[2]), atoi(m[3])}
	if m[1] != "noexec " && len(c.running) < maxTasks {
		r := &runs{key: m[4], began: time.Now(), pct: -1}
		r.task = Task{Recipe: recipeOf(m[4]), Task: m[5], StartMS: time.Since(w.rec.Started).Milliseconds()}
		c.running[r.task.Recipe+" "+m[5]] = r
	}
}

// tick lets the console speak where the event log has been silent for long.
func (w *watch) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events > 0 || w.console.at == nil || time.Since(w.taskShown) < eventsLate {
		return
	}
	w.speakAll()
}

func (w *watch) speakAll() {
	for _, queue := range []string{"setscene", "tasks"} {
		if w.console.at[queue].total > 0 {
			w.speak(queue)
		}
	}
}

// speak moves the bars by the console, where the event log is silent.
func (w *watch) speak(queue string) {
	c := &w.console
	c.spoke = true
	at := c.at[queue]
	w.move(queue, at.number, min(at.total, maxTasks))
	if queue == "tasks" {
		w.rec.Counts.Total = at.total
	}
	w.running = c.running
	w.show()
	w.running = map[string]*runs{}
}

// recipeLine notes how a task went. The line has the recipe with its version.
func (w *watch) recipeLine(text string) {
	m := taskEnded().FindStringSubmatch(text)
	if m == nil || m[3] == "Started" {
		return
	}
	c := &w.console
	r := c.find(m[1], m[2])
	if r == nil {
		return
	}
	r.task.TookMS = time.Since(r.began).Milliseconds()
	r.task.Outcome = TaskSucceeded
	if m[3] == "Failed" {
		r.task.Outcome = TaskFailed
	}
	c.end(r)
}

// find is the task at work whose recipe a name with a version begins with.
func (c *console) find(versioned, task string) *runs {
	for at := len(versioned); at > 0; at = strings.LastIndexByte(versioned[:at], '-') {
		if r := c.running[versioned[:at]+" "+task]; r != nil {
			return r
		}
	}
	return nil
}

func (c *console) end(r *runs) {
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

// failure gathers the failed tasks and, in their order, their logs.
func (c *console) failure(text string) {
	if m := taskFailed().FindStringSubmatch(text); m != nil && len(c.failed) < maxFailures {
		c.failed = append(c.failed, Failure{Recipe: recipeOf(m[1]), Task: m[2]})
	}
	if m := failureLog().FindStringSubmatch(text); m != nil && len(c.logs) < maxFailures {
		c.logs = append(c.logs, m[1])
	}
}

// fromConsole fills the record with what the console told.
func (w *watch) fromConsole() {
	c := &w.console
	if c.parsed.Recipes > 0 && w.rec.Parsed.Recipes == 0 {
		w.rec.Parsed = c.parsed
	}
	if c.at == nil {
		return
	}
	w.rec.Source = "console"
	w.speakAll()
	for _, r := range c.running {
		r.task.Outcome = TaskStopped
		if len(c.tasks) < maxTasks {
			c.tasks = append(c.tasks, r.task)
		}
	}
	w.rec.Tasks = append(w.rec.Tasks, c.tasks...)
	w.rec.Setscene.Hits = c.hits
	w.rec.Counts.Ran = int64(len(c.tasks)) - c.hits
	w.failedOnConsole()
}

func (w *watch) failedOnConsole() {
	w.rec.Counts.Failed = max(w.rec.Counts.Failed, int64(len(w.console.failed)))
	for i, f := range w.console.failed {
		if i < len(w.console.logs) {
			f.Log = w.console.logs[i]
			f.Tail = tailOf(f.Log)
			f.Why, f.Next = known(f.Tail)
		}
		w.rec.Failures = append(w.rec.Failures, f)
	}
}

// explain adds to bitbake's failure which tasks it was, the end of their logs, and
// what is known of such failures: bitbake's last lines alone seldom say.
func (r Record) explain(err error) error {
	var failure *run.Failure
	if !errors.As(err, &failure) {
		return err
	}
	var b strings.Builder
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
		said.because(&b, f.Why, f.Next)
	}
	why, next := known(failure.Tail + "\n" + strings.Join(r.Errors, "\n"))
	said.because(&b, why, next)
	if b.Len() == 0 {
		return err
	}
	return fmt.Errorf("%s\n%w", strings.TrimPrefix(b.String(), "\n"), err)
}

// reasons are the explanations that were given already.
type reasons map[string]bool

func (s reasons) because(b *strings.Builder, why, next string) {
	if why == "" || s[why] {
		return
	}
	s[why] = true
	fmt.Fprintf(b, "\n  why: %s\n  next: %s", why, next)
}
