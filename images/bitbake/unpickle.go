package bitbake

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"slipway/layers/run"
)

//go:embed unpickle.py
var unpickleScript string

// unpickleCommand returns a Python for pickles of what, "events" or a "cache". It prints JSON.
func unpickleCommand(what string) run.Command {
	return run.Command{Argv: []string{"python3", "-I", "-S", "-c", unpickleScript, what}}
}

// maxEventTime is how long Python may take to decode one event.
const maxEventTime = time.Minute

// unpickler is a running Python that decodes events one by one. Pickles can run code, so they are
// never read in Slipway's own process.
type unpickler struct {
	cmd     *exec.Cmd
	lines   io.WriteCloser
	answers *json.Decoder
}

// startUnpickler starts the Python that decodes events. The caller must close it.
func startUnpickler() (*unpickler, error) {
	u := &unpickler{cmd: run.Prepare(context.Background(), unpickleCommand("events"))}
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	u.answers = json.NewDecoder(out)
	if u.lines, err = u.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return u, u.cmd.Start()
}

// decode returns the values that Python reads in an event's line. It kills a Python that takes
// longer than maxEventTime: all later calls then fail.
func (u *unpickler) decode(line []byte) (map[string]any, error) {
	defer time.AfterFunc(maxEventTime, func() { _ = u.cmd.Process.Kill() }).Stop()
	var answer struct {
		State map[string]any
		Error string
	}
	if _, err := fmt.Fprintf(u.lines, "%s\n", line); err != nil {
		return nil, fmt.Errorf("the Python that reads it has ended: %w", err)
	}
	if err := u.answers.Decode(&answer); err != nil {
		return nil, fmt.Errorf("the Python that reads it has ended: %w", err)
	}
	if answer.Error != "" {
		return nil, errors.New(cleanText(answer.Error))
	}
	return answer.State, nil
}

func (u *unpickler) close() {
	u.lines.Close()
	_ = u.cmd.Wait() // its errors are those of the events
}
