package images

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"slipway/layers/engine"
	"slipway/layers/progress"
)

var (
	taskBegun  = regexp.MustCompile(`^NOTE: Running (setscene |noexec )?task (\d{1,9}) of (\d{1,9}) \(.*?([^/]+)\.bb:(do_\w+)\)$`)
	taskFailed = regexp.MustCompile(`^ERROR: Task \(.*?([^/]+)\.bb:(do_\w+)\) failed with exit code`)
	failureLog = regexp.MustCompile(`^ERROR: Logfile of failure stored in: (.+)$`)
)

const maxNamed = 20 // failed tasks that an error names

// console follows what bitbake writes where it has no terminal. The text has
// been the same since 1.46; a line that it does not know it passes by.
type console struct {
	ctx    context.Context
	parse  *progress.Step
	tasks  map[string]*phase // "tasks", "setscene"
	order  []string
	failed []string
	logs   []string
}

// phase is one of bitbake's two queues.
type phase struct {
	step *progress.Step
	at   int64
}

func newConsole(ctx context.Context) *console {
	return &console{ctx: ctx, parse: progress.Start(ctx, "parse", 0, ""), tasks: map[string]*phase{}}
}

func (c *console) line(text string) {
	if m := taskBegun.FindStringSubmatch(text); m != nil {
		c.begin(m[1], m[2], m[3], m[4]+" "+m[5])
		return
	}
	if m := taskFailed.FindStringSubmatch(text); m != nil && len(c.failed) < maxNamed {
		c.failed = append(c.failed, m[1]+" "+m[2])
	}
	if m := failureLog.FindStringSubmatch(text); m != nil && len(c.logs) < maxNamed {
		c.logs = append(c.logs, m[1])
	}
	if len(c.order) == 0 {
		c.parse.Detail(strings.TrimPrefix(text, "NOTE: "))
	}
}

// begin notes that a task began. Its number counts the tasks before it, whether
// they ran or were found done.
func (c *console) begin(queue, number, total, what string) {
	name := "tasks"
	if queue == "setscene " {
		name = "setscene"
	}
	p := c.tasks[name]
	if p == nil {
		c.parse.End("", nil)
		n, _ := strconv.ParseInt(total, 10, 64) // at most nine digits
		p = &phase{step: progress.Start(c.ctx, name, n, progress.Tasks)}
		c.tasks[name], c.order = p, append(c.order, name)
	}
	at, _ := strconv.ParseInt(number, 10, 64)
	p.step.Detail(what)
	p.step.Add(at - p.at)
	p.at = at
}

// end closes the steps that are still open.
func (c *console) end(err error) {
	if err != nil && len(c.failed) > 0 {
		err = errors.New(strings.Join(c.failed, ", "))
	}
	c.parse.End("", err)
	for _, name := range c.order {
		p := c.tasks[name]
		p.step.End(fmt.Sprintf("%d done", p.at), err)
	}
}

// explain adds to bitbake's failure which tasks it was and where each one's own
// log is: bitbake's last lines alone seldom say.
func (c *console) explain(err error) error {
	var failure *engine.Failure
	if !errors.As(err, &failure) || len(c.failed)+len(c.logs) == 0 {
		return err
	}
	var b strings.Builder
	for _, log := range c.logs {
		fmt.Fprintf(&b, "\n  log of the failed task: %s", log)
	}
	return fmt.Errorf("failed: %s%s\n%w", strings.Join(c.failed, ", "), b.String(), err)
}
