package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci"
	"slipway/ci/report"
	"slipway/layers/host"
	"slipway/layers/plaintext"
)

// Outcome is the result of a run over many boards.
type Outcome struct {
	Board     string    `json:"board"`
	Work      string    `json:"work"` // describes the work on each board
	Did       Work      `json:"did"`
	Inventory string    `json:"inventory"`
	Started   time.Time `json:"started"`
	ElapsedMS int64     `json:"elapsedMs"`
	Stopped   string    `json:"stopped,omitempty"` // why boards were not begun
	Changed   bool      `json:"changed,omitempty"` // what is sent has changed, so that --failed refuses to go on
	Results   []Result  `json:"results"`
}

// title returns the board's name, or the inventory file if the run is for any board.
func (o Outcome) title() string { return cmp.Or(o.Board, o.Inventory) }

// nextOf returns what the user does about boards of a kind, with the command for host keys.
// If a sent file changed, boards not begun, stopped or full get the step of Changed.
func (o Outcome) nextOf(k Kind) string {
	if (o.Changed || o.countKinds()[Changed] > 0) && slices.Contains([]Kind{NotBegun, Stopped, Full}, k) {
		k = Changed
	}
	if k == NewKey || k == HostKey {
		board := plaintext.Either(o.Board != "", plaintext.Quote(o.Board)+" ", "")
		return k.Next() + fmt.Sprintf(": %s fleet pin %s%s", host.ProgramName(), board, plaintext.Quote(o.Inventory))
	}
	return k.Next()
}

// nextIn returns nextOf(k). If that names a board's report, it adds a command for the first in dir.
func (o Outcome) nextIn(dir string, k Kind) string {
	next := o.nextOf(k)
	i := slices.IndexFunc(o.Results, func(r Result) bool { return r.Kind == k && r.Report != "" })
	if i >= 0 && strings.HasSuffix(next, "the board's report") {
		next += fmt.Sprintf(": %s report %s", host.ProgramName(), plaintext.Quote(filepath.Join(dir, o.Results[i].Host)))
	}
	return next
}

// Result is the result of the last attempt on one board.
type Result struct {
	Host      string `json:"host"`
	Address   string `json:"address"`
	Port      int    `json:"port,omitempty"` // 0 if the inventory names none
	Kind      Kind   `json:"kind"`
	Saw       string `json:"saw,omitempty"`
	ElapsedMS int64  `json:"elapsedMs"`
	Passed    int    `json:"passed"` // of its checks
	Checks    int    `json:"checks"`
	Canary    bool   `json:"canary,omitempty"`
	Tries     int    `json:"tries"`

	// Of an update: what runs now, and how much of the bundle went to the board.
	System    ci.System `json:"system,omitempty"`
	Version   string    `json:"version,omitempty"`
	SentBytes int64     `json:"sentBytes,omitempty"`

	Answer *Answer `json:"answer,omitempty"` // of a program
	Report string  `json:"report,omitempty"` // relative to the outcome
}

// The files of an outcome.
const (
	outcomeName = "fleet.json"
	junitName   = "junit.xml"
	pageName    = "index.html"
)

// Write writes fleet.json, the HTML page and the JUnit file into dir. reports are as for Page.
func (o Outcome) Write(dir string, reports []report.Report) error {
	return errors.Join(o.writeJSON(dir), o.writePages(dir, reports))
}

// writeJSON writes the outcome as fleet.json into dir.
func (o Outcome) writeJSON(dir string) error {
	data, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		return err
	}
	return writeFile(dir, outcomeName, append(data, '\n'))
}

// Counts are the numbers of boards by kind.
type Counts map[Kind]int

// Sum returns the number of all boards.
func (n Counts) Sum() (sum int) {
	for _, boards := range n {
		sum += boards
	}
	return sum
}

// Failed returns the number of boards that failed.
func (n Counts) Failed() int { return n.Sum() - n.doneCount() - n[NotBegun] }

func (o Outcome) countKinds() Counts {
	n := Counts{}
	for _, r := range o.Results {
		n[r.Kind]++
	}
	return n
}

// doneCount returns the number of boards that have what the run deploys.
func (n Counts) doneCount() int { return n[Passed] + n[Already] }

// String returns the counts as text, the most urgent kind last, like "475 passed, 3 disk full".
func (n Counts) String() string {
	var words []string
	for _, k := range slices.Backward(kinds) {
		if n[k.kind] > 0 {
			words = append(words, fmt.Sprintf("%d %s", n[k.kind], k.kind))
		}
	}
	return strings.Join(words, ", ")
}

// worstKind returns the most urgent kind of the results, or Passed without any.
func (o Outcome) worstKind() Kind {
	n := o.countKinds()
	for _, k := range kinds {
		if n[k.kind] > 0 {
			return k.kind
		}
	}
	return Passed
}

// Err returns an error if a board did not pass. Failed checks decide the exit status before
// other kinds, because such a board may be worse off than before. next is the step, unless the run
// stopped for a cause with a step of its own.
func (o Outcome) Err(ctx context.Context, next string) error {
	n := o.countKinds()
	if n.doneCount() == len(o.Results) {
		return nil
	}
	if own := o.nextOf(NotBegun); own != NotBegun.Next() {
		next = own
	}
	err := fmt.Errorf("fleet %s: %d of %s did not pass: %s\nnext: %s", o.title(), len(o.Results)-n.doneCount(), report.Boards(len(o.Results)), n, next)
	for _, worst := range []error{report.ErrFailed, report.ErrWrong, report.ErrUnreachable} {
		for _, k := range kinds {
			if n[k.kind] > 0 && k.err == worst {
				return report.Because(ctx, worst, err)
			}
		}
	}
	return err
}

// WriteSummary writes what the boards' programs printed, the failed and stopped boards by kind of
// failure with its next step, the verdict, and the paths of the reports in dir.
func (o Outcome) WriteSummary(w io.Writer, dir string) error {
	o.writeAnswers(w)
	n := o.countKinds()
	for _, k := range kinds {
		if n[k.kind] == 0 || k.kind.Done() || k.kind == NotBegun {
			continue
		}
		fmt.Fprintf(w, "FAILED  %s: %d\n", k.kind, n[k.kind])
		o.writeHosts(w, k.kind)
		fmt.Fprintf(w, "  next  %s\n", o.nextIn(dir, k.kind))
	}
	verdict := plaintext.Either(n.doneCount() < len(o.Results), "FAILED", "PASSED")
	fmt.Fprintf(w, "%s  %s on %s in %.1f s: %s\n", verdict, o.title(), report.Boards(len(o.Results)), float64(o.ElapsedMS)/1000, n)
	if o.Stopped != "" {
		fmt.Fprintf(w, "  stopped: %s; for the others, %s\n", oneLine(o.Stopped), o.nextOf(NotBegun))
	}
	var files []string // of this run: newRun removed older ones
	for _, name := range []string{pageName, outcomeName, junitName} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			files = append(files, name)
		}
	}
	reports := "none could be written; the record is " + filepath.Join(dir, journalName)
	if len(files) > 0 {
		reports = filepath.Join(dir, files[0])
	}
	if len(files) > 1 {
		reports += fmt.Sprintf(" (and %s)", strings.Join(files[1:], ", "))
	}
	_, err := fmt.Fprintf(w, "report: %s\n", reports)
	return err
}

const shownHosts = 10 // of one kind; the HTML page has all of them

// writeHosts writes the first shownHosts boards of a kind, and how many more there are.
func (o Outcome) writeHosts(w io.Writer, kind Kind) {
	shown := 0
	for _, r := range o.Results {
		if r.Kind != kind {
			continue
		}
		if shown++; shown > shownHosts {
			fmt.Fprintf(w, "  and %d more\n", o.countKinds()[kind]-shownHosts)
			return
		}
		fmt.Fprintf(w, "  %s  %s\n", oneLine(r.Host), r.Saw)
	}
}

// renderJUnit returns a JUnit file with a test case for each board.
func (o Outcome) renderJUnit() ([]byte, error) {
	var all []report.CheckResult
	for _, r := range o.Results {
		c := report.CheckResult{Name: r.Host, Kind: string(r.Kind), Status: r.Kind.status(), Saw: r.Saw, Next: o.nextOf(r.Kind), ElapsedMS: r.ElapsedMS}
		if r.Kind == NotBegun {
			c.Saw = string(NotBegun)
		}
		all = append(all, c)
	}
	return report.JUnit(o.title(), "fleet", o.Started, o.ElapsedMS, all)
}
