package bitbake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/progress"
)

// watch fills a record and shows progress, from bitbake's event log and partly its console text.
type watch struct {
	mu  sync.Mutex
	ctx context.Context
	rec *Record

	ready, parse *progress.Step
	queues       map[string]*queue // "tasks", "setscene"
	parseBegan   time.Time

	running  map[string]*runningTask // by key
	shares   map[string]bool         // key of a task that may come from shared state
	scene    map[string]string       // key of such a task -> its result
	needs    needs
	forecast forecast

	console  console // what the console text says of failures
	complete bool    // shared state has been gone through
	failed   bool    // BuildCompleted said so
	warned   bool    // of a log that is not understood
}

// queue is one of bitbake's two queues.
type queue struct {
	step *progress.Step
	at   int64
}

// runningTask is a task that runs.
type runningTask struct {
	key   string
	task  Task
	began time.Time
	log   string
}

// newWatch returns a watch that fills rec, and begins to show progress.
func newWatch(ctx context.Context, rec *Record, f forecast) *watch {
	return &watch{
		ctx: ctx, rec: rec, forecast: f,
		ready:  progress.Start(ctx, "bitbake", 0, ""),
		queues: map[string]*queue{}, running: map[string]*runningTask{},
		shares: map[string]bool{}, scene: map[string]string{},
	}
}

// noteBadLine warns about the event log's first unreadable line. The build continues.
func (w *watch) noteBadLine(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.warned {
		w.warned = true
		w.addMessage(&w.rec.Warnings, "event log, "+err.Error())
		progress.Start(w.ctx, "event log", 0, "").End(err.Error()+"; passed over", nil)
	}
}

// addMessage adds a message to a list of the record. If that is full, it sets w.rec.Cut instead.
func (w *watch) addMessage(list *[]string, text string) {
	if len(*list) >= maxMessages {
		w.rec.Cut = true
		return
	}
	*list = append(*list, cleanText(text))
}

// handleEvent records the next event of the log and updates the progress.
func (w *watch) handleEvent(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.variables != nil {
		w.rec.Variables = e.variables
		return
	}
	name := e.class[strings.LastIndexByte(e.class, '.')+1:]
	switch {
	case strings.HasPrefix(e.class, "bb.runqueue."):
		w.handleQueueEvent(name, e)
	case strings.HasPrefix(e.class, "bb.build."):
		w.handleTaskEvent(name, e)
	default:
		w.handleOtherEvent(name, e)
	}
}

// handleOtherEvent handles events of parsing, processes, shared tasks, dependencies and the end.
func (w *watch) handleOtherEvent(name string, e event) {
	switch name {
	case "ParseStarted":
		w.startParse(e.numberField("total"))
	case "ParseProgress":
		w.advanceParse(e.numberField("current"))
	case "ParseCompleted":
		w.finishParse(e)
	case "ProcessStarted":
		w.ready.Detail(e.textField("processname"))
	case "ProcessProgress":
		w.ready.Detail(fmt.Sprintf("%s %d%%", e.textField("processname"), e.numberField("progress")))
	case "RecipeTaskPreProcess":
		w.noteSharedTasks(e)
	case "DepTreeGenerated":
		w.needs = needsOf(e)
	case "BuildCompleted":
		w.failed = e.numberField("_failures") > 0
	}
}

// startParse ends the first step and shows the bar of the parsing of total recipes, but only once.
func (w *watch) startParse(total int64) {
	if w.parse != nil {
		return
	}
	w.ready.End("", nil)
	w.parseBegan = time.Now()
	w.parse = progress.Start(w.ctx, "parse", min(max(total, 0), maxTasks), progress.Tasks)
}

// advanceParse records current, the number of recipes parsed so far, and moves the bar, never back.
func (w *watch) advanceParse(current int64) {
	if w.parse == nil || current <= w.rec.Parsed.Recipes || current > maxTasks {
		return
	}
	w.parse.Add(current - w.rec.Parsed.Recipes)
	w.rec.Parsed.Recipes = current
}

// finishParse records the counts of the parsing, ends its bar and shows the next step, "prepare".
func (w *watch) finishParse(e event) {
	p := &w.rec.Parsed
	w.advanceParse(e.numberField("total"))
	p.Recipes, p.Skipped = e.numberField("virtuals"), e.numberField("skipped")
	if w.parse != nil {
		p.TookMS = time.Since(w.parseBegan).Milliseconds()
		w.parse.End(fmt.Sprintf("%d recipes, %d of them skipped", p.Recipes, p.Skipped), nil)
	}
	w.ready = progress.Start(w.ctx, "prepare", 0, "")
}

// noteSharedTasks records which of a recipe's tasks shared state may replace.
func (w *watch) noteSharedTasks(e event) {
	tasks, _ := e.state["tasklist"].([]any)
	if len(w.shares) > maxTasks {
		return
	}
	for _, item := range tasks {
		name, _ := item.(string)
		if base, is := strings.CutSuffix(name, "_setscene"); is {
			w.shares[e.textField("fn")+":"+base] = true
		}
	}
}

// taskKey returns a task's key, with its configuration, as two may build the same recipe. file is
// without that: events of the queue and of tasks write it differently.
func taskKey(config, file, task string) string { return config + "|" + file + ":" + task }

// configOfTask returns the configuration in a task's name in the queue, "" for the default.
func configOfTask(taskID string) string {
	rest, is := strings.CutPrefix(taskID, "mc:")
	if name, _, more := strings.Cut(rest, ":"); is && more {
		return name
	}
	return ""
}

// handleQueueEvent records a task that the queue starts, ends or skips, and moves the queue's bar.
func (w *watch) handleQueueEvent(name string, e event) {
	scene := strings.HasPrefix(name, "scene")
	config, task := configOfTask(e.textField("taskid")), e.textField("taskname")
	file := strings.TrimPrefix(e.textField("taskfile"), "mc:"+config+":")
	key := taskKey(config, file, task)
	if name == "runQueueTaskSkipped" || name == "runQueueTaskStarted" {
		w.rec.noteQueued(e)
	}
	switch {
	case name == "sceneQueueComplete":
		w.complete = true
	case strings.HasSuffix(name, "TaskStarted"):
		if e.numberField("noexec") == 0 {
			r := w.startTask(key, time.Now())
			r.task.Config, r.task.Task = config, task
			r.task.Recipe = cmp.Or(r.task.Recipe, recipeOfFile(file))
		}
	case strings.HasSuffix(name, "TaskCompleted"):
		w.finishTask(key, TaskSucceeded)
	case strings.HasSuffix(name, "TaskFailed"):
		w.finishTask(key, TaskFailed)
	case strings.HasSuffix(name, "TaskSkipped"):
		w.countSkipped(e.textField("reason"), taskKey(config, file, task))
	}
	w.updateQueue(scene, e.queueStats())
	w.showRunning()
}

// countSkipped counts a task that need not run, by bitbake's reason. The forecast drops it.
func (w *watch) countSkipped(reason, key string) {
	w.forecast.dropTask(forecastKey(key))
	if reason == "existing" {
		w.rec.Counts.Existing++
		return
	}
	w.rec.Counts.Covered++
}

// handleTaskEvent records an event from a task's own process: its start or its end.
func (w *watch) handleTaskEvent(name string, e event) {
	config := e.textField("_mc")
	if config == "default" {
		config = ""
	}
	key := taskKey(config, e.textField("taskfile"), e.textField("taskname"))
	at := e.eventTime()
	if at.IsZero() {
		at = time.Now()
	}
	switch name {
	case "TaskStarted":
		r := w.startTask(key, at)
		r.began, r.log = at, e.textField("logfile")
		r.task.Recipe, r.task.Version, r.task.Task, r.task.Config = e.textField("pn"), e.textField("pv"), e.textField("taskname"), config
		r.task.StartMS = max(at.Sub(w.rec.Started).Milliseconds(), 0)
	default:
		if r := w.running[key]; r != nil {
			r.task.TookMS = max(at.Sub(r.began).Milliseconds(), 0)
			r.log = cmp.Or(r.log, e.textField("logfile"))
		}
	}
	w.showRunning()
}

// startTask returns a running task's entry, new at its first event, and raises rec.Workers.
func (w *watch) startTask(key string, at time.Time) *runningTask {
	if r := w.running[key]; r != nil {
		return r
	}
	r := &runningTask{key: key, began: at}
	r.task.StartMS = max(at.Sub(w.rec.Started).Milliseconds(), 0)
	if len(w.running) < maxTasks {
		w.running[key] = r
	}
	w.rec.Workers = max(w.rec.Workers, len(w.running))
	return r
}

// finishTask moves a running task into the record, and updates the counts and the forecast. It adds
// a failed task to the failures too. For a setscene task, it calls finishSetscene instead.
func (w *watch) finishTask(key, outcome string) {
	r := w.running[key]
	if r == nil {
		if outcome == TaskFailed {
			w.rec.Counts.Failed++
		}
		return // one without a process
	}
	delete(w.running, key)
	r.task.TookMS = cmp.Or(r.task.TookMS, max(time.Since(r.began).Milliseconds(), 0))
	r.task.Outcome, r.task.Log = outcome, r.log
	if base, scene := strings.CutSuffix(key, "_setscene"); scene {
		w.finishSetscene(r, base, outcome)
		return
	}
	if outcome == TaskSucceeded {
		w.forecast.addDuration(forecastKey(key), r.task.TookMS)
	} else {
		w.forecast.dropTask(forecastKey(key))
	}
	w.rec.Counts.Ran++
	if w.mayBeShared(key) {
		r.task.Shared = Miss
		w.rec.Setscene.Misses++
		if w.scene[key] == Broken {
			r.task.Shared = Broken
		}
	}
	if outcome == TaskFailed {
		w.rec.Counts.Failed++
		w.addFailure(r)
	}
	w.addTask(r.task)
}

// mayBeShared reports whether a task may come from shared state. Recipes omit the configuration.
func (w *watch) mayBeShared(key string) bool {
	_, plain, _ := strings.Cut(key, "|")
	return w.shares[plain]
}

// finishSetscene records whether shared state replaced a task. If not, bitbake runs it later.
func (w *watch) finishSetscene(r *runningTask, key, outcome string) {
	r.task.Task = strings.TrimSuffix(r.task.Task, "_setscene")
	if outcome != TaskSucceeded {
		w.scene[key] = Broken
		return // the task itself follows
	}
	w.rec.Setscene.Hits++
	w.scene[key] = Hit
	w.forecast.dropTask(forecastKey(key))
	r.task.Shared = Hit
	w.addTask(r.task)
}

// addTask adds a task to w.rec.Tasks. If that has maxTasks, it sets w.rec.Cut instead.
func (w *watch) addTask(t Task) {
	if len(w.rec.Tasks) >= maxTasks {
		w.rec.Cut = true
		return
	}
	w.rec.Tasks = append(w.rec.Tasks, t)
}

// addFailure adds a failed task to the record, with the end of its log and a known cause. If the
// record has maxFailures, it sets w.rec.Cut instead.
func (w *watch) addFailure(r *runningTask) {
	if len(w.rec.Failures) >= maxFailures {
		w.rec.Cut = true
		return
	}
	f := Failure{Recipe: r.task.Recipe, Task: r.task.Task, Log: r.log}
	f.Tail = logTail(r.log)
	f.Why, f.Next = explainKnownFailure(f.Tail)
	w.rec.Failures = append(w.rec.Failures, f)
}

// updateQueue moves the bars to the counters of an event, of the setscene queue if scene is true,
// and sets the record's total. After bitbake 1.46 each event has the counters of both queues.
func (w *watch) updateQueue(scene bool, s map[string]any) {
	if s == nil {
		return
	}
	total := min(toInt64(s["total"]), maxTasks)
	if _, both := s["setscene_total"]; both {
		w.moveBar("setscene", toInt64(s["setscene_covered"])+toInt64(s["setscene_notcovered"]), min(toInt64(s["setscene_total"]), maxTasks))
		scene = false
	}
	name := "tasks"
	if scene {
		name = "setscene"
	} else {
		w.rec.Counts.Total = total
	}
	w.moveBar(name, toInt64(s["completed"])+toInt64(s["failed"]), total)
}

// moveBar moves a queue's bar to at of total, never back. The first call with a total shows it.
func (w *watch) moveBar(name string, at, total int64) {
	if total <= 0 {
		return
	}
	q := w.queues[name]
	if q == nil {
		w.ready.End("", nil)
		q = &queue{step: progress.Start(w.ctx, name, total, progress.Tasks)}
		w.queues[name] = q
	}
	if at = min(at, total); at > q.at {
		q.step.Add(at - q.at)
		q.at = at
	}
}

// showRunning shows shared state's hits, the time left, and the four oldest of the running tasks.
func (w *watch) showRunning() {
	if q := w.queues["setscene"]; q != nil {
		s := w.rec.Setscene
		q.step.Detail(fmt.Sprintf("%d taken from shared state", s.Hits))
	}
	q := w.queues["tasks"]
	if q == nil {
		return
	}
	var said []string
	if left := w.timeLeft(); left != "" {
		said = append(said, left)
	}
	at := make([]*runningTask, 0, len(w.running))
	for _, r := range w.running {
		at = append(at, r)
	}
	slices.SortFunc(at, func(a, b *runningTask) int { return a.began.Compare(b.began) })
	const shown = 4
	for _, r := range at[:min(len(at), shown)] {
		said = append(said, r.task.Recipe+" "+strings.TrimPrefix(r.task.Task, "do_"))
	}
	if more := len(at) - shown; more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	q.step.Detail(strings.Join(said, ", "))
}

// timeLeft estimates the time left, "" while shared state is unpacked or if too little is known.
func (w *watch) timeLeft() string {
	q := w.queues["tasks"]
	if !w.complete && w.queues["setscene"] != nil {
		return ""
	}
	var begun []begunTask
	for _, r := range w.running {
		begun = append(begun, begunTask{forecastKey(r.key), time.Since(r.began)})
	}
	return w.forecast.timeLeft(w.rec.Counts.Total-q.at, begun)
}

// finishBuild completes the record after bitbake's end: it adds the console's failures if it has
// none, ends running tasks as stopped, sorts the tasks, marks the critical path, ends the steps.
func (w *watch) finishBuild(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rec.Failures) == 0 {
		w.addConsoleFailures()
	}
	for _, key := range slices.Sorted(maps.Keys(w.running)) {
		if r := w.running[key]; r.task.TookMS > 0 || r.task.Recipe != "" {
			w.finishTask(key, TaskStopped)
		}
	}
	slices.SortStableFunc(w.rec.Tasks, func(a, b Task) int { return cmp.Compare(a.StartMS, b.StartMS) })
	markCritical(w.rec.Tasks, w.needs)
	if err != nil && len(w.rec.Failures) > 0 {
		err = errors.New(w.rec.failedTasks())
	}
	w.ready.End("", err)
	if w.parse != nil {
		w.parse.End("", err)
	}
	for name, q := range w.queues {
		if err == nil && name == "tasks" {
			q.step.Add(w.rec.Counts.Total - q.at)
			q.at = w.rec.Counts.Total
		}
		q.step.End(w.rec.queueSummary(name), err)
	}
}

// queueSummary returns in words the counts of a queue, setscene or tasks.
func (r Record) queueSummary(queue string) string {
	if queue == "setscene" {
		return fmt.Sprintf("%d taken from shared state, %d not", r.Setscene.Hits, r.Setscene.Misses)
	}
	c := r.Counts
	if r.DryRun {
		return fmt.Sprintf("dry run: %d would run, %d are not needed", c.Ran, c.Existing+c.Covered)
	}
	return fmt.Sprintf("%d run, %d from shared state, %d not needed", c.Ran, r.Setscene.Hits, c.Existing+c.Covered)
}

// failedTasks returns the recipes and names of the failed tasks, joined by commas.
func (r Record) failedTasks() string {
	var names []string
	for _, f := range r.Failures {
		names = append(names, f.Recipe+" "+f.Task)
	}
	return strings.Join(names, ", ")
}

// recipeOfFile returns a recipe's name from its file's path, with -native for virtual:native:PATH.
func recipeOfFile(file string) string {
	name := strings.TrimSuffix(path.Base(file), ".bb")
	name, _, _ = strings.Cut(name, "_")
	if strings.HasPrefix(file, "virtual:native:") {
		name += "-native"
	}
	return name
}

// tellStopping prints, after an interrupt, that bitbake first finishes its running tasks. It prints
// nothing without such tasks, or if patient is false, as bitbake then breaks them off.
func (w *watch) tellStopping(patient bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.running); n > 0 && patient {
		progress.Start(w.ctx, "stop", 0, "").End(fmt.Sprintf("bitbake finishes the %d tasks that run; Ctrl-C again breaks them off", n), nil)
	}
}
