package bitbake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/images/bitbake/pickle"
	"slipway/layers/progress"
)

// How long after the first task on the console the event log may be silent before
// the console stands in for it.
const eventsLate = 2 * time.Second

// watch makes a record, and progress, of what the event log and the console say.
type watch struct {
	mu  sync.Mutex
	ctx context.Context
	rec *Record

	ready, parse *progress.Step
	queues       map[string]*queue // "tasks", "setscene"
	parseBegan   time.Time

	running  map[string]*runs  // by key
	byPID    map[int64]*runs   // progress names only the process
	shares   map[string]bool   // key of a task that may come from shared state
	scene    map[string]string // key of such a task -> what came of that
	hits     map[string]bool   // keys of hits that are in the record
	forecast forecast

	events    int       // task events seen
	console   console   // what the console said
	taskShown time.Time // when the console named the first task
	complete  bool      // shared state has been gone through
	failed    bool      // BuildCompleted said so
	warned    bool      // of a log that is not understood
}

// queue is one of bitbake's two queues.
type queue struct {
	step *progress.Step
	at   int64
}

// runs is a task at work.
type runs struct {
	key   string
	task  Task
	began time.Time
	log   string
	pct   int64 // -1 where it does not say
}

func newWatch(ctx context.Context, rec *Record, f forecast) *watch {
	return &watch{
		ctx: ctx, rec: rec, forecast: f,
		ready:  progress.Start(ctx, "bitbake", 0, ""),
		queues: map[string]*queue{}, running: map[string]*runs{}, byPID: map[int64]*runs{},
		shares: map[string]bool{}, scene: map[string]string{}, hits: map[string]bool{},
	}
}

// bad notes that a line of the event log could not be read. The build goes on.
func (w *watch) bad(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.warned {
		w.warned = true
		w.message(&w.rec.Warnings, "event log, "+err.Error())
		progress.Start(w.ctx, "event log", 0, "").End(err.Error()+"; passed over", nil)
	}
}

func (w *watch) message(list *[]string, text string) {
	if len(*list) >= maxMessages {
		w.rec.Cut = true
		return
	}
	*list = append(*list, bare(text))
}

// event takes the next event of the log.
func (w *watch) event(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.variables != nil {
		w.rec.Variables = e.variables
		return
	}
	name := e.class[strings.LastIndexByte(e.class, '.')+1:]
	switch {
	case strings.HasPrefix(e.class, "bb.runqueue."):
		w.queued(name, e)
	case strings.HasPrefix(e.class, "bb.build."):
		w.built(name, e)
	default:
		w.other(name, e)
	}
}

func (w *watch) other(name string, e event) {
	switch name {
	case "ParseStarted":
		w.parseBegins(e.number("total"))
	case "ParseProgress":
		w.parsed(e.number("current"))
	case "ParseCompleted":
		w.parseEnds(e)
	case "ProcessStarted":
		w.ready.Detail(e.text("processname"))
	case "ProcessProgress":
		w.ready.Detail(fmt.Sprintf("%s %d%%", e.text("processname"), e.number("progress")))
	case "RecipeTaskPreProcess":
		w.listed(e)
	case "MonitorDiskEvent":
		w.disk(e)
	case "BuildCompleted":
		w.failed = e.number("_failures") > 0
	}
}

func (w *watch) parseBegins(total int64) {
	if w.parse != nil {
		return
	}
	w.ready.End("", nil)
	w.parseBegan = time.Now()
	w.parse = progress.Start(w.ctx, "parse", min(max(total, 0), maxTasks), progress.Tasks)
}

// parsed moves the bar: events say how far it is, steps how much further.
func (w *watch) parsed(current int64) {
	if w.parse == nil || current <= w.rec.Parsed.Recipes || current > maxTasks {
		return
	}
	w.parse.Add(current - w.rec.Parsed.Recipes)
	w.rec.Parsed.Recipes = current
}

func (w *watch) parseEnds(e event) {
	p := &w.rec.Parsed
	w.parsed(e.number("total"))
	p.Recipes, p.Cached = e.number("virtuals"), e.number("cached")
	p.Skipped, p.Errors = e.number("skipped"), e.number("errors")
	if w.parse != nil {
		p.TookMS = time.Since(w.parseBegan).Milliseconds()
		w.parse.End(fmt.Sprintf("%d recipes, %d of them skipped", p.Recipes, p.Skipped), nil)
	}
	w.ready = progress.Start(w.ctx, "prepare", 0, "")
}

// listed notes which of a recipe's tasks shared state may stand in for.
func (w *watch) listed(e event) {
	tasks, _ := e.state["tasklist"].(*pickle.List)
	if tasks == nil || len(w.shares) > maxTasks {
		return
	}
	for _, item := range tasks.Items {
		name, _ := item.(string)
		if base, is := strings.CutSuffix(name, "_setscene"); is {
			w.shares[e.text("fn")+":"+base] = true
		}
	}
}

func (w *watch) disk(e event) {
	usage, _ := e.state["disk_usage"].(pickle.Dict)
	for _, sample := range usage {
		o, _ := sample.(*pickle.Object)
		if o == nil {
			continue
		}
		free := number(o.State["available_bytes"])
		if d := &w.rec.Disk; d.LeastFreeBytes == 0 || free < d.LeastFreeBytes {
			d.LeastFreeBytes = free
		}
	}
}

// key tells tasks apart. Two configurations may build one recipe, and events of
// the queue name the configuration in another way than those of the task.
func key(config, file, task string) string { return config + "|" + file + ":" + task }

// configOf is the configuration that a task's name in the queue begins with.
func configOf(taskID string) string {
	rest, is := strings.CutPrefix(taskID, "mc:")
	if name, _, more := strings.Cut(rest, ":"); is && more {
		return name
	}
	return ""
}

// queued takes an event of the run queue.
func (w *watch) queued(name string, e event) {
	w.events++
	scene := strings.HasPrefix(name, "scene")
	config, task := configOf(e.text("taskid")), e.text("taskname")
	file := strings.TrimPrefix(e.text("taskfile"), "mc:"+config+":")
	k := key(config, file, task)
	switch {
	case name == "sceneQueueComplete":
		w.complete = true
	case strings.HasSuffix(name, "TaskStarted"):
		if e.number("noexec") == 0 {
			r := w.begin(k, time.Now())
			r.task.Config, r.task.Task = config, task
			if r.task.Recipe == "" {
				r.task.Recipe = recipeOf(file)
			}
			r.task.Hash = e.text("taskhash")
		}
	case strings.HasSuffix(name, "TaskCompleted"):
		w.finish(k, TaskSucceeded)
	case strings.HasSuffix(name, "TaskFailed"):
		w.finish(k, TaskFailed)
	case strings.HasSuffix(name, "TaskSkipped"):
		w.skipped(e.text("reason"), key(config, file, task))
	}
	w.count(scene, e.stats())
	w.show()
}

func (w *watch) skipped(reason, k string) {
	w.forecast.done(forecastKey(k))
	if reason == "existing" {
		w.rec.Counts.Existing++
		return
	}
	w.rec.Counts.Covered++
}

// built takes an event of a task's own process.
func (w *watch) built(name string, e event) {
	if name == "TaskProgress" {
		if r := w.byPID[e.number("pid")]; r != nil {
			r.pct = min(e.number("progress"), 100)
			w.show()
		}
		return
	}
	config := e.text("_mc")
	if config == "default" {
		config = ""
	}
	k := key(config, e.text("taskfile"), e.text("taskname"))
	at := e.when()
	if at.IsZero() {
		at = time.Now()
	}
	switch name {
	case "TaskStarted":
		r := w.begin(k, at)
		r.began, r.log = at, e.text("logfile")
		r.task.Recipe, r.task.Version, r.task.Task, r.task.Config = e.text("pn"), e.text("pv"), e.text("taskname"), config
		r.task.StartMS = max(at.Sub(w.rec.Started).Milliseconds(), 0)
		if len(w.byPID) < maxTasks {
			w.byPID[e.number("pid")] = r
		}
	default:
		delete(w.byPID, e.number("pid"))
		if r := w.running[k]; r != nil {
			r.task.TookMS = max(at.Sub(r.began).Milliseconds(), 0)
			if r.log == "" {
				r.log = e.text("logfile")
			}
		}
	}
	w.show()
}

// begin finds the task at work, or makes it: whichever event comes first does.
func (w *watch) begin(k string, at time.Time) *runs {
	if r := w.running[k]; r != nil {
		return r
	}
	r := &runs{key: k, began: at, pct: -1}
	r.task.StartMS = max(at.Sub(w.rec.Started).Milliseconds(), 0)
	if len(w.running) < maxTasks {
		w.running[k] = r
	}
	w.rec.Workers = max(w.rec.Workers, len(w.running))
	return r
}

// finish puts a task into the record.
func (w *watch) finish(k, outcome string) {
	r := w.running[k]
	if r == nil {
		if outcome == TaskFailed {
			w.rec.Counts.Failed++
		}
		return // one without a process
	}
	delete(w.running, k)
	if r.task.TookMS == 0 {
		r.task.TookMS = max(time.Since(r.began).Milliseconds(), 0)
	}
	r.task.Outcome = outcome
	if base, scene := strings.CutSuffix(k, "_setscene"); scene {
		w.fromShared(r, base, outcome)
		return
	}
	if outcome == TaskSucceeded {
		w.forecast.took(forecastKey(k), r.task.TookMS)
	} else {
		w.forecast.done(forecastKey(k))
	}
	w.rec.Counts.Ran++
	if w.shared(k) {
		r.task.Shared = Miss
		w.rec.Setscene.Misses++
		if w.scene[k] == Broken {
			r.task.Shared = Broken
		}
	} else {
		r.task.Hash = ""
	}
	if outcome == TaskFailed {
		w.rec.Counts.Failed++
		w.fail(r)
	}
	w.keep(r.task)
}

// shared says whether a task could have come from shared state. What a recipe
// lists is said without its configuration.
func (w *watch) shared(k string) bool {
	_, plain, _ := strings.Cut(k, "|")
	return w.shares[plain]
}

func (w *watch) fromShared(r *runs, k, outcome string) {
	r.task.Task = strings.TrimSuffix(r.task.Task, "_setscene")
	if outcome != TaskSucceeded {
		w.rec.Setscene.Failed++
		w.scene[k] = Broken
		return // the task itself follows
	}
	w.rec.Setscene.Hits++
	w.scene[k] = Hit
	w.forecast.done(forecastKey(k))
	r.task.Shared = Hit
	w.keep(r.task)
}

func (w *watch) keep(t Task) {
	if len(w.rec.Tasks) >= maxTasks {
		w.rec.Cut = true
		return
	}
	w.rec.Tasks = append(w.rec.Tasks, t)
}

func (w *watch) fail(r *runs) {
	if len(w.rec.Failures) >= maxFailures {
		w.rec.Cut = true
		return
	}
	f := Failure{Recipe: r.task.Recipe, Task: r.task.Task, Log: r.log}
	f.Tail = tailOf(r.log)
	f.Why, f.Next = known(f.Tail)
	w.rec.Failures = append(w.rec.Failures, f)
}

// count moves a queue's bar to where its counters are. Up to 1.46 each queue has
// counters of its own; later ones carry those of both.
func (w *watch) count(scene bool, s pickle.Dict) {
	if s == nil {
		return
	}
	total := min(number(s["total"]), maxTasks)
	if _, both := s["setscene_total"]; both {
		w.move("setscene", number(s["setscene_covered"])+number(s["setscene_notcovered"]), min(number(s["setscene_total"]), maxTasks))
		scene = false
	}
	name := "tasks"
	if scene {
		name = "setscene"
	} else {
		w.rec.Counts.Total = total
	}
	w.move(name, number(s["completed"])+number(s["failed"]), total)
}

func (w *watch) move(name string, at, total int64) {
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

// show says what runs, the longest first, each with its own progress.
func (w *watch) show() {
	if q := w.queues["setscene"]; q != nil {
		s := w.rec.Setscene
		q.step.Detail(fmt.Sprintf("%d taken from shared state", s.Hits))
	}
	q := w.queues["tasks"]
	if q == nil {
		return
	}
	var said []string
	if left := w.left(); left != "" {
		said = append(said, left)
	}
	at := make([]*runs, 0, len(w.running))
	for _, r := range w.running {
		at = append(at, r)
	}
	slices.SortFunc(at, func(a, b *runs) int { return a.began.Compare(b.began) })
	const shown = 4
	for _, r := range at[:min(len(at), shown)] {
		said = append(said, r.String())
	}
	if more := len(at) - shown; more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	q.step.Detail(strings.Join(said, ", "))
}

func (r *runs) String() string {
	text := r.task.Recipe + " " + strings.TrimPrefix(r.task.Task, "do_")
	if r.pct > 0 {
		text += fmt.Sprintf(" %d%%", r.pct)
	}
	return text
}

// left is the time left, where earlier builds tell enough to say so.
func (w *watch) left() string {
	q := w.queues["tasks"]
	if !w.complete && w.queues["setscene"] != nil {
		return ""
	}
	var begun []begunTask
	for _, r := range w.running {
		begun = append(begun, begunTask{forecastKey(r.key), time.Since(r.began)})
	}
	return w.forecast.left(w.rec.Counts.Total-q.at, begun)
}

// end closes what is open when bitbake has ended, and says how it ended.
func (w *watch) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.events == 0:
		w.fromConsole()
	case len(w.rec.Failures) == 0: // a write failed, and bitbake wrote no more events
		w.failedOnConsole()
	}
	for _, k := range slices.Sorted(maps.Keys(w.running)) {
		if r := w.running[k]; r.task.TookMS > 0 || r.task.Recipe != "" {
			w.finish(k, TaskStopped)
		}
	}
	slices.SortStableFunc(w.rec.Tasks, func(a, b Task) int { return int(a.StartMS - b.StartMS) })
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
		q.step.End(w.rec.summary(name), err)
	}
}

func (r Record) summary(queue string) string {
	if queue == "setscene" {
		return fmt.Sprintf("%d taken from shared state, %d not", r.Setscene.Hits, r.Setscene.Misses)
	}
	c := r.Counts
	if r.DryRun {
		return fmt.Sprintf("dry run: %d would run, %d are not needed", c.Ran, c.Existing+c.Covered)
	}
	return fmt.Sprintf("%d run, %d from shared state, %d not needed", c.Ran, r.Setscene.Hits, c.Existing+c.Covered)
}

func (r Record) failedTasks() string {
	var names []string
	for _, f := range r.Failures {
		names = append(names, f.Recipe+" "+f.Task)
	}
	return strings.Join(names, ", ")
}

// recipeOf is a recipe's name after its file, for tasks that do not tell it.
func recipeOf(file string) string {
	name := strings.TrimSuffix(path.Base(file), ".bb")
	name, _, _ = strings.Cut(name, "_")
	if strings.HasPrefix(file, "virtual:native:") {
		name += "-native"
	}
	return name
}

// stopping tells whoever watches why it does not end at once.
func (w *watch) stopping(patient bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.running); n > 0 && patient {
		progress.Start(w.ctx, "stop", 0, "").End(fmt.Sprintf("bitbake finishes the %d tasks that run; Ctrl-C again breaks them off", n), nil)
	}
}
