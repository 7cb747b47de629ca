package bitbake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"slipway/layers/plaintext"
)

const (
	pollEvery = 100 * time.Millisecond
	// Lines with all variables or the whole tree of tasks have megabytes. An image of
	// 4,400 tasks has a tree of 2.5 MB. A longer one than this is passed over.
	maxEventBytes     = 1 << 20
	maxVariablesBytes = 64 << 20
	maxTreeBytes      = 16 << 20
)

// decodedEvents are the classes of events that Slipway decodes. It skips all others.
var decodedEvents = map[string]bool{
	"bb.event.BuildCompleted":             true,
	treeClass:                             true,
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
	"bb.runqueue.runQueueTaskStarted":     true,
	"bb.runqueue.runQueueTaskCompleted":   true,
	"bb.runqueue.runQueueTaskFailed":      true,
	"bb.runqueue.runQueueTaskSkipped":     true,
	"bb.runqueue.sceneQueueTaskStarted":   true,
	"bb.runqueue.sceneQueueTaskCompleted": true,
	"bb.runqueue.sceneQueueTaskFailed":    true,
	"bb.runqueue.sceneQueueComplete":      true,
}

// treeClass is the class of the event with the whole tree of tasks.
const treeClass = "bb.event.DepTreeGenerated"

// recordedVariables are the variables that a record keeps.
var recordedVariables = []string{"DEPLOY_DIR_IMAGE", "DISTRO", "DISTRO_VERSION", "TMPDIR", "DL_DIR", "SSTATE_DIR", "BB_NUMBER_THREADS", "PARALLEL_MAKE"}

// event is one line of the log.
type event struct {
	class     string
	state     map[string]any
	variables map[string]string // of the line with all of them
}

// textField returns a field of the event as one clean line, "" if it is no text.
func (e event) textField(name string) string {
	s, _ := e.state[name].(string)
	return cleanText(s)
}

// numberField returns a field of the event as an integer, 0 if it is no number.
func (e event) numberField(name string) int64 { return toInt64(e.state[name]) }

// toInt64 converts a decoded number or bool to an integer, 0 for anything else or beyond 2^53.
func toInt64(v any) int64 {
	switch n := v.(type) {
	case float64:
		if n > -1<<53 && n < 1<<53 {
			return int64(n)
		}
	case bool:
		if n {
			return 1
		}
	}
	return 0
}

// eventTime returns the event's own time, zero if it has none or an impossible one.
func (e event) eventTime() time.Time {
	seconds, _ := e.state["time"].(float64)
	if seconds <= 0 || seconds > 1e11 {
		return time.Time{}
	}
	return time.UnixMilli(int64(seconds * 1000))
}

// queueStats returns the counters of a runqueue event.
func (e event) queueStats() map[string]any {
	stats, _ := e.state["stats"].(map[string]any)
	return stats
}

var (
	classBegins     = []byte(`{"class": "`)
	variablesBegins = []byte(`{"allvariables": `)
)

// classOf returns the class of the event on a line, "" if the line does not begin with a class.
func classOf(line []byte) string {
	rest, found := bytes.CutPrefix(line, classBegins)
	end := bytes.IndexByte(rest, '"')
	if !found || end < 0 || end > 100 {
		return ""
	}
	return string(rest[:end])
}

// decodeEvent decodes one line of the event log. It starts a Python for the first event, and
// returns nil for an event whose class is skipped.
func (r *logReader) decodeEvent(line []byte) (e *event, err error) {
	if bytes.HasPrefix(line, variablesBegins) {
		return decodeVariables(line)
	}
	e = &event{class: classOf(line)}
	if !decodedEvents[e.class] {
		return nil, nil
	}
	if r.python == nil {
		if r.python, err = startUnpickler(); err != nil {
			return nil, err
		}
	}
	if e.state, err = r.python.decode(line); err != nil {
		return nil, fmt.Errorf("an event %s: %w", e.class, err)
	}
	return e, nil
}

// decodeVariables decodes the line with all variables into an event with recordedVariables only.
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
	for _, name := range recordedVariables {
		if text, is := all.AllVariables[name].V.(string); is && text != "" {
			e.variables[name] = truncateText(text, maxText)
		}
	}
	return e, nil
}

// logReader decodes the events of a log that is still being written.
type logReader struct {
	line      []byte // the line that has no end yet
	skip      bool   // that line is not wanted
	lines     int
	python    *unpickler // nil before the first event
	onEvent   func(event)
	onBadLine func(error)
}

// Write passes the lines that end in p, decoded, to onEvent or onBadLine. It never fails.
func (r *logReader) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			r.appendPart(rest)
			break
		}
		r.appendPart(rest[:end])
		r.finishLine()
		rest = rest[end+1:]
	}
	return len(p), nil
}

// appendPart appends bytes to the current line. It drops the line and skips the rest if its class
// is not decoded, or if the line is longer than its class may be.
func (r *logReader) appendPart(part []byte) {
	if r.skip {
		return
	}
	r.line = append(r.line, part...)
	most := maxEventBytes
	if bytes.HasPrefix(r.line, variablesBegins) {
		most = maxVariablesBytes
	} else if class := classOf(r.line); class == treeClass {
		most = maxTreeBytes
	} else if class != "" && !decodedEvents[class] {
		most = 0
	}
	if len(r.line) > most && len(r.line) > 200 { // its class has been read by then
		r.skip, r.line = true, nil
	}
}

// finishLine passes a line that is not skipped to onEvent or onBadLine, and begins an empty one.
func (r *logReader) finishLine() {
	r.lines++
	line, skip := r.line, r.skip
	r.line, r.skip = r.line[:0], false
	if skip {
		return
	}
	e, err := r.decodeEvent(line)
	if cap(r.line) > maxEventBytes {
		r.line = nil
	}
	switch {
	case err != nil:
		r.onBadLine(fmt.Errorf("line %d: %w", r.lines, err))
	case e != nil:
		r.onEvent(*e)
	}
}

// close ends the Python process that decodes the events, if one was started.
func (r *logReader) close() {
	if r.python != nil {
		r.python.close()
	}
}

// followLog reads the log at path while bitbake writes it. A file that never appears is no error.
// When done closes, it reads the rest, ends the decoding Python and returns.
func (r *logReader) followLog(path string, done <-chan struct{}) error {
	defer r.close()
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

// truncateText cuts a text from outside after most bytes, and replaces invalid UTF-8.
func truncateText(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// cleanText shortens a text to maxText bytes on one line, without a terminal's control characters.
func cleanText(s string) string { return plaintext.OneLine(truncateText(s, maxText)) }
