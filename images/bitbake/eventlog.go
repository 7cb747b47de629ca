package bitbake

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"slipway/images/bitbake/pickle"
	"slipway/layers/plaintext"
)

const (
	pollEvery = 100 * time.Millisecond
	// Lines with all variables or the whole tree of tasks have megabytes; none that
	// is read here does, except the variables.
	maxEventBytes     = 1 << 20
	maxVariablesBytes = 64 << 20
)

// wanted are the events that are decoded. All others are told by their class and
// passed by.
var wanted = map[string]bool{
	"bb.event.BuildCompleted":             true,
	"bb.event.MonitorDiskEvent":           true,
	"bb.event.ParseStarted":               true,
	"bb.event.ParseProgress":              true,
	"bb.event.ParseCompleted":             true,
	"bb.event.ProcessStarted":             true,
	"bb.event.ProcessProgress":            true,
	"bb.event.RecipeTaskPreProcess":       true,
	"bb.build.TaskStarted":                true,
	"bb.build.TaskSucceeded":              true,
	"bb.build.TaskFailed":                 true,
	"bb.build.TaskFailedSilent":           true,
	"bb.build.TaskProgress":               true,
	"bb.runqueue.runQueueTaskStarted":     true,
	"bb.runqueue.runQueueTaskCompleted":   true,
	"bb.runqueue.runQueueTaskFailed":      true,
	"bb.runqueue.runQueueTaskSkipped":     true,
	"bb.runqueue.sceneQueueTaskStarted":   true,
	"bb.runqueue.sceneQueueTaskCompleted": true,
	"bb.runqueue.sceneQueueTaskFailed":    true,
	"bb.runqueue.sceneQueueComplete":      true,
}

// kept are the variables that a record keeps.
var kept = []string{"DEPLOY_DIR_IMAGE", "DISTRO", "DISTRO_VERSION", "TMPDIR", "DL_DIR", "SSTATE_DIR", "BB_NUMBER_THREADS", "PARALLEL_MAKE"}

// event is one line of the log.
type event struct {
	class     string
	state     pickle.Dict
	variables map[string]string // of the line with all of them
}

func (e event) text(name string) string {
	s, _ := e.state[name].(string)
	return bare(s)
}

func (e event) number(name string) int64 { return number(e.state[name]) }

func number(v any) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		if n > -1e15 && n < 1e15 {
			return int64(n)
		}
	case bool:
		if n {
			return 1
		}
	}
	return 0
}

// when is the event's own time; zero where it has none.
func (e event) when() time.Time {
	seconds, _ := e.state["time"].(float64)
	if seconds <= 0 || seconds > 1e11 {
		return time.Time{}
	}
	return time.UnixMilli(int64(seconds * 1000))
}

// stats are the counters of a runqueue event.
func (e event) stats() pickle.Dict {
	o, _ := e.state["stats"].(*pickle.Object)
	if o == nil {
		return nil
	}
	return o.State
}

// inert are the classes that an event of ours is made of.
func inert(c pickle.Class) bool {
	switch {
	case c.Module == "builtins":
		return c.Name == "set" || c.Name == "frozenset"
	case c.Module == "collections":
		return c.Name == "OrderedDict" || c.Name == "defaultdict"
	}
	return strings.HasPrefix(c.Module, "bb.")
}

var (
	classBegins     = []byte(`{"class": "`)
	variablesBegins = []byte(`{"allvariables": `)
)

// classOf is the class that a line begins with.
func classOf(line []byte) string {
	rest, found := bytes.CutPrefix(line, classBegins)
	end := bytes.IndexByte(rest, '"')
	if !found || end < 0 || end > 100 {
		return ""
	}
	return string(rest[:end])
}

// decodeEvent reads one line; nil is for one that is passed by.
func decodeEvent(line []byte) (*event, error) {
	if bytes.HasPrefix(line, variablesBegins) {
		return decodeVariables(line)
	}
	class := classOf(line)
	if !wanted[class] {
		return nil, nil
	}
	var fields struct{ Class, Vars string }
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, fmt.Errorf("an event %s that is no JSON: %w", class, err)
	}
	raw, err := base64.StdEncoding.DecodeString(fields.Vars)
	if err != nil {
		return nil, fmt.Errorf("an event %s: %w", class, err)
	}
	value, err := pickle.Decode(raw, inert)
	if err != nil {
		return nil, fmt.Errorf("an event %s: %w", class, err)
	}
	object, is := value.(*pickle.Object)
	if !is || object.Class.Module+"."+object.Class.Name != class || fields.Class != class {
		return nil, fmt.Errorf("an event %s that holds something else", class)
	}
	return &event{class: class, state: object.State}, nil
}

// decodeVariables reads the line with all variables and keeps a few.
func decodeVariables(line []byte) (*event, error) {
	var all struct {
		AllVariables map[string]struct {
			V any `json:"v"`
		}
	}
	if err := json.Unmarshal(line, &all); err != nil {
		return nil, fmt.Errorf("the event log's variables: %w", err)
	}
	e := &event{variables: map[string]string{}}
	for _, name := range kept {
		if text, is := all.AllVariables[name].V.(string); is && text != "" {
			e.variables[name] = cut(text, maxText)
		}
	}
	return e, nil
}

// logReader gives out the events of a log that is still being written.
type logReader struct {
	open  []byte // the line that has no end yet
	skip  bool   // that line is not wanted
	lines int
	event func(event)
	bad   func(error)
	tick  func() // after each look at the file
}

// Write takes the next part of the log. It never fails.
func (r *logReader) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			r.add(rest)
			break
		}
		r.add(rest[:end])
		r.line()
		rest = rest[end+1:]
	}
	return len(p), nil
}

func (r *logReader) add(part []byte) {
	if r.skip {
		return
	}
	r.open = append(r.open, part...)
	most := maxEventBytes
	if bytes.HasPrefix(r.open, variablesBegins) {
		most = maxVariablesBytes
	} else if class := classOf(r.open); class != "" && !wanted[class] {
		most = 0
	}
	if len(r.open) > most && len(r.open) > 200 { // by then its class is known
		r.skip, r.open = true, nil
	}
}

// line ends the line at hand.
func (r *logReader) line() {
	r.lines++
	line, skip := r.open, r.skip
	r.open, r.skip = r.open[:0], false
	if skip {
		return
	}
	e, err := decodeEvent(line)
	if cap(r.open) > maxEventBytes {
		r.open = nil
	}
	switch {
	case err != nil:
		r.bad(fmt.Errorf("line %d: %w", r.lines, err))
	case e != nil:
		r.event(*e)
	}
}

// follow reads the log at path as it grows, until done is closed and its end is
// reached. bitbake makes the file when it pleases.
func (r *logReader) follow(path string, done <-chan struct{}) error {
	var f *os.File
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for last := false; ; {
		if f == nil {
			opened, err := os.Open(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err == nil {
				f = opened
				defer f.Close()
			}
		}
		if f != nil {
			if _, err := io.Copy(r, f); err != nil {
				return err
			}
		}
		r.tick()
		if last {
			return nil
		}
		select {
		case <-done:
			last = true
		case <-tick.C:
		}
	}
}

// cut shortens a text from outside. What stays is valid UTF-8.
func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// bare is a name or a message without what a terminal would obey.
func bare(s string) string { return plaintext.OneLine(cut(s, maxText)) }
