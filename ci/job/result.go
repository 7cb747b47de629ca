package job

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/report"
	"slipway/flash"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// maxStepBytes limits the stdout of a step that is read: a report with its logs.
const maxStepBytes = 64 << 20

// note adds a line that has ended to the result, with what it printed as JSON.
func (c *child) note(l Line, status int, took time.Duration) {
	if l.Step < 0 {
		return
	}
	if len(c.result.Steps) == l.Step {
		c.result.Steps = append(c.result.Steps, StepResult{Do: c.order.Job.Steps[l.Step].Do})
	}
	s := &c.result.Steps[l.Step]
	s.Status = status
	s.ElapsedMS += took.Milliseconds()
	if !l.printsJSON() {
		return
	}
	if s.Do == Build {
		pushed, _ := read(c.stepFile(l), maxStepBytes, parseJSON[struct{ Digest string }]) // the build has none
		c.result.Artifact = pushed.Digest
		return
	}
	r := c.readStep(l, s)
	if r.System == "" { // it stays as the update before left it
		r.System, r.Version, r.SentBytes = c.result.System, c.result.Version, c.result.SentBytes
	}
	r.Saw, r.Answer = plaintext.ShortLine(r.Saw), nil
	c.result.Result = r
}

func (l Line) printsJSON() bool { return slices.Contains(l.Argv, "--json") }

// readStep returns what a line printed of its board: nothing if it was killed, or printed something
// else. Then the exit status says how it ended.
func (c *child) readStep(l Line, s *StepResult) fleet.Result {
	name := c.stepFile(l)
	if s.Do == Flash {
		receipts, _ := read(name, maxStepBytes, parseJSON[[]flash.Receipt])
		if len(receipts) != 1 {
			return fleet.Result{}
		}
		if receipts[0].Error == "" {
			s.Receipt = plaintext.ShortLine(receipts[0].String())
		}
		return fleet.Result{Saw: plaintext.FirstLine(receipts[0].Error)}
	}
	o, _ := read(name, maxStepBytes, parseJSON[fleet.Outcome])
	if len(o.Results) != 1 {
		return fleet.Result{}
	}
	r := o.Results[0]
	if r.Report != "" { // the page, which lies beside the report
		r.Report = filepath.Join(c.order.buildDir(), "fleet", string(s.Do), c.order.Job.Name, report.ReportJSON)
	}
	return r
}

func parseJSON[T any](data []byte) (v T, err error) {
	err = json.Unmarshal(data, &v)
	return v, err
}

// lineError is the error of a line that ended with another status than 0.
type lineError struct {
	status int
	saw    string
}

func (e lineError) Error() string { return e.saw }

// errStopped is the error of a line that was not begun.
var errStopped = errors.New("the job was stopped, and this was not begun")

// conclude sets how the job ended. What a fleet's command says of the board stays, unless it only says
// that somebody stopped it.
func (c *child) conclude(err error) {
	r := &c.result
	failed := lineError{}
	switch said := r.Kind; {
	case err == nil:
		if said == "" {
			r.Kind = fleet.Passed
		}
		return
	case errors.Is(err, errStopped):
		r.Kind, r.Saw = c.stops.why, err.Error()
	case !errors.As(err, &failed):
		r.Kind, r.Saw = fleet.Other, err.Error()
	case c.stops.asked > 0 && slices.Contains([]fleet.Kind{"", fleet.Stopped, fleet.NotBegun}, said):
		r.Kind = c.stops.why
	case slices.Contains([]fleet.Kind{"", fleet.Passed, fleet.Already}, said):
		r.Kind = kindOf(failed.status)
	}
	if r.Saw == "" {
		r.Saw = failed.saw
	}
	r.Saw = plaintext.ShortLine(r.Saw)
}

// kindOf returns the kind of a command that failed and said nothing of its board.
func kindOf(status int) fleet.Kind {
	switch status {
	case report.ExitStatus(report.ErrUnreachable):
		return fleet.Silent
	case report.ExitStatus(report.ErrFailed):
		return fleet.Checks
	case report.ExitStatus(report.ErrWrong):
		return fleet.Wrong
	}
	return fleet.Other
}

// lastError returns the last error in a log after an offset, else its last line.
func lastError(log string, from int64) string {
	const most = 16 << 10
	text := localfile.Tail(log, most)
	if end, err := sizeOf(log); err == nil {
		text = text[min(max(0, int64(len(text))-(end-from)), int64(len(text))):]
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range slices.Backward(lines) {
		if saw, ok := strings.CutPrefix(line, "Error: "); ok {
			return plaintext.ShortLine(saw)
		}
	}
	return plaintext.ShortLine(lines[len(lines)-1])
}
