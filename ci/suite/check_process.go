package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// process is a running program, by the kernel's name of it.
type process struct {
	name    string
	running bool
	count   match.Matcher
}

// commBytes is how much of a program's name the kernel keeps.
const commBytes = 15

func readProcess(e *Entry) Probe {
	p := process{name: e.Text("comm", e.Name), running: true, count: e.Matcher("count", match.Number)}
	if r := e.Flag("running"); r != nil {
		p.running = *r
	}
	if p.name == "" || strings.ContainsAny(p.name, "/\n\x00") {
		e.Fail(e.Key, "%q is not a program's name; it is without its folder", p.name)
	}
	return p
}

// processScript reads all names by one program. With a program for each process, an emulated board
// needed 30 s. A process that ends before it is read is no error.
const processScript = `cat /proc/[0-9]*/comm 2>/dev/null; true`

func (p process) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, "sh", "-c", processScript)
	if err != nil {
		return f, err
	}
	if out == "" { // not even the one that lists them
		return f, errors.New("read /proc/*/comm: it shows no process")
	}
	n := 0
	for _, comm := range plaintext.Lines(out) {
		if comm == p.name[:min(len(p.name), commBytes)] {
			n++
		}
	}
	f.Expect(p.running == (n > 0), plaintext.Either(p.running, p.name+" runs", p.name+" does not run"),
		plaintext.Either(n > 0, fmt.Sprintf("%d of %s run", n, p.name), p.name+" does not run"))
	f.ExpectMatch("count", p.count, n, fmt.Sprintf("%d of them", n))
	return f, nil
}

func (p process) Next() string {
	return "on the board: ps; journalctl -b -t " + ShellLine([]string{p.name})
}
