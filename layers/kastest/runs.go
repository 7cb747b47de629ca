package kastest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"slipway/layers/engine"
)

// Run is one run of kas in a folder of its own, as Command is.
type Run struct {
	Dir  string
	Args []string
}

// Outcome is what came of a run.
type Outcome struct {
	Out string
	Err error
}

// Loading its modules takes kas longer than most of what it then does, so they
// are loaded once and each run is a child.
const manyRuns = `
import json, os, sys, tempfile
import kas.kas
kas.kas.kas_get_argparser()
done = []
for run in json.load(sys.stdin):
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        os.chdir(run["Dir"])
        os.environ.update(KAS_WORK_DIR=run["Dir"], KAS_BUILD_DIR=run["Dir"] + "/build")
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.argv = ["kas"] + run["Args"]
        status = 1
        try:
            kas.kas.main()
            status = 0
        except SystemExit as e:
            status = e.code or 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    out.seek(0)
    err.seek(0)
    done.append({"Status": status, "Out": out.read().decode(), "Err": err.read().decode(errors="replace")})
json.dump(done, sys.stdout)
`

// Outcomes runs kas several times, one after the other.
func (k Kas) Outcomes(ctx context.Context, runs []Run) ([]Outcome, error) {
	if !k.many {
		return k.oneByOne(ctx, runs), nil
	}
	input, err := json.Marshal(runs)
	if err != nil {
		return nil, err
	}
	c := k.Command("")
	c.Argv = slices.Concat(c.Argv[:len(c.Argv)-1], []string{manyRuns})
	c.Stdin = strings.NewReader(string(input))
	out, err := engine.Output(ctx, c)
	if err != nil {
		return nil, err
	}
	var done []struct {
		Status   int
		Out, Err string
	}
	if err := json.Unmarshal(out, &done); err != nil {
		return nil, fmt.Errorf("outcomes of %d runs of kas: %w", len(runs), err)
	}
	all := make([]Outcome, len(done))
	for i, d := range done {
		all[i].Out = d.Out
		if d.Status != 0 {
			all[i].Err = errors.New(d.Err)
		}
	}
	return all, nil
}

func (k Kas) oneByOne(ctx context.Context, runs []Run) []Outcome {
	all := make([]Outcome, len(runs))
	for i, run := range runs {
		out, err := engine.Output(ctx, k.Command(run.Dir, run.Args...))
		all[i] = Outcome{string(out), err}
	}
	return all
}
