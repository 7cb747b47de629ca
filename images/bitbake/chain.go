package bitbake

// maxNeeds limits the edges between tasks. An image of 4,400 tasks has 15,000.
const maxNeeds = 1 << 19

// needs maps each task to the tasks that it needs, without those that others of them imply.
type needs map[string][]string

// taskName returns a task's name in bitbake's tree of tasks: RECIPE.TASK or mc:CONFIG:RECIPE.TASK.
func (t Task) taskName() string {
	name := t.Recipe + "." + t.Task
	if t.Config != "" {
		name = "mc:" + t.Config + ":" + name
	}
	return name
}

// needsOf reads up to maxTasks and maxNeeds dependencies from bitbake's DepTreeGenerated event.
func needsOf(e event) needs {
	tree, _ := e.state["_depgraph"].(map[string]any)
	tasks, _ := tree["tdepends"].(map[string]any)
	n, edges := needs{}, 0
	for name, value := range tasks {
		list, is := value.([]any)
		if !is || len(n) >= maxTasks {
			continue
		}
		n[cleanText(name)] = nil
		for _, item := range list {
			if need, is := item.(string); is && edges < maxNeeds {
				edges++
				n[cleanText(name)] = append(n[cleanText(name)], cleanText(need))
			}
		}
	}
	return n
}

// longest is the slowest chain of tasks to a task or, if that did not run, to one that it needs.
type longest struct {
	ms     int64
	before int // the index of the task before it in the chain, -1 without one
}

// chains finds the longest chain of tasks.
type chains struct {
	needs needs
	tasks []Task
	index map[string]int // of the tasks that ran
	known map[string]longest
}

// markCritical sets Critical on the tasks of the slowest chain in which each task needs the one
// before it. Tasks must be sorted by their starts. Without dependencies it marks none.
func markCritical(tasks []Task, n needs) {
	c := chains{n, tasks, map[string]int{}, map[string]longest{}}
	for i, t := range tasks {
		c.index[t.taskName()] = i
	}
	last, most := -1, int64(-1)
	for i, t := range tasks {
		if l := c.find(t.taskName()); l.ms > most && c.index[t.taskName()] == i {
			last, most = i, l.ms
		}
	}
	if len(n) == 0 {
		return
	}
	for i := last; i >= 0 && !tasks[i].Critical; i = c.known[tasks[i].taskName()].before {
		tasks[i].Critical = true
	}
}

// find returns the longest chain that ends with the named task. A task restored from shared state
// begins a chain, as the tasks that it needs did not have to run. A needed task that ended after
// the task began does not count. So each chain goes forward in time, even in a graph with a loop.
func (c *chains) find(name string) longest {
	if l, known := c.known[name]; known {
		return l
	}
	c.known[name] = longest{before: -1} // for a tree with a loop
	l := longest{before: -1}
	at, ran := c.index[name]
	if !ran || c.tasks[at].Shared != Hit {
		for _, need := range c.needs[name] {
			before, found := c.index[need]
			up := c.find(need)
			if !found {
				before = up.before
			}
			if before < 0 || ran && c.tasks[before].endMS() > c.tasks[at].StartMS {
				continue
			}
			if up.ms > l.ms || l.before < 0 {
				l = longest{up.ms, before}
			}
		}
	}
	if ran {
		l.ms += c.tasks[at].TookMS
	}
	c.known[name] = l
	return l
}

func (t Task) endMS() int64 { return t.StartMS + t.TookMS }

// criticalChain returns the tasks marked as critical. A record without task dependencies has none.
func (r Record) criticalChain() (chain []Task) {
	for _, t := range r.Tasks {
		if t.Critical {
			chain = append(chain, t)
		}
	}
	return chain
}
