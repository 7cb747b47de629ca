package layers

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"slipway/layers/kastest"
	"slipway/layers/run"
)

// What a developer has set for kas is not for tests.
func init() {
	for _, name := range []string{"KAS_MACHINE", "KAS_DISTRO", "KAS_TARGET", "KAS_TASK"} {
		os.Unsetenv(name)
	}
}

// kasRun is one run of kas in a folder of its own.
type kasRun struct {
	Dir  string
	Args []string
	Env  map[string]string
}

// kasOutcome is what came of a run.
type kasOutcome struct {
	out string
	err error
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
        os.environ.update(KAS_WORK_DIR=run["Dir"], KAS_BUILD_DIR=run["Dir"] + "/build", **(run["Env"] or {}))
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

// runKas runs kas several times, one after the other.
func runKas(t *testing.T, kas kastest.Kas, runs []kasRun) []kasOutcome {
	t.Helper()
	if strings.HasPrefix(kas.Version, "3.") { // that is built otherwise
		return oneByOne(t, kas, runs)
	}
	input, err := json.Marshal(runs)
	if err != nil {
		t.Fatal(err)
	}
	c := kas.Command("")
	c.Argv = slices.Concat(c.Argv[:len(c.Argv)-1], []string{manyRuns})
	c.Stdin = strings.NewReader(string(input))
	out, err := run.Output(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var done []struct {
		Status   int
		Out, Err string
	}
	if err := json.Unmarshal(out, &done); err != nil {
		t.Fatal(err)
	}
	all := make([]kasOutcome, len(done))
	for i, d := range done {
		all[i].out = d.Out
		if d.Status != 0 {
			all[i].err = errors.New(d.Err)
		}
	}
	return all
}

func oneByOne(t *testing.T, kas kastest.Kas, runs []kasRun) []kasOutcome {
	t.Helper()
	all := make([]kasOutcome, len(runs))
	for i, r := range runs {
		out, err := run.Output(t.Context(), kas.Command(r.Dir, r.Args...))
		all[i] = kasOutcome{string(out), err}
	}
	return all
}
